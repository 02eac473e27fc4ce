// The split kernel, instantiated for one dtype by each split_*.cu.
#pragma once

#include <algorithm>

#include "../held.cuh"
#include "../launch.h"
#include "../reduce.cuh"
#include "split.h"

namespace l1norm::cuda {
namespace split_kernel {

constexpr int kLinePacks = kLineBytes / kPackBytes;

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
constexpr bool kBeforeHopper = true;
#else
constexpr bool kBeforeHopper = false;
#endif

// How a launch shares rows between blocks.
struct Sharing {
  int64_t slice;  // packs of a row that a block holds at most, in whole lines
  int blocks_a_row;
  int groups;
  int kept_batches;    // of those read twice
  unsigned* counters;  // a line a group: blocks that have added their sums, over all rows
  double2* parts;      // their sums: group by group, for even and odd turns, block by block
};

// A block's part of a row: packs in registers, then in shared memory. What no block holds is streamed, which is read
// twice: its blocks take turns, so that together they walk through memory in order.
template <typename T>
struct Slice {
  const T* x;  // of its first pack
  T* y;
  int packs;
  int64_t streamed;     // packs, of all blocks
  int64_t streamed_at;  // from x
  int64_t tail_at;      // likewise
  int64_t row;
  int64_t denominator;
  int head, tail;  // elements of the row before and after all packs, where they are this block's
};

// One thread's work: not inlined, for it would take more code than the rest.
template <typename T>
__device__ __noinline__ Slice<T> make_slice(const Call& c, const Sharing& s, int64_t row, int rank) {
  constexpr int kPack = kPackBytes / sizeof(T);
  const Offsets o = c.geometry.rows.at(row);
  const T* x = static_cast<const T*>(c.input) + o.input;
  const int64_t length = c.geometry.row.count;
  const int head = static_cast<int>(min(static_cast<int64_t>(elements_to(x, kLineBytes)), length));
  const int64_t packs = (length - head) / kPack, first = min(rank * s.slice, packs);
  Slice<T> slice;
  slice.x = x + head + first * kPack;
  slice.y = static_cast<T*>(c.output) + o.output + head + first * kPack;
  slice.packs = static_cast<int>(min(s.slice, packs - first));
  const int64_t held = min(s.slice * s.blocks_a_row, packs);
  slice.streamed = packs - held;
  slice.streamed_at = (held - first) * kPack;
  slice.tail_at = (packs - first) * kPack;
  slice.row = row;
  slice.denominator = o.denominator;
  slice.head = rank == 0 ? head : 0;
  slice.tail = rank == s.blocks_a_row - 1 ? static_cast<int>(length - head - packs * kPack) : 0;
  return slice;
}

// blockDim.x, asked for anew: a loop would keep its multiples in registers.
__device__ __forceinline__ int block_threads() {
  int threads;
  asm volatile("mov.u32 %0, %%ntid.x;" : "=r"(threads));
  return threads;
}

enum class Hint { kNone, kKeeping, kLast };

// Those of a thread's packs, blockDim.x apart, that lie before `left`; zeros for the others.
template <Hint kHint, typename P, int N>
__device__ __forceinline__ void load_packs(P (&packs)[N], const P* from, int left) {
  const int step = block_threads();
#pragma unroll
  for (int u = 0; u < N; ++u) {
    const int i = u * step;
    if (i >= left) {
      packs[u] = P{};
    } else if constexpr (kHint == Hint::kKeeping) {
      packs[u] = load_keeping(from + i);
    } else if constexpr (kHint == Hint::kLast) {
      packs[u] = load_last(from + i);
    } else {
      packs[u] = from[i];
    }
  }
}

template <typename T>
struct Shared {
  BlockSumStorage sums;
  double2 total;
  Slice<T> slices[2];  // for even and odd turns
};

// The sum of a row's blocks, in each lane of their first warps, the same bits everywhere: parts are added in the order
// of their places.
__device__ __forceinline__ Sum sum_of_blocks(Sum sum, const Sharing& s, int group, int rank, unsigned turn) {
  // A block that writes a part for this turn has seen every block add for the last one, and so be done with the parts
  // of the one before: two places take turns.
  double2* const parts = s.parts + (group * 2 + static_cast<int>(turn % 2)) * s.blocks_a_row;
  if (threadIdx.x == 0) {
    unsigned* const counter = s.counters + group * static_cast<int>(kLineBytes / sizeof(unsigned));
    parts[rank] = make_double2(sum.hi, sum.lo);
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory");
    // It may wrap, and is never a whole turn ahead.
    const unsigned all = static_cast<unsigned>(s.blocks_a_row) * (turn + 1);
    unsigned added;
    do {
      asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(added) : "l"(counter) : "memory");
    } while (static_cast<int>(added - all) < 0);
  }
  __syncwarp();
  sum = Sum{};
  for (int k = static_cast<int>(threadIdx.x); k < s.blocks_a_row; k += 32) {
    const double2 part = __ldcg(parts + k);
    sum = sum + Sum{part.x, part.y};
  }
  return warp_sum(sum);
}

// Stores the quotients of those of a thread's packs, blockDim.x apart, that lie before `left`; y is where the first is.
// Returns the bits of what is not proven. It is stored all the same where it is not read again.
template <bool kAligned, typename T, int N, int kPacks>
__device__ __forceinline__ unsigned store_quotients(const Pack<T, N> (&packs)[kPacks], T* y, int left,
                                                    const Quotient<T>& quotient) {
  const int step = block_threads();
  unsigned unproven = 0;
#pragma unroll
  for (int u = 0; u < kPacks; ++u) {
    if (u * step >= left) break;  // the same in all threads, or nearly
    Pack<T, N> pack;
    const bool proven = quotient.divide(packs[u], pack);
    unproven |= proven ? 0u : 1u << u;
    if (!kReadAgain<T> || proven) {
      T* const to = y + u * step * N;
      if constexpr (!kAligned) {
#pragma unroll
        for (int k = 0; k < N; ++k) to[k] = pack[k];
      } else {
        *reinterpret_cast<Pack<T, N>*>(to) = pack;
      }
    }
  }
  return unproven;
}

// Divides those of a thread's packs, blockDim.x apart, that lie before `left`; x and y are where the first is.
template <typename T, int N, int kPacks>
__device__ __forceinline__ void divide_packs(const Pack<T, N> (&packs)[kPacks], const T* x, T* y, int left,
                                             const Quotient<T>& quotient, const double2& total, const Call& c) {
  const bool aligned = reinterpret_cast<uintptr_t>(y) % sizeof(Pack<T, N>) == 0;
  unsigned unproven =
      aligned ? store_quotients<true>(packs, y, left, quotient) : store_quotients<false>(packs, y, left, quotient);
  if (unproven == 0) return;
  const Divisor m = exact_divisor<T>({total.x, total.y}, c);
  const int step = block_threads();
  while (unproven != 0) {
    const int u = __ffs(static_cast<int>(unproven)) - 1, i = u * step;
    unproven &= unproven - 1;
    // In place too, what is to be read again is still there.
    const Pack<T, N> pack = kReadAgain<T> ? *reinterpret_cast<const Pack<T, N>*>(x + i * N) : select(packs, u);
    divide_each_again(pack, y + i * N, quotient, m);
  }
}

__device__ __forceinline__ int clamp_left(int64_t packs, int most) {
  return static_cast<int>(min(packs, static_cast<int64_t>(most)));
}

// The head belongs to the first block's first threads, the tail to the last block's last ones: an element a thread, and
// at least 128 threads, which keep them apart.
template <typename T>
__device__ __forceinline__ bool has_edge(const Slice<T>& slice) {
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  return thread < slice.head || threads - 1 - thread < slice.tail;
}

// Where it is, from slice.x.
template <typename T>
__device__ __forceinline__ int64_t edge_of(const Slice<T>& slice) {
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  if (thread < slice.head) return thread - slice.head;
  return slice.tail_at + (slice.tail - (threads - thread));
}

// blockIdx.x / blocks_a_row is the group: rows group, group + groups, ... are its.
template <typename T>
__global__ void __launch_bounds__(kSplitThreads, 2)
    kernel(const __grid_constant__ Call c, const __grid_constant__ Sharing s) {
  constexpr int kPack = kPackBytes / sizeof(T), kPacks = kSplitPacks<kBeforeHopper, sizeof(T)>;
  using RowPack = Pack<T, kPack>;
  constexpr int kBatch = 2;  // of shared memory; more would spill
  __shared__ Shared<T> shared;
  extern __shared__ uint4 buffer[];
  const int threads = static_cast<int>(blockDim.x), thread = static_cast<int>(threadIdx.x);
  const int group = static_cast<int>(blockIdx.x) / s.blocks_a_row;
  const int rank = static_cast<int>(blockIdx.x) - group * s.blocks_a_row;
  const int64_t rows = c.geometry.rows.count;
  if (group >= rows) return;

  // A slice's packs: [0, in_registers), and the rest in the buffer.
  const int in_registers = kPacks * threads;
  const auto in_buffer = [&](int all) { return max(all - in_registers, 0); };
  const int64_t stride =
      static_cast<int64_t>(in_registers) * s.blocks_a_row;  // from a batch that is streamed to the next
  const int64_t start = static_cast<int64_t>(rank) * in_registers;
  // A thread reads only those packs of the buffer that it has copied itself.
  const auto fill_buffer = [&](const Slice<T>& slice) {
    const int n = in_buffer(slice.packs);
    const T* x = slice.x + in_registers * kPack;
    for (int i = thread; i < n; i += threads) copy_async(buffer + i, x + i * kPack);
  };

  if (thread == 0) shared.slices[0] = make_slice<T>(c, s, group, rank);
  __syncthreads();
  fill_buffer(shared.slices[0]);
  for (unsigned turn = 0;; ++turn) {
    const Slice<T>& slice = shared.slices[turn % 2];
    Slice<T>& next = shared.slices[(turn + 1) % 2];
    Tally<T> tally;
    RowPack packs[kPacks];
    Pack<T, 1> edge{};
    {
      const T* x = slice.x;
      const int all = slice.packs, n_buffer = in_buffer(all);
      // Streamed first, so that its end is still in the L2 cache in the second pass.
      const RowPack* from = reinterpret_cast<const RowPack*>(x + slice.streamed_at) + start + thread;
      int64_t left = slice.streamed - start;
      for (; left > s.kept_batches * stride; left -= stride, from += stride) {
        load_packs<Hint::kNone>(packs, from, clamp_left(left, in_registers) - thread);
        add_packs(tally, packs);
      }
      for (; left > 0; left -= stride, from += stride) {
        load_packs<Hint::kKeeping>(packs, from, clamp_left(left, in_registers) - thread);
        add_packs(tally, packs);
      }
      load_packs<Hint::kNone>(packs, reinterpret_cast<const RowPack*>(x) + thread, min(all, in_registers) - thread);
      if (has_edge(slice)) edge.units[0] = x[edge_of(slice)];
      wait_for_copies();
      for (int i = thread; i < n_buffer; i += kBatch * threads) {
        RowPack few[kBatch];
        load_packs<Hint::kNone>(few, reinterpret_cast<const RowPack*>(buffer) + i, n_buffer - i);
        add_packs(tally, few);
      }
      tally.template add<1>(&edge);
      add_packs(tally, packs);
    }

    Sum sum = block_sum(tally.sum(), shared.sums);
    if (thread < 32) {
      if (s.blocks_a_row > 1) sum = sum_of_blocks(sum, s, group, rank, turn);
      if (thread == 0) shared.total = make_double2(sum.hi, sum.lo);
    } else if (thread == threads - 1) {
      // Past the barrier in block_sum nobody reads the last turn's slice.
      const int64_t row = slice.row + s.groups;
      next.row = row;
      if (row < rows) next = make_slice<T>(c, s, row, rank);
    }
    __syncthreads();
    const Quotient<T> quotient({shared.total.x, shared.total.y}, c.count, c.eps);
    if (c.denominator != nullptr && rank == 0 && thread == 0) {
      write_denominator<T>(c, slice.denominator, {shared.total.x, shared.total.y});
    }

    const T* x = slice.x;
    T* y = slice.y;
    const int all = slice.packs, n_buffer = in_buffer(all);
    for (int i = thread; i < n_buffer; i += kBatch * threads) {
      RowPack few[kBatch];
      load_packs<Hint::kNone>(few, reinterpret_cast<const RowPack*>(buffer) + i, n_buffer - i);
      const int at = (in_registers + i) * kPack;
      divide_packs(few, x + at, y + at, n_buffer - i, quotient, shared.total, c);
    }
    // On its way while the rest is stored.
    if (next.row < rows) fill_buffer(next);
    if (has_edge(slice)) {
      Pack<T, 1> one;
      if (!quotient.divide(edge, one)) {
        const Divisor m = exact_divisor<T>({shared.total.x, shared.total.y}, c);
        one.units[0] = exact_quotient(edge[0], m);
      }
      y[edge_of(slice)] = one[0];
    }
    divide_packs(packs, x + thread * kPack, y + thread * kPack, min(all, in_registers) - thread, quotient, shared.total,
                 c);
    // Backwards: what was read last is in the cache. Each thread reads what it writes itself: y may be x.
    if (slice.streamed > start) {
      for (int64_t first = start + (slice.streamed - 1 - start) / stride * stride; first >= 0; first -= stride) {
        const int64_t at = slice.streamed_at + (first + thread) * kPack;
        const int left = clamp_left(slice.streamed - first, in_registers) - thread;
        const RowPack* from = reinterpret_cast<const RowPack*>(x + at);
        if (slice.streamed - first > s.kept_batches * stride) {
          load_packs<Hint::kNone>(packs, from, left);
        } else {
          load_packs<Hint::kLast>(packs, from, left);
        }
        divide_packs(packs, x + at, y + at, left, quotient, shared.total, c);
      }
    }
    if (next.row >= rows) return;
  }
}

template <typename T>
cudaError_t launch(const Call& c, const SplitPlan& plan, void* scratch, cudaStream_t stream) {
  const auto function = kernel<T>;
  static Prepared prepared;
  cudaError_t error = prepared.for_launch(c.device, reinterpret_cast<const void*>(function), plan.shared_bytes);
  if (error != cudaSuccess) return error;
  const size_t counter_bytes = static_cast<size_t>(plan.groups) * kLineBytes;
  Sharing s{};
  const int64_t packs = c.geometry.row.count / static_cast<int64_t>(kPackBytes / sizeof(T));
  const int64_t lines = (packs + kLinePacks - 1) / kLinePacks;
  const int64_t held = static_cast<int64_t>(plan.packs) * plan.threads + plan.shared_bytes / kPackBytes;
  s.slice = std::min((lines + plan.blocks_a_row - 1) / plan.blocks_a_row * kLinePacks, held / kLinePacks * kLinePacks);
  s.blocks_a_row = plan.blocks_a_row;
  s.groups = plan.groups;
  s.kept_batches = plan.kept_batches;

  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(plan.blocks_a_row) * static_cast<unsigned>(plan.groups));
  config.blockDim = dim3(static_cast<unsigned>(plan.threads));
  config.dynamicSmemBytes = static_cast<size_t>(plan.shared_bytes);
  config.stream = stream;
  cudaLaunchAttribute cooperative{};
  cooperative.id = cudaLaunchAttributeCooperative;
  cooperative.val.cooperative = 1;
  if (plan.blocks_a_row > 1) {
    s.counters = static_cast<unsigned*>(scratch);
    s.parts = reinterpret_cast<double2*>(static_cast<char*>(scratch) + counter_bytes);
    error = cudaMemsetAsync(scratch, 0, counter_bytes, stream);
    if (error != cudaSuccess) return error;
    // Blocks of a row wait for each other.
    config.attrs = &cooperative;
    config.numAttrs = 1;
  }
  return cudaLaunchKernelEx(&config, function, c, s);
}

}  // namespace split_kernel

template <DType D>
cudaError_t split(const Call& call, const SplitPlan& plan, void* scratch, cudaStream_t stream) {
  return split_kernel::launch<typename ElementOf<D>::type>(call, plan, scratch, stream);
}

}  // namespace l1norm::cuda
