// Quotients by a divisor that a whole row shares, without a division.
//
// Each divide() proves its own rounding: two approximations that bracket the exact quotient round alike. Where they
// do not (about one element in 2^17 for float32, 2^15 for bfloat16, 2^12 for float16), or where an operand is outside
// the range that the proof covers, it answers false, and the caller takes exact_quotient(). For a divisor near the ends
// of the range, which leaves no room for the proof, it always does. For a zero, infinite or NaN one the quotients are
// products with its reciprocal, which is exact.
//
// least: of elements that x is among; without it, of x.
#pragma once

#include "../exact.h"
#include "least.cuh"
#include "pack.cuh"

namespace l1norm::cuda {

// Within 2^-23 of 1 / x, for a normal x whose reciprocal is normal.
__device__ __forceinline__ float approximate_reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Of divisors that nearly all are, without branches, for those whose elements are too few to repay one. `usable` tells
// whether it was: it is all that may be asked of one that was not.
struct Plain {};

// A divisor as two floats, within 2^-48 of it.
struct FloatDivisor {
  float hi, lo;
  bool usable;
  bool is_special;  // zero, infinite or NaN

  // Within 2^-51 of max(sum / count, eps); exact_quotient() has the rest.
  __device__ __forceinline__ FloatDivisor(const Sum& sum, const Count& count, double eps) {
    double m = split(sum, count, eps);
    usable = hi > 0x1p-100f && hi < 0x1p100f;
    is_special = false;
    if (usable) return;
    if (!is_finite(sum.hi)) m = sum.hi;  // sum.lo says nothing then
    is_special = usable = m == 0.0 || !is_finite(m);
    hi = static_cast<float>(m);
  }

  // As above, without a branch. A zero one is usable as it is: its approximate reciprocal is infinite, and what follows
  // from that makes quotients NaN.
  __device__ __forceinline__ FloatDivisor(const Sum& sum, const Count& count, double eps, Plain) {
    split(sum, count, eps);
    const uint32_t bits = __float_as_uint(hi), least = __float_as_uint(0x1p-100f), most = __float_as_uint(0x1p100f);
    usable = (bits - 1u >= least) & (bits < most);  // zero ranks above everything
    is_special = false;
  }

  // Of a special divisor.
  __device__ __forceinline__ float reciprocal() const { return hi == 0.0f ? INFINITY : hi > 0.0f ? 0.0f : hi; }

 private:
  __device__ __forceinline__ double split(const Sum& sum, const Count& count, double eps) {
    double m = (sum.hi + sum.lo) * count.reciprocal;
    if (m < eps) m = eps;
    // Its first 24 bits: a subtraction in place of a conversion back.
    const double first = __hiloint2double(__double2hiint(m), __double2loint(m) & ~((1 << 29) - 1));
    hi = static_cast<float>(first);
    lo = static_cast<float>(m - first);
    return m;
  }
};

template <typename T>
struct Quotient;

// One Newton step from x times an approximate inverse. Near a rounding boundary the correction is at least 2^-25 of
// the quotient and within 2^-20 of the exact one, so scaling it by 1 +- 2^-18 brackets the quotient.
template <>
struct Quotient<float> {
  float hi, lo, inverse, above, below;
  uint32_t limit;
  bool usable;

  Quotient() = default;
  __device__ __forceinline__ Quotient(const Sum& sum, const Count& count, double eps) {
    const FloatDivisor m(sum, count, eps);
    set(m);
    if (m.is_special) {
      inverse = m.reciprocal();
      hi = lo = above = below = -0.0f;
      limit = 0;
    }
  }
  __device__ __forceinline__ Quotient(const Sum& sum, const Count& count, double eps, Plain plain) {
    set(FloatDivisor(sum, count, eps, plain));
  }

  // Whether it is for elements of which that is the least; from then on divide() need not ask.
  __device__ __forceinline__ bool settle_for(const Least<float>& least) {
    const bool suits = usable & (least.bits >= limit);
    usable = true;
    limit = 0;
    return suits;
  }

  template <int N>
  __device__ __forceinline__ bool divide(const Pack<float, N>& x, Pack<float, N>& y, const Least<float>& least) const {
    uint32_t differ = 0;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const float q = x[k] * inverse;
      // Of this sign, so that a zero keeps its own.
      const float excess = fmaf(q, lo, fmaf(q, hi, -x[k]));
      y.units[k] = fmaf(excess, above, q);
      differ |= __float_as_uint(y.units[k]) ^ __float_as_uint(fmaf(excess, below, q));
    }
    return usable && differ == 0 && least.bits >= limit;  // quotients of zeros are exact
  }

  template <int N>
  __device__ __forceinline__ bool divide(const Pack<float, N>& x, Pack<float, N>& y) const {
    Least<float> least;
    least.note(x);
    return divide(x, y, least);
  }

