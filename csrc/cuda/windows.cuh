// Windows of columns, which the warps of a column ring hand each other.
//
// Window n of a block's steps is kColumns columns from a multiple of kBytes on in the output, which are other columns
// in each step: up to kColumns - 1 further to the left. Tile n of sums is that of kColumns columns, `shift` columns to
// the left of where window n would have them if its steps began at such multiples; it is complete once window n is
// loaded. Window n is divided by what tiles n and n + 1 have. Where windows are whole, their columns are their tiles'.
#pragma once

#include "../call.h"
#include "divider.h"
#include "pack.cuh"
#include "plan_column_ring.h"
#include "shared.cuh"

namespace l1norm::cuda {
namespace column_ring_kernel {

// Windows of so many bytes, of input alone or of input and its result's gradient, few or many at a time, whole or not.
template <typename T, int kWindowBytes, bool kOfGradients, bool kManySlots, bool kAreWhole>
struct Windows {
  using Element = T;
  static constexpr bool kHalves = sizeof(T) == 2;
  static constexpr int kBytes = kWindowBytes;  // of an operand's window of a step
  static constexpr bool kBackward = kOfGradients;
  static constexpr bool kMany = kManySlots;
  static constexpr bool kWhole = kAreWhole;
  static constexpr WindowSize kSize{kBytes, sizeof(T), kBackward, kMany, kWhole};
  static constexpr int kColumns = kSize.columns();
  static constexpr int kMostSlots = kSize.most_slots();
  static constexpr int kTiles = kSize.tiles();
  static constexpr int kExchangers = kSize.exchangers();
  static constexpr int kThreads = kSize.threads();
  static constexpr int kOperands = kSize.operands();
  static constexpr int kStepBytes = kSize.step_bytes();  // of all operands
  // Parts of a block's steps, which are awaited and given up apart.
  static constexpr int kParts = kSize.parts();
  // Warps that divide ahead of a part's.
  static __host__ __device__ constexpr int warps_ahead(int part) { return part * kWindowDividers / kParts; }
  static __host__ __device__ constexpr int warps_of(int part) { return warps_ahead(part + 1) - warps_ahead(part); }
  static __host__ __device__ constexpr int part_of(int warp) {
    int part = 0;
    while (warp >= warps_ahead(part + 1)) ++part;
    return part;
  }
  // Whether warps that divide take their next window once memory has taken what they wrote: where windows are long.
  static constexpr bool kAwaitsWrites = !kMany || kBytes != kWideWindow;
  static constexpr int kHeldAtOnce = kWideWindow / kBytes;  // steps that a warp's register has neighbours of
  static constexpr int kHeld = kSize.held() / kHeldAtOnce;
  static constexpr int kKnown = kTiles * kColumns;
  // Lanes that add up what warps have of a column, and warps of those.
  static constexpr int kLanesATaken = kColumns <= kWindowAdders * 16 ? 2 : 1;
  static constexpr int kTakers = kColumns * kLanesATaken / 32;
  static constexpr int kOwned = kColumns / kWindowCluster;  // columns of a tile that a block of a cluster adds up
  static constexpr int kGroups = 32 / kOwned;               // of lanes, which share what is added up of each of them
  static constexpr int kPolled = kMostWindowClusters / kGroups;  // slots of other clusters a lane
};

// What does not change from window to window.
struct Layout {
  int64_t columns;  // of a plane
  int64_t all_steps;
  int64_t input_step, grad_step, output_step;  // in bytes
  int windows;                                 // of all planes
  int a_plane;                                 // of those
  int steps;                                   // of a block
  // Steps before the walk over them jumps, and bytes besides: of whole windows.
  int run;
  int64_t input_jump, grad_jump, output_jump;
  int slots;
  int slot_bytes;
  int teams;
  int held;
  int shift;
  int lag;         // tiles behind its own that a window waits for
  bool asks_wide;  // for what lies beside a narrow window in a wide one
  int clusters;
  Divider by_plane, by_slots, by_run;
};

// What columns are divided by: two floats that nearly all elements need, and two doubles that say all. Words of two
// neighbours from an even column on, and, of windows that are not whole, from an odd one on.
template <int kKnown, int kWords, bool kInDoubles>
struct Known {
  float2 floats[kWords][kKnown];
  double2 doubles[kKnown];
};
// Gradients of float32.
template <int kKnown, int kWords>
struct Known<kKnown, kWords, true> {
  double inverses[kWords][kKnown];
  double throughs[kWords][kKnown];
};

template <class W>
struct Tables {
  Known<W::kKnown, W::kWhole ? 1 : 2, W::kBackward && !W::kHalves> results;
  double2 added[kWindowAdders][W::kColumns];
  double2 handed[W::kTiles][kWindowCluster][W::kOwned];
  uint64_t full[W::kMostSlots][W::kParts], empty[W::kMostSlots][W::kParts], hands[W::kTiles], known[W::kTiles];
  uint64_t written, taken;  // `added`
};
template <class W>
constexpr int kTablesBytes = (static_cast<int>(sizeof(Tables<W>)) + kSharedLine - 1) / kSharedLine * kSharedLine;

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

__device__ __forceinline__ int lane_of_warp() { return static_cast<int>(threadIdx.x) % 32; }

// The slot of a window, and how often that has been filled before, modulo 2.
struct Turn {
  int slot = 0;
  unsigned parity = 0;

