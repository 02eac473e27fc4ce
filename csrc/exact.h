// Exact arithmetic shared by the CPU and the CUDA kernels: both give the same bits because both run this.
//
// A row's magnitudes are summed as hi + lo (two doubles, about 2^-100 relative), the divisor is kept as
// hi + lo, and each quotient is rounded once. Kernels divide on a fast path that proves its own rounding
// (two quotients that bracket the exact one round alike) and call divide_exactly() where the proof fails.
#pragma once

#include <algorithm>
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

L1NORM_HD uint64_t bits_of_double(double x) {
  uint64_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

L1NORM_HD double double_of_bits(uint64_t bits) {
  double x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

// What sums are divided by to make the divisor: the length for a mean, else 1; and its reciprocal.
struct Count {
  double value;
  double reciprocal;
  bool lone;  // rows have one element
  // A quotient of doubles lies in the middle between two of them only where the sum's odd factor is less than the
  // count's, and where the element's times the count's has more bits than a double. Neither is so if one of these bits
  // of the sum's significand is set, or if none of these of the element's is, unless they are all of its lower word.
  uint64_t sum_bits;
  uint32_t element_bits;
};

inline Count make_count(Reduction reduction, int64_t length) {
  const bool mean = reduction == Reduction::kMean;
  const double value = mean ? static_cast<double>(length) : 1.0;
  const uint64_t whole = mean && length > 0 ? static_cast<uint64_t>(length) : 1, odd = whole / (whole & (~whole + 1));
  const int bits = odd == 1 ? 0 : std::min(std::ilogb(static_cast<double>(odd)) + 1, 53);  // or one more
  return {value, 1.0 / value, length == 1, bits == 0 ? ~uint64_t{0} : (uint64_t{1} << (53 - bits)) - 1,
          bits < 32 ? (uint32_t{1} << bits) - 1 : ~uint32_t{0}};
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
  const uint64_t bits = bits_of_double(v);
  if (rest == 0.0 || (bits & 1) != 0) return v;
  return double_of_bits((rest > 0.0) == (v > 0.0) ? bits + 1 : bits - 1);
}

// (v + rest) * 2^e rounded once, v being v + rest rounded to nearest. A subnormal number may have one bit less than v,
// to which no rounding to odd leads.
L1NORM_HD double scaled_once(double v, double rest, int e) {
  if (ilogb(v) + e >= std::numeric_limits<double>::min_exponent - 1) return scalbn(v, e);
  const double half = scalbn(0.5, std::numeric_limits<double>::min_exponent - 53 - e);  // of their distance
  const double shift = copysign(half * 0x1p53, v);  // to where doubles are as far apart
  double whole = (v + shift) - shift;
  if (rest != 0.0 && fabs(v - whole) == half) whole = v + copysign(half, rest);
  return scalbn(copysign(whole, v), e);
}

// Within 2^-52 of 1 / x, far from the ends of the range.
L1NORM_HD double near_reciprocal(double x) {
#if defined(__CUDA_ARCH__)
  double y;
  asm("rcp.approx.ftz.f64 %0, %1;" : "=d"(y) : "d"(x));  // 20 bits; each Newton step doubles them
  y = fma(fma(-x, y, 1.0), y, y);
  return fma(fma(-x, y, 1.0), y, y);
#else
  return 1.0 / x;
#endif
}

// x / m where that is a zero, an infinity or NaN, or x is.
L1NORM_HD double divide_special(double x, Divisor m) {
  const double inverse = m.hi == 0.0 ? INFINITY : m.hi < 1.0 ? 1.0 : m.hi > 1.0 ? 0.0 : m.hi;
  return x * (x == 0.0 && m.hi > 0.0 ? 1.0 : inverse);
}

// Divisors are off by up to 2^-103: what one leaves of x is taken for nothing where that may be all of it. Else ties,
// whose sums and counts have few bits, would seem to lie beside the middle.
constexpr double kUnknown = 0x1p-102;

// Bits of a type's numbers, and the exponent of its least one.
struct Float16Format {
  static constexpr int kBits = 11, kLeast = -24;
};
struct BFloat16Format {
  static constexpr int kBits = 8, kLeast = -133;
};
struct Float32Format {
  static constexpr int kBits = 24, kLeast = -149;
};

// x / m rounded once, in double, to a type of fewer bits; x is exact in float (so that m.shift is 0). What is beyond
// the type's range is still to become an infinity.
template <typename Format>
L1NORM_HD double divide_exactly(double x, Divisor m) {
  constexpr int kBits = Format::kBits;
  if (!(m.hi > 0x1p-400 && m.hi < 0x1p400)) return divide_special(x, m);
  const double size = fabs(x), near = size * near_reciprocal(m.hi);
  // From one number of the type to the next.
  constexpr uint64_t kNormal = 1023 + Format::kLeast + kBits - 1;
  const uint64_t found = bits_of_double(near) >> 52, exponent = found > kNormal ? found : kNormal;
  const double step = double_of_bits((exponent - (kBits - 1)) << 52);
  const double shift = double_of_bits((exponent + (53 - kBits)) << 52);  // to where doubles are as far apart
  const double shifted = near + shift, rounded = shifted - shift;
  const bool beyond = rounded > near;
  const double lower = beyond ? rounded - step : rounded, middle = lower + 0.5 * step;
  const bool odd = ((bits_of_double(shifted) & 1) != 0) != beyond;
  // Near the middle the first difference is exact, and elsewhere far larger than what it loses.
  const double rest = fma(-middle, m.lo, fma(-middle, m.hi, size));
  const bool up = fabs(rest) < size * kUnknown ? odd : rest > 0.0;
  return copysign(up ? lower + step : lower, x);
}

// x / m rounded once to float.
L1NORM_HD float divide_exactly(float x, Divisor m) {
  return static_cast<float>(divide_exactly<Float32Format>(static_cast<double>(x), m));
}

// x / m rounded once to double, whatever the exponents: the operands are scaled to [1, 2).
L1NORM_HD double divide_exactly(double x, Divisor m) {
  if (!is_finite(x) || !is_finite(m.hi) || x == 0.0 || m.hi == 0.0) return divide_special(x, m);
  const int ex = ilogb(x), em = ilogb(m.hi);
  const double xs = scalbn(x, -ex), hi = scalbn(m.hi, -em), lo = scalbn(m.lo, -em);
  const double inverse = near_reciprocal(hi), q = xs * inverse;
  double left = fma(-q, lo, fma(-q, hi, xs)) * inverse;
  // All that a tie leaves is some halves of a unit of q's last place: without the last bits, which are errors, 46 show
  // that. Where nothing is left, there are no other bits.
  const double scaled = left * 129.0;
  left = fabs(left) < kUnknown ? 0.0 : scaled - (scaled - left);
  double rest;
  const double nearest = two_sum(q, left, rest);
  const int e = ex - em + m.shift;
  return e < -1076 ? copysign(0.0, x) : scaled_once(nearest, rest, e);
}

// The divisor itself, rounded once.
L1NORM_HD float rounded(Divisor m, float) { return static_cast<float>(round_to_odd(m.hi, m.lo)); }
L1NORM_HD double rounded(Divisor m, double) { return m.shift == 0 ? m.hi : scaled_once(m.hi, m.lo, -m.shift); }

}  // namespace l1norm
