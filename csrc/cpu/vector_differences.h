// Gradients, of a row and of columns. Part of vector_kernels.h; vector_quotients.h says what an operation is.

namespace l1norm::cpu {
namespace {

// sgn(x) * magnitude, for a finite one.
L1NORM_INLINE Doubles signed_as(Doubles x, Doubles magnitude) {
  return as<Doubles>(((as<Longs>(x) & INT64_MIN) ^ as<Longs>(magnitude)) & (x != 0.0));
}

// input_gradient(g, x), for a finite `through`, before it is rounded.
L1NORM_INLINE Doubles differences(Doubles g, Doubles x, Doubles inverse, Doubles through) {
  return g * inverse - signed_as(x, through);
}

// Which types' gradients end in floats.
template <typename Type>
constexpr bool kInFloats = sizeof(typename Type::Element) == 2;

// Whether floats have room for a gradient, as make_float_gradient() says.
L1NORM_INLINE Longs fit_floats(Doubles m, Doubles through, bool lone) {
  if (lone) return Longs{};
  return (m > 0x1p-100) & (m < 0x1p100) & (through < 0x1p120) & (through > -0x1p120);
}

// input_gradient() in floats.
template <int lanes>
L1NORM_INLINE FloatsOf<lanes> by_floats(FloatsOf<lanes> g, FloatsOf<lanes> x, FloatsOf<lanes> inverse,
                                        FloatsOf<lanes> through) {
  // A zero's product is one of the other's sign.
  const IntsOf<lanes> sign = IntsOf<lanes>{} + INT32_MIN, bits = as<IntsOf<lanes>>(through);
  const IntsOf<lanes> product = (x != 0.0f) ? (as<IntsOf<lanes>>(x) & sign) ^ bits : bits & sign;
  return fused(g, inverse, -as<FloatsOf<lanes>>(product));
}

template <typename Type>
struct ColumnGradients {
  static constexpr bool kInFloats = cpu::kInFloats<Type>;

  Gradients d;

  // A row of one element is one without floats.
  L1NORM_INLINE Gradient at(int64_t i) const {
    constexpr bool kLow = kOfDoubles<Type>;
    return {d.inverse[i], kLow ? d.inverse_low[i] : 0.0,          d.through[i], kLow ? d.through_low[i] : 0.0,
            d.m[i],       kInFloats && d.float_inverse[i] == 0.0f};
  }
  L1NORM_INLINE Doubles inverse(int64_t i) const { return load<Doubles>(d.inverse + i); }
  L1NORM_INLINE Doubles inverse_low(int64_t i) const { return load<Doubles>(d.inverse_low + i); }
  L1NORM_INLINE Doubles through(int64_t i) const { return load<Doubles>(d.through + i); }
  L1NORM_INLINE Doubles through_low(int64_t i) const { return load<Doubles>(d.through_low + i); }
  L1NORM_INLINE Ints in_floats(int64_t i) const { return load<Floats>(d.float_inverse + i) != 0.0f; }
  L1NORM_INLINE Floats by_floats(int64_t i, Floats g, Floats x) const {
    return cpu::by_floats<kLanes>(g, x, load<Floats>(d.float_inverse + i), load<Floats>(d.float_through + i));
  }
};

// The l-th one's, without floats: FloatDifferences has those. Where numbers are, not what they are: each() has an
// operation in memory, where what is written number by number and read as a whole has to wait.
template <typename Type>
struct RowGradient {
  static constexpr bool kInFloats = false;

  const Gradients& d;
  int64_t l;

  L1NORM_INLINE Gradient at(int64_t) const { return ColumnGradients<Type>{d}.at(l); }
  L1NORM_INLINE Doubles inverse(int64_t) const { return Doubles{} + d.inverse[l]; }
  L1NORM_INLINE Doubles inverse_low(int64_t) const { return Doubles{} + d.inverse_low[l]; }
  L1NORM_INLINE Doubles through(int64_t) const { return Doubles{} + d.through[l]; }
  L1NORM_INLINE Doubles through_low(int64_t) const { return Doubles{} + d.through_low[l]; }
};

// Of a row of halves in floats, or of columns: what is of one each, from column i on.
template <typename Type, typename Gradient, typename Number>
struct FloatDifferences {
  using Element = typename Type::Element;
  template <int vectors>
  static constexpr int kWidth = vectors % 2 == 0 ? 2 * kLanes : kLanes;
  template <int vectors>
  using Result = typename ResultOf<Element, kWidth<vectors>>::type;

  Gradient gradient;
  Number inverse, through;

  void each(int64_t i, const Element* g, const Element* x, Element* y, int64_t n) const {
    for (int64_t k = 0; k < n; ++k) y[k] = Type::differentiate(g[k], x[k], gradient.at(i + k));
  }

