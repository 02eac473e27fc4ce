// The warp kernel, instantiated for one dtype by each warp_*.cu.
#pragma once

#include <algorithm>

#include "../accumulate.cuh"
#include "../quotient.cuh"
#include "../reduce.cuh"
#include "warp.h"

namespace l1norm::cuda {
namespace warp_kernel {

// kLanes lanes hold a row, kElements elements a lane.
template <typename T, int kLanes, int kElements>
__global__ void __launch_bounds__(kWarpKernelThreads, kElements > 16 ? 3 : 4) kernel(const __grid_constant__ Call c) {
  constexpr int kRows = kWarpKernelThreads / kLanes;
  const Geometry& g = c.geometry;
  const int lane = threadIdx.x % kLanes, length = static_cast<int>(g.row.count);
  const int64_t step = static_cast<int64_t>(gridDim.x) * kRows;
  // Whole blocks take part in every step, so that shuffles find all their lanes.
  for (int64_t base = static_cast<int64_t>(blockIdx.x) * kRows; base < g.rows.count; base += step) {
    const int64_t row = base + threadIdx.x / kLanes;
    const bool exists = row < g.rows.count;
    const Offsets o = exists ? g.rows.at(row) : Offsets{};
    const T* x = static_cast<const T*>(c.input) + o.input;
    T* y = static_cast<T*>(c.output) + o.output;
    T held[kElements];
#pragma unroll
    for (int k = 0; k < kElements; ++k) {
      const int i = lane + k * kLanes;
      held[k] = exists && i < length ? x[i] : T{};
    }
    Sum sum;
    constexpr int kTerm = kElements < 16 ? kElements : 16;  // elements that enter the sum as one term
#pragma unroll
    for (int k = 0; k < kElements; k += kTerm) {
      Wide<T> values[kTerm];
#pragma unroll
      for (int j = 0; j < kTerm; ++j) values[j] = widen(held[k + j]);
      add_magnitudes(sum, values);
    }
    const Divisor m = make_divisor<Wide<T>>(warp_sum<kLanes>(sum), c.count, c.eps);
    Quotient<T> quotient;
    quotient.set(m);
    if (c.denominator != nullptr && exists && lane == 0) {
      static_cast<Wide<T>*>(c.denominator)[o.denominator] = rounded(m, Wide<T>{});
    }
    unsigned unproven = 0;
#pragma unroll
    for (int k = 0; k < kElements; ++k) {
      const int i = lane + k * kLanes;
      const Wide<T> value[1] = {widen(held[k])};
      Pack<T, 1> pack;
      const bool proven = quotient.divide(value, pack) && quotient.usable;
      if (exists && i < length) {
        if (proven) {
          y[i] = pack.at[0];
        } else {
          unproven |= 1u << k;
        }
      }
    }
    // Read again, after the rest is done with, so that this rare path takes no registers from the common one.
    while (unproven != 0) {
      const int i = lane + (__ffs(static_cast<int>(unproven)) - 1) * kLanes;
      unproven &= unproven - 1;
      y[i] = exact_quotient<T>(widen(x[i]), m);
    }
  }
}

template <typename T, int kLanes, int kElements>
cudaError_t launch(const Call& c, cudaStream_t stream) {
  constexpr int64_t kRows = kWarpKernelThreads / kLanes;
  const int64_t blocks = std::min<int64_t>((c.geometry.rows.count + kRows - 1) / kRows, INT32_MAX);
  kernel<T, kLanes, kElements><<<static_cast<unsigned>(blocks), kWarpKernelThreads, 0, stream>>>(c);
  return cudaGetLastError();
}

}  // namespace warp_kernel

template <DType D>
cudaError_t warp(const Call& call, const WarpPlan& plan, cudaStream_t stream) {
  using T = typename ElementOf<D>::type;
  using warp_kernel::launch;
  switch (plan.lanes * 100 + plan.elements) {
    case 104:
      return launch<T, 1, 4>(call, stream);
    case 204:
      return launch<T, 2, 4>(call, stream);
    case 404:
      return launch<T, 4, 4>(call, stream);
    case 804:
      return launch<T, 8, 4>(call, stream);
    case 808:
      return launch<T, 8, 8>(call, stream);
    case 1608:
      return launch<T, 16, 8>(call, stream);
    case 3208:
      return launch<T, 32, 8>(call, stream);
    case 3216:
      return launch<T, 32, 16>(call, stream);
    case 3232:
      return launch<T, 32, 32>(call, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace l1norm::cuda
