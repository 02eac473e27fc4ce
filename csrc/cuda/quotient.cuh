// Quotients by a divisor that a whole row shares, without a division.
//
// Each divide() proves its own rounding: two approximations that bracket the exact quotient round alike. Where they
// do not (about one element in 2^19 for float32, 2^10 for half types), or where an operand is outside the range that
// the proof covers, it answers false, and the caller takes divide_exactly(). usable is false for a divisor that leaves
// no room for the proof: zero, infinite, NaN, or near the ends of the range.
#pragma once

#include "../exact.h"
#include "pack.cuh"

namespace l1norm::cuda {

// The bits of |x| less one: zeros rank above everything, so the least of a pack is that of its smallest number but
// zero.
__device__ __forceinline__ uint32_t rank_but_zero(float x) { return (__float_as_uint(x) & 0x7fffffffu) - 1u; }

// What rank_but_zero() must not be below for |x| >= smallest.
__device__ __forceinline__ uint32_t tiny_limit(float smallest) {
  const uint32_t bits = __float_as_uint(smallest);
  return bits == 0 ? 0 : bits - 1;
}

template <typename T>
struct Quotient;

// One Newton step from x * inverse, with the divisor in two floats. The correction is within 2^-22 of the exact one
// wherever a rounding boundary is near, so scaling it by 1 +- 2^-20 brackets the quotient.
template <>
struct Quotient<float> {
  float hi, lo, inverse, above, below;
  uint32_t limit;
  bool usable;

  __device__ __forceinline__ void set(Divisor m) {
    usable = m.hi > 0x1p-100 && m.hi < 0x1p100;
    hi = static_cast<float>(m.hi);
    lo = static_cast<float>((m.hi - static_cast<double>(hi)) + m.lo);
    inverse = 1.0f / hi;
    above = inverse * (1.0f + 0x1p-20f);
    below = inverse * (1.0f - 0x1p-20f);
    // Above it remainders are exact and quotients normal.
    limit = tiny_limit(fmaxf(0x1p-101f, hi * 0x1p-125f));
  }

  template <int N>
  __device__ __forceinline__ bool divide(const float (&x)[N], Pack<float, N>& y) const {
    uint32_t least = ~0u, differ = 0;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const float q = x[k] * inverse;
      const float r = fmaf(-q, lo, fmaf(-q, hi, x[k]));
      const float high = fmaf(r, above, q);
      differ |= __float_as_uint(high) ^ __float_as_uint(fmaf(r, below, q));
      least = min(least, rank_but_zero(x[k]));
      y.at[k] = copysignf(high, x[k]);  // -0 / m is -0, which the sum with the remainder loses
    }
    return differ == 0 && least >= limit;
  }
};

// Products with the inverse, scaled by 1 +- 1.5 * 2^-22: more than the four roundings, of divisor, inverse, scaled
// inverse and product, can amount to.
template <typename T>
struct HalfQuotient {
  float above, below;
  uint32_t limit;
  bool usable;

  __device__ __forceinline__ void set(Divisor m) {
    usable = m.hi > 0x1p-100 && m.hi < 0x1p100;
    const float inverse = 1.0f / static_cast<float>(m.hi);
    above = inverse * (1.0f + 0x1.8p-22f);
    below = inverse * (1.0f - 0x1.8p-22f);
    // Products must be normal floats. Those of float16 numbers always are.
    limit = std::is_same_v<T, __half> ? 0 : tiny_limit(static_cast<float>(m.hi * 0x1p-120));
  }

  template <int N>
  __device__ __forceinline__ bool divide(const float (&x)[N], Pack<T, N>& y) const {
    uint32_t differ = 0;
    if constexpr (N == 1) {
      y.at[0] = narrow<T>(x[0] * above);
      differ = bits(y.at[0]) ^ bits(narrow<T>(x[0] * below));
    } else {
#pragma unroll
      for (int k = 0; k < N; k += 2) {  // two conversions are one instruction
        const uint32_t high = narrow_pair<T>(x[k] * above, x[k + 1] * above);
        differ |= high ^ narrow_pair<T>(x[k] * below, x[k + 1] * below);
        memcpy(&y.at[k], &high, sizeof high);
      }
    }
    uint32_t least = ~0u;
    if constexpr (!std::is_same_v<T, __half>) {
#pragma unroll
      for (int k = 0; k < N; ++k) least = min(least, rank_but_zero(x[k]));
    }
    return differ == 0 && least >= limit;
  }

  static __device__ __forceinline__ unsigned short bits(__half x) { return __half_as_ushort(x); }
  static __device__ __forceinline__ unsigned short bits(__nv_bfloat16 x) { return __bfloat16_as_ushort(x); }
};
template <>
struct Quotient<__half> : HalfQuotient<__half> {};
template <>
struct Quotient<__nv_bfloat16> : HalfQuotient<__nv_bfloat16> {};

// One Newton step with the divisor in two doubles: within 2^-52 ulp of the exact quotient before it is rounded.
template <>
struct Quotient<double> {
  double hi, lo, inverse, smallest;
  bool usable;

  __device__ __forceinline__ void set(Divisor m) {
    usable = m.hi > 0x1p-900 && m.hi < 0x1p900 && m.shift == 0;
    hi = m.hi;
    lo = m.lo;
    inverse = 1.0 / m.hi;
    smallest = fmax(0x1p-960, m.hi * 0x1p-1020);
  }

  template <int N>
  __device__ __forceinline__ bool divide(const double (&x)[N], Pack<double, N>& y) const {
    bool proven = true;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const double q = x[k] * inverse;
      const double r = fma(-q, lo, fma(-q, hi, x[k]));
      y.at[k] = copysign(fma(r, inverse, q), x[k]);
      proven &= fabs(x[k]) >= smallest || x[k] == 0.0;
    }
    return proven;
  }
};

// x / m rounded once to T, for any x and m.
template <typename T>
__device__ __forceinline__ T exact_quotient(Wide<T> x, Divisor m) {
  if constexpr (sizeof(T) == 2) {
    return narrow<T>(round_to_odd_float(quotient_to_odd(x, m)));
  } else {
    return divide_exactly(x, m);
  }
}

// One quotient, by the fast path where that proves it.
template <typename T>
__device__ __forceinline__ T divide_one(const Quotient<T>& quotient, const Wide<T> (&x)[1], const Divisor& m) {
  Pack<T, 1> y;
  return quotient.usable && quotient.divide(x, y) ? y.at[0] : exact_quotient<T>(x[0], m);
}

}  // namespace l1norm::cuda
