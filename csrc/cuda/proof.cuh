// Proofs of the quotients of neighbours, each by a divisor of its own, and of several such neighbours at once.
//
// least: as quotient.cuh takes it.
#pragma once

#include <numeric>

#include "quotient.cuh"

namespace l1norm::cuda {

// Neighbours of rows of their own: one element, or a pair of halves.
template <typename T, int N>
__device__ __forceinline__ bool divide_beside(const Quotient<T> (&quotients)[N], const Pack<T, N>& x, Pack<T, N>& y,
                                              const Least<T>& least) {
  if constexpr (N == 1) {
    return quotients[0].divide(x, y, least);
  } else {
    static_assert(N == 2 && Pack<T, N>::kPairs);
    const uint32_t differ = Quotient<T>::divide_pair(quotients[0], quotients[1], x.units[0], y.units[0]);
    return quotients[0].usable && quotients[1].usable && differ == 0;
  }
}

// Proves quotients of such neighbours together.
template <typename T>
class Proof {
 public:
  static constexpr int kMost = 1;  // of the same rows

  template <int N>
  __device__ __forceinline__ void divide(const Quotient<T> (&quotients)[N], const Pack<T, N>& x, Pack<T, N>& y,
                                         const Least<T>& least) {
    holds_ &= divide_beside(quotients, x, y, least);
  }

  __device__ __forceinline__ bool holds() const { return holds_; }

 private:
  bool holds_ = true;
};

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
// By one product each, rounded towards zero, with the lower bound of an inverse that is the next float below it at the
// most, or a little farther (2^-39): as x has 8 bits, the exact quotient is less than three floats farther from zero.
// It rounds to bfloat16 as the product does, unless a tie, a float that ends in 0x8000, lies between them or is the
// product. Not for divisors that are Plain or Bounds, whose bounds lie farther apart.
template <>
class Proof<__nv_bfloat16> {
  using T = __nv_bfloat16;

 public:
  static constexpr int kMost = 4;

  __device__ __forceinline__ void divide(const Quotient<T> (&quotients)[2], const Pack<T, 2>& x, Pack<T, 2>& y,
                                         const Least<T>&) {
    const float first = __fmul_rz(widen_first<T>(x.units[0]), quotients[0].below);
    const float second = __fmul_rz(widen_second<T>(x.units[0]), quotients[1].below);
    y.units[0] = narrow_pair<T>(first, second);
    const uint32_t ends = __byte_perm(__float_as_uint(first), __float_as_uint(second), 0x5410);
    nearest_ = __viaddmin_s16x2(ends, kApart * 0x10001u, nearest_);
    usable_ &= quotients[0].usable && quotients[1].usable;
  }

  __device__ __forceinline__ bool holds() const { return usable_ && nearest_ == kFirstProven; }

 private:
  static constexpr uint32_t kApart = 2;  // floats from a product to a tie
  // Of both halves, signed, where products' ends that are proven begin, once that is added.
  static constexpr uint32_t kFirstProven = (0x8000u + kApart + 1) * 0x10001u;
  uint32_t nearest_ = kFirstProven;
  bool usable_ = true;
};
#endif

// The quotients of neighbours of the same rows, proven together; where they are not, false, and neighbours as they are.
// x_of(i): the i-th ones. kMoves: registers suffice for predicated moves in the place of selects, which are slower.
template <bool kMoves, int kCount, typename T, int N, typename XOf>
__device__ __forceinline__ bool divide_together(const Quotient<T> (&quotients)[N], const XOf& x_of,
                                                const Least<T>& least, Pack<T, N> (&y)[kCount]) {
  Proof<T> proof;
#pragma unroll
  for (int i = 0; i < kCount; ++i) proof.divide(quotients, x_of(i), y[i], least);
  if (proof.holds()) return true;
  if constexpr (kMoves) asm volatile("");
#pragma unroll
  for (int i = 0; i < kCount; ++i) y[i] = x_of(i);
  return false;
}

// Neighbours of the same rows that are proven together, where there are `count` of them.
template <typename T>
constexpr int proven_together(int count) {
  return std::gcd(count, Proof<T>::kMost);
}

}  // namespace l1norm::cuda
