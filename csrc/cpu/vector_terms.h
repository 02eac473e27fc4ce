// Accumulators in vectors, and what is added up in them: magnitudes, and products of two inputs, groups of them at
// once. Part of vector_kernels.h.

namespace l1norm::cpu {
namespace {

template <typename Type>
constexpr bool kOfDoubles = sizeof(typename Type::Element) == sizeof(double);

template <int lanes>
struct DoublesOf {
  typedef double type __attribute__((vector_size(lanes * sizeof(double))));
};

// Sums of lanes: halves are added to halves, so that few additions wait for each other.
template <int lanes>
L1NORM_INLINE Sum total(const double* hi, const double* lo) {
  if constexpr (lanes == 1) {
    return {*hi, *lo};
  } else {
    using Half = typename DoublesOf<lanes / 2>::type;
    const Half a = load<Half>(hi), b = load<Half>(hi + lanes / 2);
    const Half s = a + b, t = s - a;
    const Half rest = ((a - (s - t)) + (b - t)) + (load<Half>(lo) + load<Half>(lo + lanes / 2));
    double sums[lanes / 2], rests[lanes / 2];
    store(sums, s);
    store(rests, rest);
    return total<lanes / 2>(sums, rests);
  }
}

// A compensated accumulator in each lane.
struct Accumulator {
  Doubles hi = {}, lo = {};

  L1NORM_INLINE void add(Doubles x) {
    const Doubles s = hi + x, t = s - hi;
    lo += (hi - (s - t)) + (x - t);
    hi = s;
  }

  L1NORM_INLINE void add(const Accumulator& a) {
    add(a.hi);
    lo += a.lo;
  }
};

L1NORM_INLINE Sum total(const Accumulator& a) {
  double hi[kLanes], lo[kLanes];
  store(hi, a.hi);
  store(lo, a.lo);
  return total<kLanes>(hi, lo);
}

// Of kLanes accumulators: lane i is the sum of the i-th's lanes.
L1NORM_INLINE Accumulator totals(Accumulator* a) {
  constexpr std::make_index_sequence<kLanes> all;
  for (int n = kLanes / 2; n > 0; n /= 2) {
    for (int i = 0; i < n; ++i) {
      const Accumulator x = a[i], y = a[i + n];
      a[i] = {zipped<0>(x.hi, y.hi, all), zipped<0>(x.lo, y.lo, all) + zipped<kLanes / 2>(x.lo, y.lo, all)};
      a[i].add(zipped<kLanes / 2>(x.hi, y.hi, all));
    }
  }
  return *a;
}

// An input's vectors for one accumulator: the first, and how far the next ones are.
template <typename Element>
struct Places {
  const Element* p;
  int64_t step;

  L1NORM_INLINE const Element* at(int64_t k) const { return p + k * step; }
  L1NORM_INLINE Places from(int64_t i, int64_t k = 0) const { return {at(k) + i, step}; }
};

// Whether a lane of a is more than b's; a NaN is not.
L1NORM_INLINE bool any_above(Doubles a, Doubles b) {
#if defined(__x86_64__) && L1NORM_VECTOR_BYTES == 64
  return _mm512_cmp_pd_mask(as<__m512d>(a), as<__m512d>(b), _CMP_GT_OQ) != 0;
#else
  return any(a > b);
#endif
}

L1NORM_INLINE bool any_above(FloatsOf<kWide> a, FloatsOf<kWide> b) {
#if defined(__x86_64__) && L1NORM_VECTOR_BYTES == 64
  return _mm512_cmp_ps_mask(as<__m512>(a), as<__m512>(b), _CMP_GT_OQ) != 0;
#else
  return any(a > b);
#endif
}

// The sum of vectors, as a tree.
template <int count, typename Vector>
L1NORM_INLINE Vector add_tree(const Vector* terms) {
  if constexpr (count == 1) {
    return *terms;
  } else {
    return add_tree<count / 2>(terms) + add_tree<count - count / 2>(terms + count / 2);
  }
}

// What is summed of a vector of each input: of magnitudes, x; of products, g and x.
template <typename Type>
struct Magnitudes {
  using Element = typename Type::Element;

