// Windows of columns, which the warps of a column ring hand each other.
//
// Window n of a block's steps is 64 columns from a multiple of 256 bytes on in the output, which are other columns in
// each step: up to 63 further to the left. Tile n of sums is that of 64 columns, `shift` columns to the left of where
// window n would have them if its steps began at such multiples; it is complete once window n is loaded. Window n is
// divided by what tiles n and n + 1 have.
#pragma once

#include "../call.h"
#include "plan_column_ring.h"
#include "shared.cuh"

namespace l1norm::cuda {
namespace column_ring_kernel {

constexpr int kQuarters = 4;  // of a block's steps, which are awaited and given up apart
// Warps that divide ahead of a quarter's.
__host__ __device__ constexpr int warps_ahead(int quarter) { return quarter * kWindowDividers / kQuarters; }
__host__ __device__ constexpr int warps_of(int quarter) { return warps_ahead(quarter + 1) - warps_ahead(quarter); }
__host__ __device__ constexpr int quarter_of(int warp) {
  int quarter = 0;
  while (warp >= warps_ahead(quarter + 1)) ++quarter;
  return quarter;
}
constexpr int kTiles = 4;  // whose sums are there at a time: blocks are no farther apart
constexpr int kKnown = kTiles * kWindowColumns;
constexpr int kWindowBytes = kWindowColumns * static_cast<int>(sizeof(float));
constexpr int kStepBytes = static_cast<int>(kWindowStepBytes);
constexpr int kOwned = kWindowColumns / kWindowCluster;  // columns of a tile that a block of a cluster adds up
constexpr int kGroups = 32 / kOwned;                     // of lanes, which share what is added up of each of them
constexpr int kPolled = kMostWindowClusters / kGroups;   // slots of other clusters a lane

// What does not change from window to window.
struct Layout {
  int64_t columns;  // of a plane
  int64_t all_steps;
  int64_t input_step, output_step;  // in bytes
  int windows;                      // of all planes
  int a_plane;                      // of those
  int steps;                        // of a block
  int held;
  int shift;
  int lag;  // tiles behind its own that a window waits for
  int clusters;
};

struct Tables {
  float2 divisors[2][kKnown];  // in two words: of pairs of columns from an even one on, and from an odd one on
  double2 totals[kKnown];
  double2 parts[kWindowAdders][kWindowColumns];
  double2 handed[kTiles][kWindowCluster][kOwned];
  uint64_t full[kWindowSlots][kQuarters], empty[kWindowSlots][kQuarters], hands[kTiles], known[kTiles];
};
constexpr int kTablesBytes = (static_cast<int>(sizeof(Tables)) + kSharedLine - 1) / kSharedLine * kSharedLine;
static_assert(kTablesBytes == kWindowTables);

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

__device__ __forceinline__ int lane_of_warp() { return static_cast<int>(threadIdx.x) % 32; }

// The slot of a window, and how often that has been filled before, modulo 2.
struct Turn {
  int slot = 0;
  unsigned parity = 0;

  __device__ __forceinline__ void next() {
    if (++slot < kWindowSlots) return;
    slot = 0;
    parity ^= 1;
  }
};

// A window's place in its plane.
struct Place {
  int window = 0;
  int plane = 0;

  Place() = default;
  __device__ __forceinline__ Place(int n, const Layout& l) : plane(n / l.a_plane) { window = n - plane * l.a_plane; }

  // Whether another plane begins.
  __device__ __forceinline__ bool next(const Layout& l) {
    if (++window < l.a_plane) return false;
    window = 0;
    ++plane;
    return true;
  }
  // Whether steps may begin or end in it.
  __device__ __forceinline__ bool is_edge(const Layout& l) const { return window == 0 || window >= l.a_plane - 2; }
};

// Once this thread's copies so far are there; the barrier counts threads.
__device__ __forceinline__ void arrive_with_copies(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void copy_element_async(void* shared, const void* global) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(shared)), "l"(global) : "memory");
}
__device__ __forceinline__ void store_global(float2* to, const float2& y) {
  asm volatile("st.global.v2.f32 [%0], {%1, %2};" ::"l"(to), "f"(y.x), "f"(y.y) : "memory");
}
// Until memory has taken what this warp wrote there, and ahead of it. Without it windows are taken sooner, and all is
// slower (32768 x 65535 float32 over dim 0 on an H200 5.3 ms, with it 5.05).
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
__device__ __forceinline__ void meet_adders() { asm volatile("bar.sync 1, %0;" ::"n"(kWindowAdders * 32) : "memory"); }
__device__ __forceinline__ void meet_cluster() {
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

struct Ring {
  const Call& c;
  const Layout& l;
  Tables& tables;
  char* memory;
  int steps;  // of this block
  int64_t first_step;

  // Steps ahead of a quarter's.
  __device__ __forceinline__ int steps_ahead(int quarter) const { return min(warps_ahead(quarter) * l.held, steps); }
  __device__ __forceinline__ Offsets plane_of(const Place& at) const {
    return c.geometry.rows.at(at.plane * l.columns);
  }
  __device__ __forceinline__ char* output_of(const Place& at, int64_t step) const {
    return static_cast<char*>(c.output) + plane_of(at).output * int64_t{sizeof(float)} + step * l.output_step;
  }
  __device__ __forceinline__ const char* input_of(const Place& at, int64_t step) const {
    return static_cast<const char*>(c.input) + plane_of(at).input * int64_t{sizeof(float)} + step * l.input_step;
  }
  // Bytes from the multiple of kWindowBytes ahead of a step's first column.
  static __device__ __forceinline__ int past(uintptr_t output) { return static_cast<int>(output) & (kWindowBytes - 1); }
  static __device__ __forceinline__ int past(const char* output) { return past(reinterpret_cast<uintptr_t>(output)); }
  // That multiple.
  static __device__ __forceinline__ char* window_of(uintptr_t output) {
    return reinterpret_cast<char*>(output & ~uintptr_t{kWindowBytes - 1});
  }
  // Whether an element lies so many bytes from a step's first column.
  __device__ __forceinline__ bool is_column(int64_t bytes) const { return bytes >= 0 && bytes < l.columns * 4; }
};

#endif

}  // namespace column_ring_kernel
}  // namespace l1norm::cuda
