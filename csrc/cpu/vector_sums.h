// Sums of magnitudes and of products, of one row and of rows that lie side by side. Part of vector_kernels.h.

namespace l1norm::cpu {
namespace {

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
  for (; i + 16 * kLanes <= n; i += 16 * kLanes) add_wide<8>(terms, a, b, i, Places<Elements>{in + i, 2 * kLanes}...);
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
  const auto sums_at = [&](int64_t i) {
    return first ? Accumulator{} : Accumulator{load<Doubles>(sums.hi + i), load<Doubles>(sums.lo + i)};
  };
  const auto set = [&](int64_t i, const Accumulator& a) {
    __builtin_memcpy(sums.hi + i, &a.hi, sizeof a.hi);
    __builtin_memcpy(sums.lo + i, &a.lo, sizeof a.lo);
  };
  const auto add = [&](int64_t i, auto... places) {
    Accumulator a = sums_at(i);
    add_vectors<count, first>(terms, a, i, places...);
    set(i, a);
  };
  const auto prefetch = [&](const auto& places, int64_t i, int64_t columns) {
    constexpr int64_t kLine = 64 / sizeof *places.p;
    for (int64_t at = (i + kLine - 1) / kLine * kLine; at < i + columns; at += kLine) {
      for (int k = 0; k < count; ++k) __builtin_prefetch(places.at(2 * count + k) + at, 0, 2);
    }
  };
  constexpr bool kWhole = Terms::kAddsWide && count > 1;
  int64_t i = 0;
  if constexpr (kWhole) {
    for (; i + kWide <= n; i += kWide) {
      if constexpr (ask) (prefetch(in, i, kWide), ...);
      Accumulator a = sums_at(i), b = sums_at(i + kLanes);
      add_wide<count, first>(terms, a, b, i, in.from(i)...);
      set(i, a);
      set(i + kLanes, b);
    }
  }
  for (; i + kLanes <= n; i += kLanes) {
    if constexpr (ask && !kWhole) (prefetch(in, i, kLanes), ...);
    add(i, in.from(i)...);
  }
  if (i == n) return;
  const auto add_together = [&](const auto&... rest) { add(i, rest.places()...); };
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