  // Vectors that are added up before they enter the accumulator.
  static constexpr int kGroup = kOfDoubles<Type> ? 1 : 8;
  static constexpr bool kAddsWide = !kOfDoubles<Type>;

  L1NORM_INLINE Doubles of(int64_t, const Element* x) const {
    if constexpr (kOfDoubles<Type>) {
      return as<Doubles>(load<Longs>(x) & INT64_MAX);
    } else {
      return to_doubles(as<Floats>(bits(x)));
    }
  }

  L1NORM_INLINE void add_error(Accumulator&, int64_t, Doubles, const Element*) const {}

  // Of `count` vectors, and the least of each column, less one: zeros rank above everything.
  template <int count>
  static L1NORM_INLINE Doubles sum_group(Places<Element> in, UInts& least) {
    Doubles terms[count];
    for (int k = 0; k < count; ++k) {
      const UInts x = bits(in.at(k));
      terms[k] = to_doubles(as<Floats>(x));
      const UInts less = x - 1u;
      least = k == 0 ? less : (less < least ? less : least);
    }
    return add_tree<count>(terms);
  }

  // Whether that sum may have lost bits. All terms are multiples of the least one's last place, 2^-23 or 2^-7 of its
  // power of two: sums of up to 53 bits more lose nothing. Float16 has no more.
  static L1NORM_INLINE bool may_lose(Doubles sum, UInts least) {
    constexpr double kReach = std::is_same_v<Type, BFloat16Type> ? 0x1p45 : 0x1p29;
    return !std::is_same_v<Type, HalfType> && any_above(sum, to_doubles(as<Floats>(least + 1u)) * kReach);
  }

  template <int count, bool first>
  L1NORM_INLINE void add_group(Accumulator& a, int64_t, Places<Element> in) const {
    UInts least{};
    const Doubles sum = sum_group<count>(in, least);
    if (__builtin_expect(may_lose(sum, least), false)) {
      for (int k = 0; k < count; ++k) a.add(of(0, in.at(k)));
    } else if (first) {
      a.hi = sum;
    } else {
      a.add(sum);
    }
  }

  // Of vectors twice as long: the lower lanes to a, the upper ones to b.
  template <int count, bool first>
  L1NORM_INLINE void add_wide_group(Accumulator& a, Accumulator& b, Places<Element> in) const {
    Doubles sums[2];
    bool exact;
    if constexpr (sizeof(Element) == sizeof(float)) {
      exact = sum_floats<count>(in, sums);
    } else {
      exact = sum_halves<count>(in, sums);
    }
    if (__builtin_expect(!exact, false)) {
      add_group<count, first>(a, 0, in);
      add_group<count, first>(b, 0, in.from(kLanes));
    } else if (first) {
      a.hi = sums[0];
      b.hi = sums[1];
    } else {
      a.add(sums[0]);
      b.add(sums[1]);
    }
  }

 private:
  template <int count>
  static L1NORM_INLINE bool sum_floats(Places<Element> in, Doubles* sums) {
    Doubles terms[2][count];
    UIntsOf<kWide> least{};
    for (int k = 0; k < count; ++k) {
      const UIntsOf<kWide> x = load<UIntsOf<kWide>>(in.at(k)) & 0x7fffffffu, less = x - 1u;
      terms[0][k] = to_doubles(lower_half(as<FloatsOf<kWide>>(x)));
      terms[1][k] = to_doubles(upper_half(as<FloatsOf<kWide>>(x)));
      least = k == 0 ? less : (less < least ? less : least);
    }
    const FloatsOf<kWide> lowest = as<FloatsOf<kWide>>(least + 1u);
    for (int h = 0; h < 2; ++h) sums[h] = add_tree<count>(terms[h]);
    return !any_above(sums[0], to_doubles(lower_half(lowest)) * 0x1p29) &&
           !any_above(sums[1], to_doubles(upper_half(lowest)) * 0x1p29);
  }