 private:
  __device__ __forceinline__ void set(const FloatDivisor& m) {
    hi = m.hi;
    lo = m.lo;
    usable = m.usable;
    inverse = approximate_reciprocal(hi);
    above = inverse * -(1.0f + 0x1p-18f);
    below = inverse * -(1.0f - 0x1p-18f);
    // From it on remainders lose nothing and quotients are normal.
    limit = 2u * __float_as_uint(fmaxf(0x1p-101f, hi * 0x1p-125f)) - 1u;
  }
};

// Floats that a sum of magnitudes lies between.
struct Bounds {
  float low, high;

  __device__ __forceinline__ void add(float magnitude) {
    low = __fadd_rd(low, magnitude);
    high = __fadd_ru(high, magnitude);
  }
  __device__ __forceinline__ bool is_exact() const { return low == high; }
};

// Of kCount magnitudes; magnitude(k): each.
template <int kCount, typename Magnitude>
__device__ __forceinline__ Bounds bounds_of(const Magnitude& magnitude) {
  Bounds bounds{magnitude(0), magnitude(0)};
#pragma unroll
  for (int k = 1; k < kCount; ++k) bounds.add(magnitude(k));
  return bounds;
}

// A count that a float has, and the sum that eps stands for, which is above `least` by less than 2^-20 of it: made once
// for many rows.
struct FloatCount {
  float value, least;

  __device__ __forceinline__ FloatCount(const Count& count, double eps)
      : value(static_cast<float>(count.value)), least(static_cast<float>(eps * count.value) * (1.0f - 0x1p-22f)) {
    asm("" : "+f"(value), "+f"(least));  // else conversions may be done anew a row
  }
};

// Products of the magnitude with bounds of the inverse, rounded outwards: they bracket the quotient whatever its size.
template <typename T>
struct HalfQuotient {
  float above, below;
  bool usable;

  HalfQuotient() = default;
  __device__ __forceinline__ HalfQuotient(const Sum& sum, const Count& count, double eps) {
    const FloatDivisor m(sum, count, eps);
    set(m);
    if (m.is_special) above = below = m.reciprocal();
  }
  // Of the sum's first 24 bits, which nearly all sums of so few halves have no more than. What comes after them, and
  // what a double has no room for, widens the bounds. For counts that a float has. What eps stands for takes the place
  // of a sum below it; of one beside it, nobody asks which is the larger.
  __device__ __forceinline__ HalfQuotient(const Sum& sum, const Count& count, double eps, Plain) {
    const double least = eps * count.value;
    const uint32_t least_upper = upper_word(least);
    uint32_t upper = upper_word(sum.hi);
    const bool clamped = upper < least_upper, beside = upper == least_upper;
    const uint32_t lower = static_cast<uint32_t>(__double2loint(clamped ? least : sum.hi));
    upper = max(upper, least_upper);
    usable = !beside & (upper >= (1023u - 100u) << 20) & (upper < (1023u + 100u) << 20);
    // A double's bits as a float's: an exponent of 8 bits that counts from 127.
    const float first = __uint_as_float((__funnelshift_l(lower, upper, 3) ^ 0x40000000u) & 0x7fffffffu);
    const float inverse = approximate_reciprocal(first), rest = fmaf(-inverse, first, 1.0f);
    const float left = (lower & 0x1fffffffu) == 0 ? -0x1p-40f : -0x1p-23f - 0x1p-40f;
    set(inverse, rest + 0x1p-40f, rest + left, static_cast<float>(count.value));
  }
  // Of a sum in floats, of fewer elements yet.
  __device__ __forceinline__ HalfQuotient(const Bounds& sum, const FloatCount& count) {
    const float low = fmaxf(sum.low, count.least), high = fmaxf(sum.high, count.least * (1.0f + 0x1p-20f));
    usable = low > 0x1p-100f && high < 0x1p100f && sum.high == sum.high;
    const float inverse = approximate_reciprocal(low);
    // The square of the upper bound's rest does no harm.
    set(inverse, fmaf(-inverse, low, 1.0f) + 0x1p-40f, fmaf(-inverse, high, 1.0f) - 0x1p-40f, count.value);
  }

  __device__ __forceinline__ bool settle_for(const Least<T>&) {
    const bool suits = usable;
    usable = true;
    return suits;
  }

  template <int N>
  __device__ __forceinline__ bool divide(const Pack<T, N>& x, Pack<T, N>& y, const Least<T>& = {}) const {
    if constexpr (N == 1) {
      const Pack<T, 2> pair = make_pack<T, 2>([&](int k) { return k == 0 ? x[0] : T{}; });
      Pack<T, 2> quotients;
      const bool proven = divide(pair, quotients);
      y.units[0] = quotients[0];
      return proven;
    } else {
      uint32_t differ = 0;
#pragma unroll
      for (int k = 0; k < N / 2; ++k) differ |= divide_pair(*this, *this, x.units[k], y.units[k]);
      return usable && differ == 0;
    }
  }