  template <int vectors>
  L1NORM_INLINE bool block(int64_t i, const Element* g, const Element* x, Result<vectors>* y) const {
    constexpr int kStep = kWidth<vectors>;
    using Vector = FloatsOf<kStep>;
    for (int k = 0; k < vectors * kLanes / kStep; ++k) {
      const int64_t at = i + k * kStep;
      y[k] = Type::template round<kStep>(by_floats<kStep>(Type::template load_floats<kStep>(g + k * kStep),
                                                          Type::template load_floats<kStep>(x + k * kStep),
                                                          numbers<Vector>(inverse, at), numbers<Vector>(through, at)));
    }
    return true;
  }
};

// y[i] = g[i] / m - sgn(x[i]) * through. block() leaves a row whose through is not finite, where sgn(0) matters, to
// each().
template <typename Type, typename Gradient>
struct Differences {
  using Element = typename Type::Element;
  template <int vectors>
  using Result = typename ResultOf<Element, kLanes>::type;

  Gradient gradient;

  __attribute__((noinline)) void each(int64_t i, const Element* g, const Element* x, Element* y, int64_t n) const {
    for (int64_t k = 0; k < n; ++k) y[k] = Type::differentiate(g[k], x[k], gradient.at(i + k));
  }

  template <int vectors>
  L1NORM_INLINE bool block(int64_t i, const Element* gradients, const Element* x, Result<vectors>* y) const {
    Longs wrong = {};
    for (int k = 0; k < vectors; ++k) {
      const int64_t at = i + k * kLanes;
      const Doubles through = gradient.through(at), inverse = gradient.inverse(at);
      if constexpr (kOfDoubles<Type>) {
        const Doubles v = load<Doubles>(x + k * kLanes), g = load<Doubles>(gradients + k * kLanes);
        const Doubles product = g * inverse, t = signed_as(v, through);
        const Doubles product_low = fused(g, gradient.inverse_low(at), fused(g, inverse, -product));
        const Doubles difference = product - t, step = difference - product;
        const Doubles error = (product - (difference - step)) - (t + step);
        y[k] = difference + (error + (product_low - signed_as(v, gradient.through_low(at))));
        wrong |= (through - through != 0.0) | (y[k] - y[k] != 0.0);
      } else {
        const Floats g = Type::load_floats(gradients + k * kLanes), v = Type::load_floats(x + k * kLanes);
        Ints in_floats = {};
        Floats result = {};
        if constexpr (Gradient::kInFloats) {
          in_floats = gradient.in_floats(at);
          result = gradient.by_floats(at, g, v);
        }
        if (!Gradient::kInFloats || any(~in_floats)) {
          const Doubles d = differences(to_doubles(g), to_doubles(v), inverse, through);
          const Longs in_doubles = __builtin_convertvector(~in_floats, Longs);
          wrong |= in_doubles & (through - through != 0.0);
          if constexpr (!Type::kRoundsNaN) wrong |= in_doubles & (d != d);
          result = in_floats ? result : to_floats(d);
        }
        y[k] = Type::round(result);
      }
    }
    return !any(wrong);
  }
};

// The same of a row of floats whose `through` is finite: all that its elements share stays in registers (64 float32:
// 0.79 of the time where the caches hold them).
struct FiniteDifferences {
  template <int vectors>
  using Result = Floats;

  Doubles inverse, through;

  void each(int64_t, const float*, const float*, float*, int64_t) const {}

