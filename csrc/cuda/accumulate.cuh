// A thread's share of a row's sum of magnitudes.
#pragma once

#include "../exact.h"
#include "pack.cuh"

namespace l1norm::cuda {

// The sum of N values' magnitudes, N a power of two, as a tree.
template <int N>
__device__ __forceinline__ double magnitude_tree(const float* x) {
  if constexpr (N == 1) {
    return static_cast<double>(fabsf(x[0]));
  } else {
    return magnitude_tree<N / 2>(x) + magnitude_tree<N / 2>(x + N / 2);
  }
}

// Adds the magnitudes of N values, a power of two. Values that are exact in float are first added to each other in
// double, which loses nothing unless their exponents lie more than 29 apart, so one compensated addition serves them
// all.
template <typename Value, int N>
__device__ __forceinline__ void add_magnitudes(Sum& sum, const Value (&x)[N]) {
  if constexpr (std::is_same_v<Value, double>) {
#pragma unroll
    for (int k = 0; k < N; ++k) accumulate(sum, fabs(x[k]));
  } else {
    accumulate(sum, magnitude_tree<N>(x));
  }
}

}  // namespace l1norm::cuda