  __device__ __forceinline__ void next(const Layout& l) {
    if (++slot < l.slots) return;
    slot = 0;
    parity ^= 1;
  }
};

// A window's place in its plane.
struct Place {
  int window = 0;
  int plane = 0;

  Place() = default;
  __device__ __forceinline__ Place(int n, const Layout& l) : plane(static_cast<int>(l.by_plane.quotient(n))) {
    window = n - plane * l.a_plane;
  }

  // Whether another plane begins.
  __device__ __forceinline__ bool next(const Layout& l) {
    if (++window < l.a_plane) return false;
    window = 0;
    ++plane;
    return true;
  }
};

// Once this thread's copies so far are there; the barrier counts threads.
__device__ __forceinline__ void arrive_with_copies(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
// The L2 cache is asked for all of the 256 bytes around. Where steps begin at different places of those, narrow windows
// are faster so (gradients of 32768 x 65535 over dim 0 on an H200 0.706 to 0.735 of an addition's speed); where all
// begin alike, every other window would ask for twice as much (32768 x 65536 0.77 to 0.71), and wide windows, which ask
// for no more than they take, are slower all the same (forward 0.88 to 0.86).
__device__ __forceinline__ void copy_asking_wide(void* shared, const void* global) {
  asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16;" ::"r"(shared_address(shared)), "l"(global)
               : "memory");
}
// Of its line: without it, gradients of 65535 x 32768 are slower (0.54 of an addition's speed, and 0.62).
__device__ __forceinline__ void copy_asking_line(void* shared, const void* global) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(shared_address(shared)), "l"(global)
               : "memory");
}
__device__ __forceinline__ void copy_element_async(void* shared, const void* global) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(shared)), "l"(global) : "memory");
}
__device__ __forceinline__ void store_global(void* to, const uint2& y) {
  asm volatile("st.global.v2.u32 [%0], {%1, %2};" ::"l"(to), "r"(y.x), "r"(y.y) : "memory");
}
// Until memory has taken what this warp wrote there, and ahead of it. Without it long windows are taken sooner, and all
// is slower (32768 x 65535 float32 over dim 0 on an H200 5.3 ms, with it 5.05); of short ones it takes too long (16384
// x 65536 2.47 ms, without it 2.36).
__device__ __forceinline__ void await_writes(const void* written) {
  asm volatile(
      "{\n"
      ".reg .pred never;\n"
      ".reg .u32 read;\n"
      "ld.relaxed.gpu.global.u32 read, [%0];\n"
      "setp.eq.u32 never, read, 0x7fc12345;\n"
      "@never nanosleep.u32 1;\n"
      "}\n" ::"l"(written)
      : "memory");
}
__device__ __forceinline__ void meet_cluster() {
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

template <class W>
struct Ring {
  using Element = typename W::Element;
  // Neighbours that a lane divides.
  static constexpr int kAcross = 8 / static_cast<int>(sizeof(Element));
  using Few = Pack<Element, kAcross>;

  const Call& c;
  const Layout& l;
  Tables<W>& tables;
  char* memory;
  int steps;  // of this block
  int64_t first_step;

  // Steps ahead of a part's.
  __device__ __forceinline__ int steps_ahead(int part) const { return min(W::warps_ahead(part) * l.held, steps); }
  __device__ __forceinline__ Offsets plane_of(const Place& at) const { return c.geometry.rows.around_small(at.plane); }
  // Runs that end ahead of a step of the block.
  __device__ __forceinline__ int64_t jumps_before(int step) const {
    return W::kWhole ? l.by_run.quotient(static_cast<uint32_t>(first_step) + static_cast<uint32_t>(step)) : 0;
  }
  // Bytes from a plane's first step to it, where steps lie `apart` from each other, and runs of them `jump` further.
  __device__ __forceinline__ int64_t offset_of(int step, int64_t apart, int64_t jump) const {
    return (first_step + step) * apart + jumps_before(step) * jump;
  }
  // Steps of its run ahead of it.
  __device__ __forceinline__ int ahead_in_run(int step) const {
    return static_cast<int>(first_step + step - jumps_before(step) * l.run);
  }
  __device__ __forceinline__ char* output_of(const Place& at, int step) const {
    return static_cast<char*>(c.output) + plane_of(at).output * int64_t{sizeof(Element)} +
           offset_of(step, l.output_step, l.output_jump);
  }
  // Whether steps may begin or end in a window.
  __device__ __forceinline__ bool is_edge(const Place& at) const {
    return !W::kWhole && (at.window == 0 || at.window >= l.a_plane - 2);
  }
  __device__ __forceinline__ int shift() const { return W::kWhole ? 0 : l.shift; }
  // Bytes from the multiple of W::kBytes ahead of a step's first column.
  static __device__ __forceinline__ int past(uintptr_t output) {
    return W::kWhole ? 0 : static_cast<int>(output) & (W::kBytes - 1);
  }
  static __device__ __forceinline__ int past(const char* output) { return past(reinterpret_cast<uintptr_t>(output)); }
  // That multiple.
  static __device__ __forceinline__ char* window_of(uintptr_t output) {
    return reinterpret_cast<char*>(output & ~uintptr_t{W::kBytes - 1});
  }
  // Two words of each of a pair of columns, of that index times 8.
  template <typename Pair, typename Word, int kWords>
  static __device__ __forceinline__ Pair words_of(const Word (&words)[kWords][W::kKnown], int index) {
    const char* const from = reinterpret_cast<const char*>(words) + (index & (W::kKnown * 8 - 16)) +
                             (kWords == 1 ? 0 : (index & 8) * (static_cast<int>(sizeof words[0]) / 8));
    return *reinterpret_cast<const Pair*>(from);
  }
  // Whether an element lies so many bytes from a step's first column.
  __device__ __forceinline__ bool is_column(int64_t bytes) const {
    return bytes >= 0 && bytes < l.columns * int64_t{sizeof(Element)};
  }
};

// Of halves, which are in range whatever they are.
template <class W>
struct HalfWindows : Ring<W> {
  static __device__ __forceinline__ uint32_t limit_of(int) { return 0; }

  // The two floats of each of four columns.
  struct Words {
    float4 first, second;
  };
  __device__ __forceinline__ Words words_at(int index) const {
    const auto& floats = this->tables.results.floats;
    return {this->template words_of<float4>(floats, index), this->template words_of<float4>(floats, index + 16)};
  }
};

#endif

}  // namespace column_ring_kernel
}  // namespace l1norm::cuda
