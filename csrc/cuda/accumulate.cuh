// A thread's share of a row's sum of magnitudes.
#pragma once

#include "../exact.h"
#include "pack.cuh"

namespace l1norm::cuda {

// Adds the magnitudes of a pack. Values that are exact in float are first added to each other in double, which loses
// nothing unless their exponents lie more than 29 apart, so one compensated addition serves the pack.
template <typename Value, int N>
__device__ __forceinline__ void add_magnitudes(Sum& sum, const Value (&x)[N]) {
  if constexpr (std::is_same_v<Value, double>) {
#pragma unroll
    for (int k = 0; k < N; ++k) accumulate(sum, fabs(x[k]));
  } else {
    double partial[N];
#pragma unroll
    for (int k = 0; k < N; ++k) partial[k] = static_cast<double>(fabsf(x[k]));
#pragma unroll
    for (int width = N / 2; width > 0; width /= 2) {
#pragma unroll
      for (int k = 0; k < width; ++k) partial[k] += partial[k + width];
    }
    accumulate(sum, partial[0]);
  }
}

}  // namespace l1norm::cuda
