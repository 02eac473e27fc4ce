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

// The quotients of kWide columns. False where floats do not prove all, or where sums and divisors need more than a few
// operations.
template <typename Type, int lines>
L1NORM_INLINE bool divide_few(const Places<float>& x, Sums sums, Count count, double eps, FloatsOf<kWide>* results) {
  using Wide = FloatsOf<kWide>;
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
  if (!usable || any(small)) return false;
  const Wide hi = joined(first[0], first[1]), lo = joined(second[0], second[1]), reciprocal = 1.0f / hi;
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
      halves[half][l] = to_floats(of_g[l] * d.inverse - signed_as(of_x[l], d.through));
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
