// Sums of magnitudes and of products, of one row and of rows that lie side by side. Part of vector_kernels.h.

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

// The sum of vectors, as a tree.
template <int count>
L1NORM_INLINE Doubles add_tree(const Doubles* terms) {
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

 private:
  static L1NORM_INLINE UInts bits(const Element* x) { return as<UInts>(Type::load_floats(x)) & 0x7fffffffu; }
};

// scales: one a column, or one for all.
template <typename Type, bool columns>
struct Products {
  using Element = typename Type::Element;

  // Vectors that are added up before they enter the accumulator: of floats each product is exact in double.
  static constexpr int kGroup = kOfDoubles<Type> ? 1 : 8;

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

// Adds fewer than 2 * most vectors.
template <int most, bool first, typename Terms, typename... Elements>
L1NORM_INLINE void add_rest(const Terms& terms, Accumulator& a, int64_t i, int64_t n, const Elements*... in) {
  if constexpr (most > 0) {
    if (i + most * kLanes <= n) {
      add_vectors<most, first>(terms, a, i, Places<Elements>{in + i, kLanes}...);
      return add_rest<most / 2, false>(terms, a, i + most * kLanes, n, in...);
    }
    return add_rest<most / 2, first>(terms, a, i, n, in...);
  } else if (i < n) {
    add_vectors<1, first>(terms, a, i, Places<Elements>{Part<Elements>(in + i, n - i).elements, kLanes}...);
  }
}

// Over one row; two accumulators where it is long, so that their chains overlap.
template <typename Terms, typename... Elements>
L1NORM_INLINE Accumulator sum_row(const Terms& terms, int64_t n, const Elements*... in) {
  Accumulator a;
  if (n < 16 * kLanes) {
    add_rest<8, true>(terms, a, 0, n, in...);
    return a;
  }
  Accumulator b;
  int64_t i = 0;
  for (; i + 16 * kLanes <= n; i += 16 * kLanes) {
    add_vectors<8>(terms, a, i, Places<Elements>{in + i, kLanes}...);
    add_vectors<8>(terms, b, i, Places<Elements>{in + i + 8 * kLanes, kLanes}...);
  }
  add_rest<8, false>(terms, a, i, n, in...);
  a.add(b);
  return a;
}

// What `count` lines have from i to n, less than a vector, so that it is added up as whole vectors are.
template <int count, typename Element>
class LineParts {
 public:
  L1NORM_INLINE LineParts(Places<Element> in, int64_t i, int64_t n) {
    for (int k = 0; k < count; ++k) parts_[k] = Part<Element>(in.at(k) + i, n - i);
  }
  L1NORM_INLINE Places<Element> places() const { return {parts_[0].elements, sizeof *parts_ / sizeof(Element)}; }

 private:
  Part<Element> parts_[count];
};

// Adds `count` lines of n elements to the sums of each, or with `first` makes those, and with `ask` asks the second
// cache for as many a turn later: where lines lie apart, the processor would not guess them.
template <int count, bool first, bool ask = false, typename Terms, typename... Elements>
L1NORM_INLINE void add_lines(const Terms& terms, int64_t n, Sums sums, Places<Elements>... in) {
  const auto add = [&](auto vectors, auto empty, int64_t i, auto... places) {
    Accumulator a;
    if constexpr (!empty) a = {load<Doubles>(sums.hi + i), load<Doubles>(sums.lo + i)};
    add_vectors<vectors, empty>(terms, a, i, places...);
    __builtin_memcpy(sums.hi + i, &a.hi, sizeof a.hi);
    __builtin_memcpy(sums.lo + i, &a.lo, sizeof a.lo);
  };
  const auto prefetch = [&](const auto& places, int64_t i) {
    if (i * static_cast<int64_t>(sizeof *places.p) % 64 != 0) return;
    for (int k = 0; k < count; ++k) __builtin_prefetch(places.at(2 * count + k) + i, 0, 2);
  };
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    if constexpr (ask) (prefetch(in, i), ...);
    add(std::integral_constant<int, count>{}, std::bool_constant<first>{}, i, in.from(i)...);
  }
  if (i == n) return;
  const auto add_together = [&](const auto&... rest) {
    add(std::integral_constant<int, count>{}, std::bool_constant<first>{}, i, rest.places()...);
  };
  add_together(LineParts<count, Elements>(in, i, n)...);
}

// Adds lines to the sums.
template <typename Terms, typename... Elements>
L1NORM_INLINE void sum_columns(const Terms& terms, int64_t lines, int64_t n, Sums sums, Places<Elements>... in) {
  int64_t l = 0;
  for (; l + 16 <= lines; l += 8) add_lines<8, false, true>(terms, n, sums, in.from(0, l)...);
  if (l + 8 <= lines) add_lines<8, false>(terms, n, sums, in.from(0, l)...), l += 8;
  if (l + 4 <= lines) add_lines<4, false>(terms, n, sums, in.from(0, l)...), l += 4;
  if (l + 3 == lines) return add_lines<3, false>(terms, n, sums, in.from(0, l)...);
  if (l + 2 == lines) return add_lines<2, false>(terms, n, sums, in.from(0, l)...);
  if (l < lines) add_lines<1, false>(terms, n, sums, in.from(0, l)...);
}

// Makes the sums of at least one line.
template <typename Terms, typename... Elements>
L1NORM_INLINE void make_sums(const Terms& terms, int64_t lines, int64_t n, Sums sums, Places<Elements>... in) {
  const auto rest = [&](int64_t l) { sum_columns(terms, lines - l, n, sums, in.from(0, l)...); };
  if (lines >= 8) return add_lines<8, true>(terms, n, sums, in...), rest(8);
  if (lines >= 4) return add_lines<4, true>(terms, n, sums, in...), rest(4);
  if (lines == 3) return add_lines<3, true>(terms, n, sums, in...);
  if (lines == 2) return add_lines<2, true>(terms, n, sums, in...);
  add_lines<1, true>(terms, n, sums, in...);
}

inline void add_parts(Sums sums, int64_t n, int64_t part) {
  for (int64_t k = 0; k < n; ++k) {
    const Sums from = sums.from(k * part);
    Accumulator a;
    int64_t i = 0;
    for (; i + kLanes <= part; i += kLanes) a.add({load<Doubles>(from.hi + i), load<Doubles>(from.lo + i)});
    Sum sum = total(a);
    for (; i < part; ++i) sum = sum + Sum{from.hi[i], from.lo[i]};
    sums.hi[k] = sum.hi;
    sums.lo[k] = sum.lo;
  }
}

}  // namespace
}  // namespace l1norm::cpu
