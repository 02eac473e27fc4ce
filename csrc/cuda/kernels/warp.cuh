// The warp kernel, instantiated for one dtype by each warp_*.cu.
#pragma once

#include "../held.cuh"
#include "../reduce.cuh"
#include "warp.h"

namespace l1norm::cuda {
namespace warp_kernel {

// kLanes lanes hold a row, kPacks packs a lane.
template <typename T, int kLanes, int kPacks>
__global__ void __launch_bounds__(kWarpKernelThreads, kPacks <= 4   ? 6
                                                      : kPacks <= 8 ? 5
                                                                    : 4) kernel(const __grid_constant__ Call c) {
  constexpr int kEdge = (kPackBytes / static_cast<int>(sizeof(T)) - 1 + kLanes - 1) / kLanes;
  const Geometry& g = c.geometry;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int64_t index = static_cast<int64_t>(blockIdx.x) * (kWarpKernelThreads / kLanes) + threadIdx.x / kLanes;
  // Whole warps go on, so that shuffles find all their lanes.
  const bool exists = index < g.rows.count;
  const Offsets o = exists ? g.rows.at(index) : Offsets{};
  const Held<T, kPacks, kEdge, true, kLanes> row(
      static_cast<const T*>(c.input) + o.input, static_cast<T*>(c.output) + o.output,
      exists ? static_cast<int>(g.row.count) : 0, kPackBytes, lane, kLanes, lane, lane);
  const Sum total = warp_sum<kLanes>(row.tally().sum());
  if (c.denominator != nullptr && exists && lane == 0) write_denominator<T>(c, o.denominator, total);
  row.divide(total, c);
}

template <typename T, int kLanes, int kPacks>
cudaError_t launch(const Call& c, cudaStream_t stream) {
  constexpr int64_t kRows = kWarpKernelThreads / kLanes;
  const int64_t blocks = (c.geometry.rows.count + kRows - 1) / kRows;
  kernel<T, kLanes, kPacks><<<static_cast<unsigned>(blocks), kWarpKernelThreads, 0, stream>>>(c);
  return cudaGetLastError();
}

}  // namespace warp_kernel

template <DType D>
cudaError_t warp(const Call& call, const WarpPlan& plan, cudaStream_t stream) {
  using T = typename ElementOf<D>::type;
  using warp_kernel::launch;
  const auto is = [&](int lanes, int packs) { return plan.lanes == lanes && plan.packs == packs; };
  if (is(16, 16)) return launch<T, 16, 16>(call, stream);
  if (is(32, 16)) return launch<T, 32, 16>(call, stream);
  if constexpr (sizeof(T) == 2) {
    if (is(4, 8)) return launch<T, 4, 8>(call, stream);
    if (is(8, 8)) return launch<T, 8, 8>(call, stream);
    if (is(16, 8)) return launch<T, 16, 8>(call, stream);
    if (is(32, 8)) return launch<T, 32, 8>(call, stream);
  } else {
    if (is(8, 4)) return launch<T, 8, 4>(call, stream);
    if (is(8, 16)) return launch<T, 8, 16>(call, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace l1norm::cuda
