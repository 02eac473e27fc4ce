// The split kernel, instantiated for each dtype by split.cu.
#pragma once

#include "../early.cuh"
#include "../held.cuh"
#include "../launch.h"
#include "../reduce.cuh"
#include "../unset.cuh"
#include "split.h"

namespace l1norm::cuda {
namespace split_kernel {

// How a launch shares rows between blocks.
struct Sharing {
  int64_t slice;  // packs of a block
  unsigned blocks_a_row;
  double2* sums;  // of blocks
};

// The sum of a row's blocks, in every thread, the same bits everywhere: they are added in the order of their places.
__device__ __forceinline__ Sum row_sum(const Sum& mine, const Sharing& s, unsigned rank) {
  __shared__ BlockSumStorage storage;
  __shared__ double2 total;
  Sum sum = block_sum(mine, storage);
  if (threadIdx.x < 32) {
    if (s.blocks_a_row > 1) {
      double2* const sums = s.sums + (blockIdx.x - rank);  // the row's
      if (threadIdx.x == 0) publish(sums + rank, sum);
      sum = await_warp_sum(sums, static_cast<int>(s.blocks_a_row));
    }
    if (threadIdx.x == 0) total = both_words(sum);
  }
  __syncthreads();
  return {total.x, total.y};
}

// blockIdx.x / blocks_a_row is the row.
template <typename T, int kPacks, bool kShared>
__global__ void __launch_bounds__(kResidentThreads<kPacks>)
    kernel(const __grid_constant__ Call c, const __grid_constant__ Sharing s, const int shared_packs) {
  extern __shared__ __align__(kSharedLine) uint4 places[];
  ask_ahead<false>(c);
  const unsigned row = blockIdx.x / s.blocks_a_row, rank = blockIdx.x - row * s.blocks_a_row;
  const Offsets o = c.geometry.rows.at(row);
  using Row = Held<T, kPacks, 1, !kShared>;
  const Part part = part_of_row(Row::packs_of(c, o), c.geometry.row.count, s.slice, rank, s.blocks_a_row);
  const int thread = static_cast<int>(threadIdx.x);
  await_stream();
  const Row held(c, o, part.begin, static_cast<int>(part.end - part.begin), kLineBytes, thread,
                 static_cast<int>(blockDim.x), thread, thread);
  normalize_held<T, kPacks, kShared>(c, held, shared_packs, places,
                                     c.denominator != nullptr && rank == 0 ? o.denominator : -1,
                                     [&](const Sum& sum) { return row_sum(sum, s, rank); });
}

template <typename T, int kPacks, bool kShared>
cudaError_t launch(const Call& c, const SplitPlan& plan, void* scratch, cudaStream_t stream) {
  const auto function = kernel<T, kPacks, kShared>;
  static Prepared prepared;
  const int shared_bytes = plan.shared_packs * plan.threads * kPackBytes;
  cudaError_t error = prepared.for_launch(c.device, reinterpret_cast<const void*>(function), shared_bytes);
  if (error != cudaSuccess) return error;
  Sharing s{};
  s.slice = whole_lines(c.geometry.row.count / static_cast<int64_t>(kPackBytes / sizeof(T)), plan.blocks_a_row);
  s.blocks_a_row = static_cast<unsigned>(plan.blocks_a_row);
  s.sums = static_cast<double2*>(scratch);
  const size_t dynamic = static_cast<size_t>(shared_bytes);
  const int64_t grid = c.geometry.rows.count * plan.blocks_a_row;
  if (plan.blocks_a_row == 1) {
    return launch_in_stream(c, function, grid, plan.threads, dynamic, 1, stream, c, s, plan.shared_packs);
  }
  error = unset_scratch(c, scratch, split_scratch_bytes(plan, c.geometry.rows.count), stream);
  if (error != cudaSuccess) return error;
  return launch_at_once(c.starts_early, function, grid, plan.threads, dynamic, stream, c, s, plan.shared_packs);
}

}  // namespace split_kernel

template <DType D>
cudaError_t split(const Call& call, const SplitPlan& plan, void* scratch, cudaStream_t stream) {
  using T = typename ElementOf<D>::type;
  return plan.shared_packs > 0 ? split_kernel::launch<T, kPacksBesideShared, true>(call, plan, scratch, stream)
                               : split_kernel::launch<T, 16, false>(call, plan, scratch, stream);
}

}  // namespace l1norm::cuda
