// Exact arithmetic shared by the CPU and the CUDA kernels: both give the same bits because both run this.
//
// A row's magnitudes are summed as hi + lo (two doubles, about 2^-100 relative), the divisor is kept as
// hi + lo, and each quotient is rounded once. Kernels divide on a fast path that proves its own rounding
// (two quotients that bracket the exact one round alike) and call divide_exactly() where the proof fails.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#if defined(__CUDACC__)
#define L1NORM_HD __host__ __device__ __forceinline__
#else
// Internal linkage: each instruction-set copy of a CPU kernel must keep its own instance.
#define L1NORM_HD [[maybe_unused]] static inline
#endif

namespace l1norm {

// ATen's at::Reduction values.
enum class Reduction : int64_t { kMean = 1, kSum = 2 };

// An unevaluated sum hi + lo. Terms are never negative, so hi alone carries NaN and infinity.
struct Sum {
  double hi = 0.0;
  double lo = 0.0;
};

// error is the exact rounding error of the sum it returns (Knuth's TwoSum).
L1NORM_HD double two_sum(double a, double b, double& error) {
  const double s = a + b;
  const double t = s - a;
  error = (a - (s - t)) + (b - t);
  return s;
}

L1NORM_HD void accumulate(Sum& sum, double x) {
  double error;
  sum.hi = two_sum(sum.hi, x, error);
  sum.lo += error;
}

L1NORM_HD Sum operator+(const Sum& a, const Sum& b) {
  Sum s;
  double error;
  s.hi = two_sum(a.hi, b.hi, error);
  s.lo = (a.lo + b.lo) + error;
  return s;
}

// What a row is divided by: (hi + lo) * 2^-shift, with hi the nearest double to hi + lo. shift is 0 but for a row of
// doubles so small that dividing their sum would lose bits.
struct Divisor {
  double hi;
  double lo;
  int shift;
};

L1NORM_HD bool is_finite(double x) { return x - x == 0.0; }

// What sums are divided by to make the divisor: the length for a mean, else 1; and its reciprocal.
struct Count {
  double value;
  double reciprocal;
  bool lone;  // rows have one element
};

inline Count make_count(Reduction reduction, int64_t length) {
  const double value = reduction == Reduction::kMean ? static_cast<double>(length) : 1.0;
  return {value, 1.0 / value, length == 1};
}

// max(sum / count, eps), for a row of Value; NaN stays NaN, as in clamp_min. On a GPU a whole block waits for this.
template <typename Value>
L1NORM_HD Divisor make_divisor(Sum sum, Count count, double eps) {
  constexpr double kScale = 0x1p256;
  int shift = 0;
  if (sizeof(Value) == sizeof(double) && sum.hi > 0.0 && sum.hi < 0x1p-900) {
    sum.hi *= kScale;
    sum.lo *= kScale;
    shift = 256;
  }
  Divisor d{sum.hi * count.reciprocal, 0.0, shift};
  if (is_finite(d.hi)) {  // not so too for a mean over no elements
    const double q = d.hi, left = fma(-q, count.value, sum.hi) + sum.lo;
    // As rounded as a division: what lies in the middle between two numbers must not seem to lie beside it.
    double rest = left * count.reciprocal;
    rest = fma(fma(-rest, count.value, left), count.reciprocal, rest);
    d.hi = q + rest;
    d.lo = rest - (d.hi - q);
  }
  const double least = shift == 0 ? eps : eps * kScale;
  if (d.hi < least || (d.hi == least && d.lo < 0.0)) d = {eps, 0.0, 0};
  return d;
}

// The neighbour of v with an odd last bit where v + rest is not representable: rounding that to a format
// at least two bits shorter is rounding v + rest itself (Boldo and Melquiond, "Emulation of FMA and
// correctly rounded sums: proved algorithms using rounding to odd", 2008). v is v + rest rounded to nearest.
L1NORM_HD double round_to_odd(double v, double rest) {
  uint64_t bits;
  memcpy(&bits, &v, sizeof v);
  if (rest != 0.0 && (bits & 1) == 0) bits = ((rest > 0.0) == (v > 0.0)) ? bits + 1 : bits - 1;
  memcpy(&v, &bits, sizeof v);
  return v;
}

// v rounded to odd as a float.
L1NORM_HD float round_to_odd_float(double v) {
  float f = static_cast<float>(v);
  const double rest = v - static_cast<double>(f);
  uint32_t bits;
  memcpy(&bits, &f, sizeof f);
  if (rest != 0.0 && is_finite(v) && (bits & 1) == 0) bits = ((rest > 0.0) == (v > 0.0)) ? bits + 1 : bits - 1;
  memcpy(&f, &bits, sizeof f);
  return f;
}

// x / m rounded to odd in double, for x that is exact in float (so that m.shift is 0): one more rounding, to float or
// by way of round_to_odd_float() to a half type, gives the exact quotient rounded once.
L1NORM_HD double quotient_to_odd(float x, Divisor m) {
  const double q = static_cast<double>(x) / m.hi;
  if (!is_finite(q) || q == 0.0) return q;
  return round_to_odd(q, fma(-q, m.lo, fma(-q, m.hi, static_cast<double>(x))));
}

// x / m rounded once to float.
L1NORM_HD float divide_exactly(float x, Divisor m) { return static_cast<float>(quotient_to_odd(x, m)); }

// x / m rounded once to double, whatever the exponents: the operands are scaled to [1, 2).
L1NORM_HD double divide_exactly(double x, Divisor m) {
  const double plain = x / m.hi;
  if (!is_finite(x) || !is_finite(m.hi) || x == 0.0 || m.hi == 0.0) return plain;
  const int ex = ilogb(x), em = ilogb(m.hi);
  const double xs = scalbn(x, -ex), hi = scalbn(m.hi, -em), lo = scalbn(m.lo, -em);
  const double q = xs / hi;
  const double correction = fma(-q, lo, fma(-q, hi, xs)) / hi;
  double rest;
  const double nearest = two_sum(q, correction, rest);
  const int e = ex - em + m.shift;
  const bool normal = ilogb(nearest) + e >= std::numeric_limits<double>::min_exponent - 1;
  return scalbn(normal ? nearest : round_to_odd(nearest, rest), e);
}

// The divisor itself, rounded once.
L1NORM_HD float rounded(Divisor m, float) { return static_cast<float>(round_to_odd(m.hi, m.lo)); }
L1NORM_HD double rounded(Divisor m, double) {
  const bool normal = m.shift == 0 || m.hi >= 0x1p-766;  // 2^-1022 once shifted
  return normal ? scalbn(m.hi, -m.shift) : scalbn(round_to_odd(m.hi, m.lo), -m.shift);
}

}  // namespace l1norm
