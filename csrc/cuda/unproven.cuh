// Quotients that quotient.cuh does not prove, by exact arithmetic.
#pragma once

#include "quotient.cuh"

namespace l1norm::cuda {

// x / m rounded once to T, for any x and m.
template <typename T>
__device__ __forceinline__ T exact_quotient(T x, const Divisor& m) {
  if constexpr (sizeof(T) == 2) {
    using Format = std::conditional_t<std::is_same_v<T, __half>, Float16Format, BFloat16Format>;
    return narrow<T>(static_cast<float>(divide_exactly<Format>(widen(x), m)));
  } else {
    return divide_exactly(x, m);
  }
}

// Whether what is not proven is better read again than kept in registers: for float64 it is next to nothing.
template <typename T>
constexpr bool kReadAgain = sizeof(T) == 8;

// The quotient of one element whose pack was not proven.
template <typename T>
__device__ __forceinline__ T divide_again(T x, const Quotient<T>& quotient, const Divisor& m) {
  const Pack<T, 1> element{{x}};
  Pack<T, 1> y;
  return quotient.divide(element, y) ? y[0] : exact_quotient(x, m);
}

// A bit for each of a pack's elements whose quotient is not proven. quotient_of(k): the one that divides the k-th.
template <typename T, int N, typename QuotientOf>
__device__ __forceinline__ uint32_t unproven_halves(const Pack<T, N>& pack, const QuotientOf& quotient_of) {
  static_assert(Pack<T, N>::kPairs);
  uint32_t unproven = 0;
#pragma unroll
  for (int k = 0; k < N; k += 2) {
    const Quotient<T>&first = quotient_of(k), &second = quotient_of(k + 1);
    uint32_t quotients;
    const uint32_t differ = Quotient<T>::divide_pair(first, second, pack.units[k / 2], quotients);
    if (!first.usable || (differ & 0xffffu) != 0) unproven |= 1u << k;
    if (!second.usable || (differ >> 16) != 0) unproven |= 2u << k;
  }
  return unproven;
}

// The quotients of a pack that was not proven. Halves that were proven are at y: the others are found side by side and
// then taken one by one, so that lanes of a warp, each with another one, do the same.
template <typename T, int N>
__device__ __forceinline__ void divide_each_again(const Pack<T, N>& pack, T* y, const Quotient<T>& quotient,
                                                  const Divisor& m) {
  if constexpr (Pack<T, N>::kPairs) {
    uint32_t unproven = unproven_halves(pack, [&](int) -> const Quotient<T>& { return quotient; });
#pragma unroll 1
    for (; unproven != 0; unproven &= unproven - 1) {
      const int k = __ffs(static_cast<int>(unproven)) - 1;
      y[k] = exact_quotient(element_of(pack, k)[0], m);
    }
  } else {
    // Not by way of element_of(): a kernel of doubles would spill on compute capability 10.0.
#pragma unroll 1
    for (int k = 0; k < N; ++k) {
      T element = pack.units[0];
#pragma unroll
      for (int u = 1; u < N; ++u) element = u == k ? pack.units[u] : element;
      y[k] = divide_again(element, quotient, m);
    }
  }
}

}  // namespace l1norm::cuda
