// Quotients, of a row by a shared divisor and of columns by their own. Part of vector_kernels.h.
//
// An operation on elements: block() does some vectors of those from column i on and tells whether all are right; each()
// does any number one at a time. block() proves its quotients: two products that bracket the exact one rounded alike.

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

// v by first + second. One Newton step from v times an approximate reciprocal. Near a rounding boundary the correction
// is at least 2^-25 of the quotient and within 2^-20 of the exact one, so scaling it by 1 +- 2^-18 brackets the
// quotient.
template <typename Vector, typename Bits>
L1NORM_INLINE Vector quotient_of_floats(Vector v, Vector reciprocal, Vector first, Vector second, Bits& unproven) {
  const Vector q = v * reciprocal;
  // Of this sign, so that a zero keeps its own.
  const Vector excess = fused(q, second, fused(q, first, -v));
  const Vector correction = excess * reciprocal;
  const Vector y = fused(correction, Vector{} - (1.0f + 0x1p-18f), q);
  unproven |= as<Bits>(y) ^ as<Bits>(fused(correction, Vector{} - (1.0f - 0x1p-18f), q));
  return y;
}

// The bits of the least element that those divide: from it on remainders lose nothing and quotients are normal.
L1NORM_INLINE UInts least_of_floats(Floats first) {
  return as<UInts>((first > 0x1p24f ? first : Floats{} + 0x1p24f) * 0x1p-125f);
}

// By RowDivisor, ColumnDivisors or SummedColumns.
template <typename Type, typename Divisor>
struct Quotients {
  using Element = typename Type::Element;
  static constexpr bool kOfFloats = sizeof(Element) == sizeof(float);
  // Two vectors at a time make one where floats divide.
  template <int vectors>
  static constexpr int kWidth = (kByFloats<Type> || sizeof(Element) == 2) && vectors % 2 == 0 ? 2 * kLanes : kLanes;
  template <int vectors>
  using Result = typename ResultOf<Element, kWidth<vectors>>::type;

  Divisor divisor;

  __attribute__((noinline)) void each(int64_t i, const Element* x, Element* y, int64_t n) const {
    int64_t k = 0;
    if constexpr (!kOfDoubles<Type>) {
      for (; k + kLanes <= n; k += kLanes) {
        typename ResultOf<Element, kLanes>::type q;
        if (by_doubles(i + k, x + k, q)) {
          store(y + k, q);
        } else {
          one_by_one(i + k, x + k, y + k, kLanes);
        }
      }
    }
    one_by_one(i + k, x + k, y + k, n - k);
  }

  template <int vectors>
  L1NORM_INLINE bool block(int64_t i, const Element* x, Result<vectors>* q) const {
    if constexpr (sizeof(Element) == 8) {
      return block_of_doubles<vectors>(i, x, q);
    } else if constexpr (kByFloats<Type>) {
      return block_of_floats<vectors>(i, x, q);
    } else if constexpr (kOfFloats) {
      bool proven = true;
      for (int k = 0; k < vectors; ++k) proven &= by_doubles(i + k * kLanes, x + k * kLanes, q[k]);
      return proven;
    } else {
      return block_of_halves<vectors>(i, x, q);
    }
  }

 private:
  template <int vectors>
  L1NORM_INLINE bool block_of_floats(int64_t i, const float* x, Result<vectors>* y) const {
    constexpr int kStep = kWidth<vectors>;
    using Vector = FloatsOf<kStep>;
    using Bits = UIntsOf<kStep>;
    Bits unproven = {};
    for (int k = 0; k < vectors * kLanes / kStep; ++k) {
      const int64_t at = i + k * kStep;
      const Vector v = load<Vector>(x + k * kStep);
      y[k] = quotient_of_floats(v, numbers<Vector>(divisor.reciprocal, at), numbers<Vector>(divisor.first, at),
                                numbers<Vector>(divisor.second, at), unproven);
      // Zeros rank above everything: their quotients are exact.
      unproven |= below(2u * as<Bits>(v) - 1u, numbers<Bits>(divisor.least, at));
    }
    return !any(unproven);
  }

