// Columns of floats of a few lines, whose elements stay in registers. Part of vector_kernels.h.

namespace l1norm::cpu {
namespace {

constexpr int64_t kFewAtOnce = 64 / sizeof(float);  // columns: no line of the cache is written twice
constexpr int kFewLines = kLanes == 8 ? 6 : 3;      // beyond which it is no faster
constexpr int kWides = kFewAtOnce / kWide;

template <int lines, bool streaming>
L1NORM_INLINE void store_few(float* y, int64_t step, const FloatsOf<kWide> (&results)[kWides][lines]) {
  for (int l = 0; l < lines; ++l) {
    for (int w = 0; w < kWides; ++w) store<streaming>(y + l * step + w * kWide, results[w][l]);
  }
}

// The sums of kWide columns, and what floats divide by, as hi + lo. False where they cannot, or where that takes more
// than a few operations.
template <typename Type, int lines>
L1NORM_INLINE bool divisors_of_few(const Places<float>& x, Sums sums, Count count, double eps, FloatsOf<kWide>& hi,
                                   FloatsOf<kWide>& lo) {
  Floats first[2], second[2];
  UInts small{};
  bool usable = true;
  for (int h = 0; h < 2; ++h) {
    UInts least{};
    const Doubles sum = Magnitudes<Type>::template sum_group<lines>(x.from(h * kLanes), least);
    store(sums.hi + h * kLanes, sum);
    store(sums.lo + h * kLanes, Doubles{});
    usable &= !Magnitudes<Type>::may_lose(sum, least);
    const Doubles m = sum * count.reciprocal;
    usable &= are_in_range<Type>(m, eps);
    first[h] = to_floats(m);
    second[h] = to_floats(m - to_doubles(first[h]));
    small |= below(least, least_of_floats(first[h]) - 1u);
  }
  hi = joined(first[0], first[1]);
  lo = joined(second[0], second[1]);
  return usable && !any(small);
}

// Of two lines: two floats are exactly their sum, and half of it (Knuth, The Art of Computer Programming, volume 2,
// section 4.2.2).
template <typename Type>
L1NORM_INLINE bool divisors_of_two(const Places<float>& x, Sums sums, Count count, double eps, FloatsOf<kWide>& hi,
                                   FloatsOf<kWide>& lo) {
  using Wide = FloatsOf<kWide>;
  using Bits = UIntsOf<kWide>;
  const Bits a_bits = as<Bits>(load<Wide>(x.at(0))) & 0x7fffffff, b_bits = as<Bits>(load<Wide>(x.at(1))) & 0x7fffffff;
  const Wide a = as<Wide>(a_bits), b = as<Wide>(b_bits), sum = a + b, of_b = sum - a;
  const Wide rest = (a - (sum - of_b)) + (b - of_b);
  for (int h = 0; h < 2; ++h) {  // a double rounds to the float that both together do
    const Doubles s = to_doubles(h == 0 ? lower_half(sum) : upper_half(sum));
    store(sums.hi + h * kLanes, s + to_doubles(h == 0 ? lower_half(rest) : upper_half(rest)));
    store(sums.lo + h * kLanes, Doubles{});
  }
  const float scale = static_cast<float>(count.reciprocal);  // 1 or 1/2
  hi = sum * scale;
  lo = rest * scale;
  // A divisor that rounds to more than eps does is more than eps.
  const float least = static_cast<float>(eps > Range<Type>::kLeast ? eps : Range<Type>::kLeast);
  const Bits below_a = a_bits - 1u, below_b = b_bits - 1u;
  const auto unfit = ~((hi > least) & (hi < static_cast<float>(Range<Type>::kMost)));
  return !any(as<Bits>(unfit) | below(below_a < below_b ? below_a : below_b, least_of_floats(hi) - 1u));
}

// The quotients of kWide columns. False where floats do not prove all, or where divisors need more.
template <typename Type, int lines>
L1NORM_INLINE bool divide_few(const Places<float>& x, Sums sums, Count count, double eps, FloatsOf<kWide>* results) {
  using Wide = FloatsOf<kWide>;
  Wide hi, lo;
  if constexpr (lines == 2) {
    if (!divisors_of_two<Type>(x, sums, count, eps, hi, lo)) return false;
  } else if (!divisors_of_few<Type, lines>(x, sums, count, eps, hi, lo)) {
    return false;
  }
  const Wide reciprocal = 1.0f / hi;
  UIntsOf<kWide> unproven{};
  for (int l = 0; l < lines; ++l) {
    results[l] = quotient_of_floats(load<Wide>(x.at(l)), reciprocal, hi, lo, unproven);
  }
  return !any(unproven);
}

// kFewAtOnce columns. False, and nothing written, where divide_few() is.
template <typename Type, int lines, bool streaming>
L1NORM_INLINE bool normalize_few(const Places<float>& x, float* y, int64_t step, Sums sums, Count count, double eps) {
  FloatsOf<kWide> results[kWides][lines];
  for (int w = 0; w < kWides; ++w) {
    if (!divide_few<Type, lines>(x.from(w * kWide), sums.from(w * kWide), count, eps, results[w])) return false;
  }
  store_few<lines, streaming>(y, step, results);
  return true;
}

// Of gradients. False, and nothing written, where a column's is not finite.
template <int lines, bool streaming>
L1NORM_INLINE bool differentiate_few(const Places<float>& g, const Places<float>& x, float* y, int64_t step,
                                     const double* m, const double* h, Count count, double eps) {
  Floats halves[2 * kWides][lines];
  for (int half = 0; half < 2 * kWides; ++half) {
    const int64_t i = half * kLanes;
    Doubles of_g[lines], of_x[lines], products[lines];
    for (int l = 0; l < lines; ++l) {
      of_g[l] = to_doubles(load<Floats>(g.at(l) + i));
      of_x[l] = to_doubles(load<Floats>(x.at(l) + i));
      products[l] = of_g[l] * of_x[l];
    }
    // As make_sums() adds them up.
    constexpr int kFirst = lines < 4 ? lines : 4;
    Accumulator dot{Doubles{} + add_tree<kFirst>(products), Doubles{}};
    if constexpr (lines > kFirst) dot.add(add_tree<lines - kFirst>(products + kFirst));
    const PlainGradients d = plain_gradients<true>(dot.hi, dot.lo, load<Doubles>(m + i), from(h, i), count, eps);
    if (any(d.through - d.through != 0.0)) return false;
    for (int l = 0; l < lines; ++l) {
      halves[half][l] = to_floats(differences(of_g[l], of_x[l], d.inverse, d.through));
    }
  }
  FloatsOf<kWide> results[kWides][lines];
  for (int w = 0; w < kWides; ++w) {
    for (int l = 0; l < lines; ++l) results[w][l] = joined(halves[2 * w][l], halves[2 * w + 1][l]);
  }
  store_few<lines, streaming>(y, step, results);
  return true;
}

}  // namespace
}  // namespace l1norm::cpu