  // In floats, where these lose nothing.
  template <int count>
  static L1NORM_INLINE bool sum_halves(Places<Element> in, Doubles* sums) {
    FloatsOf<kWide> terms[count];
    UShortsOf<kWide> least{};
    for (int k = 0; k < count; ++k) {
      const UShortsOf<kWide> x = load<UShortsOf<kWide>>(in.at(k)) & uint16_t{0x7fff}, less = x - uint16_t{1};
      terms[k] = Type::template widen<kWide>(x);
      least = k == 0 ? less : (less < least ? less : least);
    }
    const FloatsOf<kWide> sum = add_tree<count>(terms);
    sums[0] = to_doubles(lower_half(sum));
    sums[1] = to_doubles(upper_half(sum));
    // An infinite sum is above what is not.
    return !any_above(sum * (1.0f / Type::kExactReach), Type::template widen<kWide>(least + uint16_t{1}));
  }

  static L1NORM_INLINE UInts bits(const Element* x) { return as<UInts>(Type::load_floats(x)) & 0x7fffffffu; }
};

// scales: one a column, or one for all.
template <typename Type, bool columns>
struct Products {
  using Element = typename Type::Element;

  // Vectors that are added up before they enter the accumulator: of floats each product is exact in double.
  static constexpr int kGroup = kOfDoubles<Type> ? 1 : 8;
  static constexpr bool kAddsWide = false;

  const double* scales;

  L1NORM_INLINE Doubles scaled(int64_t i, const Element* x) const {
    return load<Doubles>(x) * (columns ? load<Doubles>(scales + i) : Doubles{} + *scales);
  }

  L1NORM_INLINE Doubles of(int64_t i, const Element* g, const Element* x) const {
    if constexpr (kOfDoubles<Type>) {
      return load<Doubles>(g) * scaled(i, x);
    } else if constexpr (std::is_same_v<Type, HalfType>) {
      return to_doubles(Type::load_floats(g) * Type::load_floats(x));  // exact: 22 bits from 2^-48 to 2^32
    } else {
      return to_doubles(Type::load_floats(g)) * to_doubles(Type::load_floats(x));
    }
  }

  L1NORM_INLINE void add_error(Accumulator& a, int64_t i, Doubles product, const Element* g, const Element* x) const {
    if constexpr (kOfDoubles<Type>) a.lo += fused(load<Doubles>(g), scaled(i, x), -product);
  }

  template <int count, bool first>
  L1NORM_INLINE void add_group(Accumulator& a, int64_t i, Places<Element> g, Places<Element> x) const {
    Doubles terms[count];
    for (int k = 0; k < count; ++k) terms[k] = of(i, g.at(k), x.at(k));
    const Doubles sum = add_tree<count>(terms);
    if (first) {
      a.hi += sum;  // of a zero that is negative nothing is left
    } else {
      a.add(sum);
    }
  }
};

// Adds `count` vectors of each input, of the elements from i on. first: there is nothing in the accumulator.
template <int count, bool first = false, typename Terms, typename... Elements>
L1NORM_INLINE void add_vectors(const Terms& terms, Accumulator& a, int64_t i, Places<Elements>... in) {
  if constexpr (Terms::kGroup == 1 || count == 1) {
    for (int k = 0; k < count; ++k) {
      const Doubles term = terms.of(i, in.at(k)...);
      if (first && k == 0) {
        a.hi += term;  // as above
      } else {
        a.add(term);
      }
      terms.add_error(a, i, term, in.at(k)...);
    }
  } else {
    static_assert(count <= Terms::kGroup);
    terms.template add_group<count, first>(a, i, in...);
  }
}

// Adds `count` vectors twice as long: their lower lanes to a, the upper ones to b.
template <int count, bool first = false, typename Terms, typename... Elements>
L1NORM_INLINE void add_wide(const Terms& terms, Accumulator& a, Accumulator& b, int64_t i, Places<Elements>... in) {
  if constexpr (Terms::kAddsWide && count > 1) {
    terms.template add_wide_group<count, first>(a, b, in...);
  } else {
    add_vectors<count, first>(terms, a, i, in...);
    add_vectors<count, first>(terms, b, i + kLanes, in.from(kLanes)...);
  }
}

}  // namespace
}  // namespace l1norm::cpu