  template <int vectors>
  L1NORM_INLINE bool block_of_halves(int64_t i, const Element* x, Result<vectors>* q) const {
    constexpr int kStep = kWidth<vectors>;
    IntsOf<kStep> unproven = {};
    UShortsOf<kStep> apart = {};
    for (int k = 0; k < vectors * kLanes / kStep; ++k) {
      // Within 2^-23 once multiplied.
      const FloatsOf<kStep> reciprocal = numbers<FloatsOf<kStep>>(divisor.reciprocal, i + k * kStep);
      const FloatsOf<kStep> v = Type::template load_floats<kStep>(x + k * kStep);
      const FloatsOf<kStep> high = v * (reciprocal * (1.0f + 0x1p-22f));
      q[k] = Type::template round_bound<kStep>(high);
      apart |= q[k] ^ Type::template round_bound<kStep>(v * (reciprocal * (1.0f - 0x1p-22f)));
      unproven |= reciprocal != reciprocal;
      if constexpr (Type::kSubnormalQuotients) {  // the products' own rounding must stay relative
        unproven |= (as<FloatsOf<kStep>>(as<IntsOf<kStep>>(high) & 0x7fffffff) < 0x1p-120f) & (v != 0.0f);
      }
    }
    return !any(apart) && !any(unproven);
  }

  // A vector whose bounds in double may round alike where those in float do not.
  L1NORM_INLINE bool by_doubles(int64_t i, const Element* x, typename ResultOf<Element, kLanes>::type& q) const {
    Doubles inverse;  // within 2^-52 of the quotient once multiplied
    if constexpr (kByFloats<Type>) {
      inverse = inverse_of(divisor.template highs<Type>(i));
    } else {
      inverse = divisor.template inverses<Type>(i);
    }
    const Doubles v = to_doubles(Type::load_floats(x));
    const Doubles high = v * (inverse * (1.0 + 0x1p-50)), low = v * (inverse * (1.0 - 0x1p-50));
    if constexpr (kOfFloats) {
      q = to_floats(high);
      return !any(q != to_floats(low));
    } else {
      q = Type::round(to_odd_floats(high));
      const UShorts other = Type::round(to_odd_floats(low));
      return !any(__builtin_convertvector(q ^ other, Ints) | __builtin_convertvector(inverse != inverse, Ints));
    }
  }

  void one_by_one(int64_t i, const Element* x, Element* y, int64_t n) const {
    for (int64_t k = 0; k < n; ++k) y[k] = Type::divide(x[k], divisor.template at<Type>(i + k));
  }

  template <int vectors>
  L1NORM_INLINE bool block_of_doubles(int64_t i, const double* x, Doubles* quotients) const {
    Longs unproven = {};
    for (int k = 0; k < vectors; ++k) {
      const int64_t at = i + k * kLanes;
      const Doubles inverse = numbers<Doubles>(divisor.inverse, at), hi = numbers<Doubles>(divisor.hi, at);
      const Doubles v = load<Doubles>(x + k * kLanes), q = v * inverse;
      const Doubles correction = fused(-q, numbers<Doubles>(divisor.lo, at), fused(-q, hi, v)) * inverse;
      const Doubles y = fused(correction, Doubles{} + (1.0 + 0x1p-40), q);
      unproven |= y != fused(correction, Doubles{} + (1.0 - 0x1p-40), q);
      const Longs sign = as<Longs>(v) & INT64_MIN;  // -0 / m is -0, which the remainder's sum would lose
      quotients[k] = as<Doubles>((as<Longs>(y) & INT64_MAX) | sign);
      // Above it remainders are exact and quotients normal.
      const Doubles smallest = hi < 0x1p60 ? Doubles{} + 0x1p-960 : hi * 0x1p-1020;
      unproven |= (as<Doubles>(as<Longs>(v) & INT64_MAX) < smallest) & (v != 0.0);
      unproven |= inverse != inverse;
    }
    return !any(unproven);
  }
};

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
