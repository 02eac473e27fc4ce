// What vectors divide by: made of sums, for a row or for columns. Part of vector_kernels.h.

namespace l1norm::cpu {
namespace {

// Where block() can divide: its products neither overflow nor lose bits among the subnormal numbers.
template <typename Type>
struct Range {
  static constexpr double kLeast = 0x1p-100, kMost = 0x1p100;
};
template <>
struct Range<DoubleType> {
  static constexpr double kLeast = 0x1p-900, kMost = 0x1p900;
};

template <typename Type>
L1NORM_INLINE bool are_in_range(Doubles hi, double eps) {
  return all_between(hi, eps > Range<Type>::kLeast ? eps : Range<Type>::kLeast, Range<Type>::kMost);
}

// 1 / hi, or NaN where doubles cannot divide floats by hi.
L1NORM_INLINE Doubles inverse_of(Doubles hi) {
  return (hi > 0x1p-400) & (hi < 0x1p400) ? 1.0 / hi : Doubles{} + __builtin_nan("");
}

// Floats divide by other numbers than doubles, where they do.
template <typename Type>
constexpr bool kByFloats = sizeof(typename Type::Element) == sizeof(float) && kFused;

template <typename Type>
L1NORM_INLINE Divisor divisor_at(const Divisors& d, int64_t i) {
  return {d.hi[i], d.lo[i], kOfDoubles<Type> ? static_cast<int>(d.shift[i]) : 0};
}

// hi and lo; false where make_divisor() has more to do, or where vectors cannot divide by them.
template <typename Type>
L1NORM_INLINE bool divisors_of(Doubles sum, Doubles sum_low, Count count, double eps, Doubles& hi, Doubles& lo) {
  const Doubles q = sum * count.reciprocal;
  const Doubles left = fused(-q, Doubles{} + count.value, sum) + sum_low, by_count = Doubles{} + count.reciprocal;
  Doubles rest = left * by_count;
  rest = fused(fused(-rest, Doubles{} + count.value, left), by_count, rest);
  hi = q + rest;
  lo = rest - (hi - q);
  return are_in_range<Type>(hi, eps);
}

struct RowDivisor {
  double hi, lo, inverse;
  int shift;
  float first, second, reciprocal;
  uint32_t least;

  template <typename Type>
  static L1NORM_INLINE RowDivisor make(const Divisors& d, int64_t i) {
    const Divisor m = divisor_at<Type>(d, i);
    RowDivisor r{m.hi, m.lo, 0.0, m.shift, 0.0f, 0.0f, 0.0f, 0};
    if constexpr (!kByFloats<Type>) r.inverse = d.inverse[i];
    if constexpr (!kOfDoubles<Type>) r.reciprocal = d.reciprocal[i];
    if constexpr (kByFloats<Type>) {
      r.first = d.first[i];
      r.second = d.second[i];
      r.least = d.least[i];
    }
    return r;
  }
  template <typename Type>
  L1NORM_INLINE Divisor at(int64_t) const {
    return {hi, lo, shift};
  }
  template <typename Type>
  L1NORM_INLINE Doubles highs(int64_t) const {
    return Doubles{} + hi;
  }
  template <typename Type>
  L1NORM_INLINE Doubles inverses(int64_t) const {
    return Doubles{} + inverse;
  }
};

struct ColumnDivisors : Divisors {
  template <typename Type>
  L1NORM_INLINE Divisor at(int64_t i) const {
    return divisor_at<Type>(*this, i);
  }
  template <typename Type>
  L1NORM_INLINE Doubles highs(int64_t i) const {
    return load<Doubles>(hi + i);
  }
  template <typename Type>
  L1NORM_INLINE Doubles inverses(int64_t i) const {
    return load<Doubles>(inverse + i);
  }
};

// Of floats, with sums in hi and lo: what those come to is made where floats do not prove a quotient.
struct SummedColumns : Divisors {
  Count count;
  double eps;

