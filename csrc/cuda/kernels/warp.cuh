// The warp kernel, instantiated for one dtype by each warp_*.cu.
#pragma once

#include "../gradient.cuh"
#include "../reduce.cuh"
#include "warp.h"

namespace l1norm::cuda {
namespace warp_kernel {

// Blocks on a multiprocessor that registers are shared between.
constexpr int warp_kernel_blocks(bool backward, int packs) {
  if (backward) return packs <= 4 ? 5 : 3;
  return packs <= 4 ? 6 : packs <= 8 ? 5 : 4;
}

// kLanes lanes hold a row, kPacks packs a lane.
template <typename T, bool kBackward, int kLanes, int kPacks>
__global__ void __launch_bounds__(kWarpKernelThreads, warp_kernel_blocks(kBackward, kPacks))
    kernel(const __grid_constant__ Call c) {
  constexpr int kEdge = (kPackBytes / static_cast<int>(sizeof(T)) - 1 + kLanes - 1) / kLanes;
  const Geometry& g = c.geometry;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int64_t index = static_cast<int64_t>(blockIdx.x) * (kWarpKernelThreads / kLanes) + threadIdx.x / kLanes;
  // Whole warps go on, so that shuffles find all their lanes.
  const bool exists = index < g.rows.count;
  const Offsets o = g.rows.at(exists ? index : 0);
  using Row = RowOf<T, kBackward, kPacks, kEdge, true, kLanes>;
  const int length = exists ? static_cast<int>(g.row.count) : 0;
  if constexpr (kBackward) {
    // Read ahead of the row and not after its sum: 0.85 to 1.0 of torch.add at 127 float32.
    const RowDivisor<T> divisor(c, o.denominator);
    const Row row(c, o, 0, length, kPackBytes, lane, kLanes, lane, lane);
    const GradientScale scale = divisor.scale(c);
    row.finish(warp_sum<kLanes>(row.sum(c)), scale);
  } else {
    const Row row(c, o, 0, length, kPackBytes, lane, kLanes, lane, lane);
    Least<T> least;
    const Sum total = warp_sum<kLanes>(sum_of<Tally<T>>(least, [&](auto& tally) { row.add(tally, least); }));
    if (c.denominator != nullptr && exists && lane == 0) write_denominator<T>(c, o.denominator, total);
    row.finish(total, c, least);
  }
}

template <typename T, bool kBackward, int kLanes, int kPacks>
cudaError_t launch(const Call& c, cudaStream_t stream) {
  constexpr int64_t kRows = kWarpKernelThreads / kLanes;
  const int64_t blocks = (c.geometry.rows.count + kRows - 1) / kRows;
  kernel<T, kBackward, kLanes, kPacks><<<static_cast<unsigned>(blocks), kWarpKernelThreads, 0, stream>>>(c);
  return cudaGetLastError();
}

}  // namespace warp_kernel

template <DType D>
cudaError_t warp(const Call& call, const WarpPlan& plan, cudaStream_t stream) {
  using T = typename ElementOf<D>::type;
  using warp_kernel::launch;
  const auto is = [&](int lanes, int packs) { return plan.lanes == lanes && plan.packs == packs; };
  if (call.grad != nullptr) {
    if (is(8, 4)) return launch<T, true, 8, 4>(call, stream);
    if (is(16, 4)) return launch<T, true, 16, 4>(call, stream);
    if (is(32, 4)) return launch<T, true, 32, 4>(call, stream);
    if (is(32, 8)) return launch<T, true, 32, 8>(call, stream);
    return cudaErrorInvalidValue;
  }
  if (is(16, 16)) return launch<T, false, 16, 16>(call, stream);
  if (is(32, 16)) return launch<T, false, 32, 16>(call, stream);
  if constexpr (sizeof(T) == 2) {
    if (is(4, 8)) return launch<T, false, 4, 8>(call, stream);
    if (is(8, 8)) return launch<T, false, 8, 8>(call, stream);
    if (is(16, 8)) return launch<T, false, 16, 8>(call, stream);
    if (is(32, 8)) return launch<T, false, 32, 8>(call, stream);
  } else {
    if (is(8, 4)) return launch<T, false, 8, 4>(call, stream);
    if (is(8, 16)) return launch<T, false, 8, 16>(call, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace l1norm::cuda