  template <int vectors>
  L1NORM_INLINE bool block(int64_t, const float* g, const float* x, Floats* y) const {
    for (int k = 0; k < vectors; ++k) {
      y[k] = to_floats(differences(to_doubles(load<Floats>(g + k * kLanes)), to_doubles(load<Floats>(x + k * kLanes)),
                                   inverse, through));
    }
    return true;
  }
};

L1NORM_INLINE Doubles finite_or_zero(Doubles x) { return x - x == 0.0 ? x : Doubles{}; }

// Numbers from the i-th on; none of none.
L1NORM_INLINE const double* from(const double* numbers, int64_t i) {
  return numbers == nullptr ? nullptr : numbers + i;
}

// What elements of columns need, of a gradient of floats or halves.
struct PlainGradients {
  Doubles inverse, through;
};

// make_gradient_scale() and make_gradient() for vectors, without the low parts, which only doubles need. m: floats;
// strict: `through` is finite only where all that it is made of is.
template <bool strict>
L1NORM_INLINE PlainGradients plain_gradients(Doubles dot, Doubles dot_low, Doubles m, const double* hs, Count count,
                                             double eps) {
  const Doubles value = Doubles{} + count.value, inverse = 1.0 / m, total = m * value;
  const Doubles reciprocal = inverse * count.reciprocal, plain = dot * reciprocal;
  Doubles left = fused(-plain, total, dot);
  // Of fewer elements `total` is exact.
  if (count.value >= 0x1p29) left = fused(-plain, fused(m, value, -total), left);
  Doubles rest = (left + dot_low) * reciprocal;
  if constexpr (!strict) rest = finite_or_zero(rest);
  Doubles through = (plain + rest) * inverse;
  if (hs != nullptr) {
    const Doubles h = load<Doubles>(hs);
    Doubles part = h * count.reciprocal;
    part += finite_or_zero(fused(-part, value, h) * count.reciprocal);
    through -= part;
  }
  if (eps > 0.0) through = m > static_cast<double>(static_cast<float>(eps)) ? through : Doubles{};
  return {inverse, through};
}

// dot_scale() of normal divisors whose scale is normal, too; else false. exponent: exponent_of(count.value).
L1NORM_INLINE bool make_dot_scales(Doubles m, int64_t exponent, Doubles& scales) {
  const Longs biased = as<Longs>(m) >> 52, scale = 2 * 1023 - 2 - exponent - biased;
  scales = as<Doubles>(scale << 52);
  return !any((biased < 1) | (biased > 2046) | (scale < 1) | (scale > 2046));
}

inline void make_dot_scales(const double* ms, int64_t n, Count count, double* to) {
  const int64_t exponent = exponent_of(count.value);
  for (int64_t i = 0; i < n; i += kLanes) {
    Doubles scales;
    if (make_dot_scales(load<Doubles>(ms + i), exponent, scales)) {
      store(to + i, scales);
    } else {
      for (int64_t k = i; k < i + kLanes; ++k) to[k] = dot_scale<double>(ms[k], count);
    }
  }
}

// make_gradient_scale() and make_gradient() for vectors of doubles with such divisors, stored from the i-th on.
L1NORM_INLINE void make_double_gradients(Doubles dot, Doubles dot_low, Doubles m, Doubles scale, Doubles h, Count count,
                                         double eps, Gradients to) {
  const Doubles value = Doubles{} + count.value, inverse = 1.0 / m, scaled = m * scale, total = scaled * value;
  const Doubles inverse_low = finite_or_zero(fused(-inverse, m, Doubles{} + 1.0) * inverse);
  const Doubles total_low = fused(scaled, value, -total), plain = dot * (1.0 / total);
  const Doubles left = fused(-plain, total_low, fused(-plain, total, dot)) + dot_low;
  const Doubles rest = finite_or_zero(left / total), mean = plain + rest;
  const Doubles mean_low = count.lone ? Doubles{} : finite_or_zero(rest - (mean - plain));
  const Doubles by_mean = mean * inverse;
  const Doubles by_mean_low = fused(mean, inverse_low, fused(mean, inverse, -by_mean)) + mean_low * inverse;
  Doubles part = h * count.reciprocal;
  part += finite_or_zero(fused(-part, value, h) * count.reciprocal);
  const Doubles part_low = fused(-part, value, h) * count.reciprocal;
  const Doubles through = by_mean - part, step = through - by_mean;
  const Doubles error = (by_mean - (through - step)) + (-part - step);
  const Doubles through_low = finite_or_zero(by_mean_low + (error - part_low));
  const Longs counts = eps > 0.0 ? m > eps : ~Longs{};
  store(to.inverse, inverse);
  store(to.inverse_low, inverse_low);
  store(to.through, counts ? through : Doubles{});
  store(to.through_low, counts ? through_low : Doubles{});
  store(to.m, m);
}

// hs: none where it is null.
template <typename Type>
void make_gradients(Sums dots, const double* ms, const double* hs, int64_t n, Count count, double eps, Gradients to) {
  [[maybe_unused]] const int64_t exponent = kOfDoubles<Type> ? exponent_of(count.value) : 0;
  for (int64_t i = 0; i < n; i += kLanes) {
    if constexpr (kOfDoubles<Type>) {
      const Doubles all = load<Doubles>(ms + i);
      Doubles scales;
      if (make_dot_scales(all, exponent, scales)) {
        make_double_gradients(load<Doubles>(dots.hi + i), load<Doubles>(dots.lo + i), all, scales,
                              hs == nullptr ? Doubles{} : load<Doubles>(hs + i), count, eps, to.from(i));
        continue;
      }
      for (int64_t k = i; k < i + kLanes; ++k) {
        const double h = hs == nullptr ? 0.0 : hs[k];
        const Gradient d = make_gradient<double>({dots.hi[k], dots.lo[k]},
                                                 make_gradient_scale<double>(ms[k], 1.0 / ms[k], count, eps, h));
        to.inverse[k] = d.inverse;
        to.inverse_low[k] = d.inverse_low;
        to.through[k] = d.through;
        to.through_low[k] = d.through_low;
        to.m[k] = d.m;
      }
    } else {
      const Doubles m = load<Doubles>(ms + i);
      const PlainGradients d =
          plain_gradients<false>(load<Doubles>(dots.hi + i), load<Doubles>(dots.lo + i), m, from(hs, i), count, eps);
      store(to.inverse + i, d.inverse);
      store(to.through + i, d.through);
      store(to.m + i, m);
      if constexpr (kInFloats<Type>) {
        store(to.float_inverse + i, to_floats(fit_floats(m, d.through, count.lone) ? d.inverse : Doubles{}));
        store(to.float_through + i, to_floats(d.through));
      }
    }
  }
}

}  // namespace
}  // namespace l1norm::cpu