  template <typename Type>
  L1NORM_INLINE Divisor at(int64_t i) const {
    return make_divisor<float>({hi[i], lo[i]}, count, eps);
  }
  template <typename Type>
  L1NORM_INLINE Doubles highs(int64_t i) const {
    Doubles high, low;
    const bool usable = divisors_of<Type>(load<Doubles>(hi + i), load<Doubles>(lo + i), count, eps, high, low);
    return usable ? high : Doubles{} + __builtin_nan("");
  }
};

// The bits of the least element that those divide: from it on remainders lose nothing and quotients are normal.
template <typename Vector>
L1NORM_INLINE auto least_of_floats(Vector first) {
  return as<UIntsOf<sizeof first / sizeof(float)>>((first > 0x1p24f ? first : Vector{} + 0x1p24f) * 0x1p-125f);
}

// What vectors divide by, of divisors that they can divide by.
template <typename Type>
L1NORM_INLINE void store_inverses(Doubles hi, int64_t i, const Divisors& to) {
  if constexpr (kByFloats<Type>) {
    const Floats first = to_floats(hi);
    store(to.first + i, first);
    store(to.second + i, to_floats(hi - to_doubles(first)));
    store(to.reciprocal + i, 1.0f / first);
    store(to.least + i, 2u * least_of_floats(first) - 1u);
  } else {
    const Doubles inverse = 1.0 / hi;
    store(to.inverse + i, inverse);
    if constexpr (!kOfDoubles<Type>) store(to.reciprocal + i, to_floats(inverse));
  }
}

// What they divide by where they cannot.
template <typename Type>
L1NORM_INLINE void store_no_inverse(const Divisor& m, int64_t i, const Divisors& to) {
  if constexpr (kByFloats<Type>) {
    // Quotients by zero, an infinity or NaN are products with its reciprocal, which is exact; by others, of zeros
    // alone.
    const bool special = m.hi == 0.0 || !is_finite(m.hi);
    to.first[i] = special ? -0.0f : 1.0f;
    to.second[i] = special ? -0.0f : 0.0f;
    to.reciprocal[i] = special ? static_cast<float>(1.0 / m.hi) : 1.0f;
    to.least[i] = special ? 0 : ~0u;
  } else {
    to.inverse[i] = __builtin_nan("");
    if constexpr (!kOfDoubles<Type>) to.reciprocal[i] = __builtin_nanf("");
  }
}

// A vector of them of which some need more than arithmetic.
template <typename Type>
__attribute__((noinline)) void make_divisors_one_by_one(Sums sums, Count count, double eps, const Divisors& to) {
  using Value = std::conditional_t<kOfDoubles<Type>, double, float>;
  for (int k = 0; k < kLanes; ++k) {
    const Divisor m = make_divisor<Value>({sums.hi[k], sums.lo[k]}, count, eps);
    to.hi[k] = m.hi;
    to.lo[k] = m.lo;
    if constexpr (kOfDoubles<Type>) to.shift[k] = m.shift;
  }
  store_inverses<Type>(load<Doubles>(to.hi), 0, to);
  for (int k = 0; k < kLanes; ++k) {
    const Divisor m = divisor_at<Type>(to, k);
    const bool usable = m.hi > Range<Type>::kLeast && m.hi < Range<Type>::kMost && m.shift == 0;
    if (!usable) store_no_inverse<Type>(m, k, to);
  }
}

// make_divisor() for vectors. (No store reaches `to`, which is a copy.)
template <typename Type>
L1NORM_INLINE void make_divisors_inline(Sums sums, int64_t n, Count count, double eps, const Divisors to) {
  for (int64_t i = 0; i < n; i += kLanes) {
    Doubles hi, lo;
    if (!divisors_of<Type>(load<Doubles>(sums.hi + i), load<Doubles>(sums.lo + i), count, eps, hi, lo)) {
      make_divisors_one_by_one<Type>(sums.from(i), count, eps, to.from(i));
      continue;
    }
    store(to.hi + i, hi);
    store(to.lo + i, lo);
    if constexpr (kOfDoubles<Type>) store(to.shift + i, Doubles{});
    store_inverses<Type>(hi, i, to);
  }
}

// What vectors divide floats by, within 2^-51, where the proofs of quotients have room for 2^-44. The sums are kept.
template <typename Type>
L1NORM_INLINE void make_inverses(Sums sums, int64_t n, Count count, double eps, const Divisors to) {
  for (int64_t i = 0; i < n; i += kLanes) {
    const Doubles hi = load<Doubles>(sums.hi + i) * count.reciprocal;
    if (are_in_range<Type>(hi, eps)) {
      store_inverses<Type>(hi, i, to);
      continue;
    }
    alignas(64) double exact[2][kLanes];
    Divisors d = to.from(i);
    d.hi = exact[0];
    d.lo = exact[1];
    make_divisors_one_by_one<Type>(sums.from(i), count, eps, d);
  }
}

// divide(divisors_from) by what the sums of columns come to: divisors_from(i) has those from column i on. Sums have
// room for a vector more, d for those of all columns.
template <typename Type, typename Divide>
L1NORM_INLINE void divide_by_sums(Sums s, int64_t columns, Count count, double eps, const Divisors& d,
                                  const Divide& divide) {
  // The lanes of the last vector that are no columns: zeros would be no plain divisors.
  store(s.hi + columns, Doubles{} + s.hi[columns - 1]);
  store(s.lo + columns, Doubles{} + s.lo[columns - 1]);
  if constexpr (kByFloats<Type>) {
    make_inverses<Type>(s, columns, count, eps, d);
    Divisors summed = d;
    summed.hi = s.hi;
    summed.lo = s.lo;
    divide([&](int64_t at) { return SummedColumns{{summed.from(at)}, count, eps}; });
  } else {
    make_divisors_inline<Type>(s, columns, count, eps, d);
    divide([&](int64_t at) { return ColumnDivisors{{d.from(at)}}; });
  }
}

template <typename Type>
void make_divisors(Sums sums, int64_t n, Count count, double eps, const Divisors& to) {
  make_divisors_inline<Type>(sums, n, count, eps, to);
}

// rounded() for vectors. Divisors are not negative: numbers that go up have more bits.
void round_divisors(const Divisors& divisors, int64_t n, float* to) {
  for (int64_t i = 0; i < n; i += kLanes) {
    const Doubles lo = load<Doubles>(divisors.lo + i);
    const Longs bits = as<Longs>(load<Doubles>(divisors.hi + i)), away = (lo < 0.0) - (lo > 0.0);
    store(to + i, to_floats(as<Doubles>(bits + (away & ((bits & 1) - 1)))));
  }
}

}  // namespace
}  // namespace l1norm::cpu
