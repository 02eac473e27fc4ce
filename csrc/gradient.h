// The gradient's arithmetic, shared by the CPU and the CUDA kernels as exact.h is.
//
// For y = x / m with m = sum |x| / n, where n is the length for a mean and 1 for a sum, and gradients g of y and h of
// m:
//   g / m - sgn(x) * through,  through = (sum(g * y) / m - h) / n,
// with through = 0 in a row that eps clamps.
#pragma once

#include "exact.h"

namespace l1norm {

// What a row's elements share. The low parts are for rows of double only.
struct Gradient {
  double inverse;  // inverse + inverse_low is 1 / m
  double inverse_low;
  double through;
  double through_low;
  double m;
  bool lone;  // the row has one element
};

L1NORM_HD double finite_or_zero(double x) { return is_finite(x) ? x : 0.0; }

// ilogb(x) of a finite x that is no zero, on a CPU without a call where x is normal.
L1NORM_HD int exponent_of(double x) {
#if !defined(__CUDA_ARCH__)
  const int biased = static_cast<int>(bits_of_double(x) >> 52 & 0x7ff);
  if (biased != 0) return biased - 1023;
#endif
  return ilogb(x);
}

// The same of scalbn(1.0, exponent).
L1NORM_HD double power_of_two(int exponent) {
#if !defined(__CUDA_ARCH__)
  if (-1022 <= exponent && exponent <= 1023) return double_of_bits(static_cast<uint64_t>(exponent + 1023) << 52);
#endif
  return scalbn(1.0, exponent);
}

// A power of two by which to scale x, so that sum |g * x| stays below the largest |g|. Products of floats need none: in
// double they are exact.
template <typename Value>
L1NORM_HD double dot_scale(double m, Count count) {
  if (sizeof(Value) < sizeof(double) || m == 0.0 || m != m) return 1.0;
  const int exponent = exponent_of(is_finite(m) ? m : 0x1p1023) + exponent_of(count.value) + 2;
  return power_of_two(exponent < -1023 ? 1023 : -exponent);
}

// What of a row's gradient does not depend on its dot product: a GPU works it out while the row is on its way.
struct GradientScale {
  double m;
  double inverse, inverse_low;          // 1 / m
  double total, total_low, reciprocal;  // m * n * dot_scale()
  double part, part_low;                // h / n
  bool clamped;
  bool lone;
};

// For a row of Value; inverse is 1 / m; h is the gradient of its divisor, or 0.
template <typename Value>
L1NORM_HD GradientScale make_gradient_scale(double m, double inverse, Count count, double eps, double h) {
  GradientScale s;
  s.m = m;
  s.inverse = inverse;
  s.inverse_low = finite_or_zero(fma(-s.inverse, m, 1.0) * s.inverse);
  const double scaled = m * dot_scale<Value>(m, count);
  s.total = scaled * count.value;
  s.total_low = fma(scaled, count.value, -s.total);
  // A division less; what is lost, make_gradient() puts back.
  s.reciprocal = sizeof(Value) < sizeof(double) ? s.inverse * count.reciprocal : 1.0 / s.total;
  s.part = h * count.reciprocal;
  s.part += finite_or_zero(fma(-s.part, count.value, h) * count.reciprocal);
  s.part_low = fma(-s.part, count.value, h) * count.reciprocal;
  s.clamped = eps > 0.0 && !(m > static_cast<Value>(eps));
  s.lone = count.lone;
  return s;
}

// dot is sum(g * x) * dot_scale() over a row of Value. Of floats without a branch: a GPU works at two rows at a time.
template <typename Value>
L1NORM_HD Gradient make_gradient(Sum dot, const GradientScale& s) {
  constexpr bool kDoubles = sizeof(Value) == sizeof(double);
  Gradient d{s.inverse, s.inverse_low, 0.0, 0.0, s.m, s.lone};
  if (kDoubles && s.clamped) return d;
  // mean + mean_low = sum(g * y) / n. In a row of one element mean is exactly g or -g, so that through cancels
  // g / m; a low part would be what `rest` was rounded by.
  const double plain = dot.hi * s.reciprocal;
  const double left = fma(-plain, s.total_low, fma(-plain, s.total, dot.hi)) + dot.lo;
  const double rest = finite_or_zero(kDoubles ? left / s.total : left * s.reciprocal);
  const double mean = plain + rest, mean_low = s.lone ? 0.0 : finite_or_zero(rest - (mean - plain));
  // The inverse of a float is a finite double.
  const double by_mean = !kDoubles || is_finite(s.inverse) ? mean * s.inverse : mean / s.m;
  const double by_mean_low = fma(mean, s.inverse_low, fma(mean, s.inverse, -by_mean)) + mean_low * s.inverse;
  double error;
  d.through = two_sum(by_mean, -s.part, error);
  d.through_low = finite_or_zero(by_mean_low + (error - s.part_low));
  if (!kDoubles && s.clamped) d.through = d.through_low = 0.0;
  return d;
}

// The same of a row of floats or halves, in fewer instructions, where the divisor has no gradient, its inverse is
// normal and m * count exact. Where it may differ, `through` is not finite.
L1NORM_HD Gradient make_plain_gradient(Sum dot, double m, double inverse, Count count, double eps) {
  const double total = m * count.value, reciprocal = inverse * count.reciprocal, plain = dot.hi * reciprocal;
  const double mean = plain + (fma(-plain, total, dot.hi) + dot.lo) * reciprocal;
  const bool clamped = eps > 0.0 && !(m > static_cast<float>(eps));
  return {inverse, 0.0, clamped ? 0.0 : mean * inverse, 0.0, m, count.lone};
}

// sgn(x) * v, where sgn(0) * v is NaN for an infinite v.
template <typename X>
L1NORM_HD double signed_as(X x, double v) {
  return x > 0 ? v : x < 0 ? -v : 0.0 * fabs(v);
}

// What comes before the rounding to float is within 2^-51 of |g / m| + |through|, so a result is within little more
// than half a unit of its last place, or of what cancelled in it. For half types too, rounded again.
L1NORM_HD float input_gradient(float g, float x, const Gradient& d) {
  return static_cast<float>(static_cast<double>(g) * d.inverse - signed_as(x, d.through));
}

L1NORM_HD double input_gradient(double g, double x, const Gradient& d) {
  const double product = g * d.inverse, through = signed_as(x, d.through);
  const double product_low = fma(g, d.inverse_low, fma(g, d.inverse, -product));
  double error;
  const double difference = two_sum(product, -through, error);
  const double result = difference + (error + (product_low - signed_as(x, d.through_low)));
  return is_finite(result) ? result : g / d.m - through;
}

// A row's gradient in floats: enough for half types, whose last place is 2^13 times a float's or more.
struct FloatGradient {
  float inverse, through;
};

// False where floats have no room for it, and where results must cancel exactly: in rows of one element.
L1NORM_HD bool make_float_gradient(const Gradient& d, FloatGradient& floats) {
  floats = {static_cast<float>(d.inverse), static_cast<float>(d.through)};
  return !d.lone && d.m > 0x1p-100 && d.m < 0x1p100 && fabs(d.through) < 0x1p120;
}

// Within 2^-23 of |g / m| + |through|, as each of both and their difference is rounded to a float, before it is rounded
// to a half type. sign: sgn(x).
L1NORM_HD float gradient_by_sign(float g, float sign, const FloatGradient& d) {
  return fmaf(g, d.inverse, -sign * d.through);
}
L1NORM_HD float input_gradient(float g, float x, const FloatGradient& d) {
  return gradient_by_sign(g, x == 0.0f ? 0.0f : copysignf(1.0f, x), d);
}

}  // namespace l1norm