  // Two neighbours, by a divisor each; zero where both are proven, if they are usable.
  static __device__ __forceinline__ uint32_t divide_pair(const HalfQuotient& a, const HalfQuotient& b, uint32_t x,
                                                         uint32_t& y) {
    const float first = fabsf(widen_first<T>(x)), second = fabsf(widen_second<T>(x));
    const uint32_t high = narrow_pair<T>(__fmul_ru(first, a.above), __fmul_ru(second, b.above));
    y = high | (x & 0x80008000u);
    return high ^ narrow_pair<T>(__fmul_rd(first, a.below), __fmul_rd(second, b.below));
  }

 private:
  __device__ __forceinline__ void set(const FloatDivisor& m) {
    usable = m.usable;
    const float inverse = approximate_reciprocal(m.hi);
    // 1 / m = inverse / (1 - rest), and rest is below 2^-21.
    const float rest = fmaf(-inverse, m.lo, fmaf(-inverse, m.hi, 1.0f));
    set(inverse, rest + 0x1p-40f, rest - 0x1p-40f);
  }

  // Bounds of what 1 / (1 - rest) is beyond 1.
  __device__ __forceinline__ void set(float inverse, float most, float least) {
    above = __fmaf_ru(inverse, most, inverse);
    below = __fmaf_rd(inverse, least, inverse);
  }
  // The same of a sum, which is the divisor times the count.
  __device__ __forceinline__ void set(float inverse, float most, float least, float count) {
    set(inverse, most, least);
    above = __fmul_ru(above, count);
    below = __fmul_rd(below, count);
  }
};
template <>
struct Quotient<__half> : HalfQuotient<__half> {
  using HalfQuotient::HalfQuotient;
};
template <>
struct Quotient<__nv_bfloat16> : HalfQuotient<__nv_bfloat16> {
  using HalfQuotient::HalfQuotient;
};

// One Newton step with the divisor in two doubles: within 2^-50 of a unit in the last place of the exact quotient
// before it is rounded, which suffices but for ties. Those are told from the bits of sum and element.
template <>
struct Quotient<double> {
  double hi, lo, inverse;
  uint32_t limit, tie_bits;

  Quotient() = default;
  __device__ __forceinline__ Quotient(const Sum& sum, const Count& count, double eps) {
    const Divisor m = make_divisor<double>(sum, count, eps);
    hi = m.hi;
    lo = m.lo;
    inverse = near_reciprocal(m.hi);
    // Of what has a larger upper word remainders lose nothing and quotients are normal.
    limit = 2u * upper_word(fmax(0x1p-960, m.hi * 0x1p-1020)) + 1u;
    const auto bits = static_cast<uint64_t>(__double_as_longlong(sum.hi + sum.lo));
    tie_bits = (bits & count.sum_bits) == 0 ? count.element_bits : 0;
    if (tie_bits == ~0u) limit = ~0u;  // zeros alone are told
    if (m.hi > 0x1p-900 && m.hi < 0x1p900 && m.shift == 0) return;
    const bool is_special = m.hi == 0.0 || !is_finite(m.hi);
    inverse = !is_special ? 1.0 : m.hi == 0.0 ? INFINITY : m.hi > 0.0 ? 0.0 : m.hi;
    limit = is_special ? 0 : ~0u;  // zeros alone, of others
    hi = lo = 0.0;
    tie_bits = 0;
  }
  __device__ __forceinline__ Quotient(const Sum& sum, const Count& count, double eps, Plain)
      : Quotient(sum, count, eps) {}

  // A quotient's own check is cheaper than a way for those that are not plain.
  __device__ __forceinline__ bool settle_for(const Least<double>&) const { return true; }

  template <int N>
  __device__ __forceinline__ bool divide(const Pack<double, N>& x, Pack<double, N>& y,
                                         const Least<double>& = {}) const {
    uint32_t least = ~0u, set = 0;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const double q = x[k] * inverse;
      // Of this sign, so that a zero keeps its own.
      y.units[k] = fma(fma(q, lo, fma(q, hi, -x[k])), -inverse, q);
      const uint32_t lower = static_cast<uint32_t>(__double2loint(x[k]));
      set |= lower & tie_bits;
      // Zeros rank above everything: their quotients are exact.
      least = min(least, (2u * upper_word(x[k]) | min(lower, 1u)) - 1u);
    }
    return set == 0 && least >= limit;
  }
};

}  // namespace l1norm::cuda
