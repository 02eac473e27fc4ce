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
struct Range<FloatType> {
  static constexpr double kLeast = 0x1p-400, kMost = 0x1p400;
};
template <>
struct Range<DoubleType> {
  static constexpr double kLeast = 0x1p-900, kMost = 0x1p900;
};

// 1 / hi, or NaN where block() cannot divide.
template <typename Type>
L1NORM_INLINE double inverse_of(const Divisor& m) {
  const bool usable = m.hi > Range<Type>::kLeast && m.hi < Range<Type>::kMost && m.shift == 0;
  return usable ? 1.0 / m.hi : __builtin_nan("");
}

struct RowDivisor {
  static constexpr bool kUsable = true;  // block() divides by no other

  Divisor m;
  double reciprocal;

  L1NORM_INLINE Divisor at(int64_t) const { return m; }
  L1NORM_INLINE Doubles hi(int64_t) const { return Doubles{} + m.hi; }
  L1NORM_INLINE Doubles lo(int64_t) const { return Doubles{} + m.lo; }
  L1NORM_INLINE Doubles inverse(int64_t) const { return Doubles{} + reciprocal; }
  template <int lanes>
  L1NORM_INLINE FloatsOf<lanes> inverse_floats(int64_t) const {
    return FloatsOf<lanes>{} + static_cast<float>(reciprocal);
  }
};

struct ColumnDivisors {
  static constexpr bool kUsable = false;

  Divisors m;

  L1NORM_INLINE Divisor at(int64_t i) const { return {m.hi[i], m.lo[i], static_cast<int>(m.shift[i])}; }
  L1NORM_INLINE Doubles hi(int64_t i) const { return load<Doubles>(m.hi + i); }
  L1NORM_INLINE Doubles lo(int64_t i) const { return load<Doubles>(m.lo + i); }
  L1NORM_INLINE Doubles inverse(int64_t i) const { return load<Doubles>(m.inverse + i); }
  template <int lanes>
  L1NORM_INLINE FloatsOf<lanes> inverse_floats(int64_t i) const {
    if constexpr (lanes == kLanes) {
      return to_floats(inverse(i));
    } else {
      return joined(to_floats(inverse(i)), to_floats(inverse(i + kLanes)));
    }
  }
};

template <typename Type, typename Divisor>
struct Quotients {
  using Element = typename Type::Element;
  static constexpr bool kOfHalves = sizeof(Element) == 2;
  // Of half types two vectors at a time make one.
  template <int vectors>
  static constexpr int kWidth = kOfHalves && vectors % 2 == 0 ? 2 * kLanes : kLanes;
  template <int vectors>
  using Result = typename ResultOf<Element, kWidth<vectors>>::type;

  Divisor divisor;

  void each(int64_t i, const Element* x, Element* y, int64_t n) const {
    int64_t k = 0;
    if constexpr (kOfHalves) {
      for (; k + kLanes <= n; k += kLanes) {
        UShorts q;
        if (half_vector(i + k, x + k, q)) {
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
    } else if constexpr (sizeof(Element) == 4) {
      return block_of_floats<vectors>(i, x, q);
    } else {
      return block_of_halves<vectors>(i, x, q);
    }
  }

 private:
  template <int vectors>
  L1NORM_INLINE bool block_of_floats(int64_t i, const float* x, Floats* q) const {
    Ints unproven = {};
    for (int k = 0; k < vectors; ++k) {
      const Doubles inverse = divisor.inverse(i + k * kLanes);  // within 2^-52 of the quotient once multiplied
      const Doubles v = to_doubles(load<Floats>(x + k * kLanes));
      q[k] = to_floats(v * (inverse * (1.0 + 0x1p-50)));
      unproven |= q[k] != to_floats(v * (inverse * (1.0 - 0x1p-50)));
    }
    return !any(unproven);
  }

  template <int vectors>
  L1NORM_INLINE bool block_of_halves(int64_t i, const Element* x, Result<vectors>* q) const {
    constexpr int kStep = kWidth<vectors>;
    IntsOf<kStep> unproven = {};
    UShortsOf<kStep> apart = {};
    for (int k = 0; k < vectors * kLanes / kStep; ++k) {
      const FloatsOf<kStep> inverse =
          divisor.template inverse_floats<kStep>(i + k * kStep);  // within 2^-23 once multiplied
      const FloatsOf<kStep> v = Type::template load_floats<kStep>(x + k * kStep);
      const FloatsOf<kStep> high = v * (inverse * (1.0f + 0x1p-22f));
      q[k] = Type::template round_bound<kStep>(high);
      apart |= q[k] ^ Type::template round_bound<kStep>(v * (inverse * (1.0f - 0x1p-22f)));
      if constexpr (!Divisor::kUsable) unproven |= inverse != inverse;
      if constexpr (Type::kSubnormalQuotients) {  // the products' own rounding must stay relative
        unproven |= (as<FloatsOf<kStep>>(as<IntsOf<kStep>>(high) & 0x7fffffff) < 0x1p-120f) & (v != 0.0f);
      }
    }
    return !any(apart) && !((Type::kSubnormalQuotients || !Divisor::kUsable) && any(unproven));
  }

  // A vector of halves whose bounds in double may round alike where those in float do not.
  L1NORM_INLINE bool half_vector(int64_t i, const Element* x, UShorts& q) const {
    const Doubles inverse = divisor.inverse(i);
    const Doubles v = to_doubles(Type::load_floats(x));
    q = Type::round(to_odd_floats(v * (inverse * (1.0 + 0x1p-50))));
    const UShorts low = Type::round(to_odd_floats(v * (inverse * (1.0 - 0x1p-50))));
    return !any(__builtin_convertvector(q ^ low, Ints) | __builtin_convertvector(inverse != inverse, Ints));
  }

  void one_by_one(int64_t i, const Element* x, Element* y, int64_t n) const {
    for (int64_t k = 0; k < n; ++k) y[k] = Type::divide(x[k], divisor.at(i + k));
  }

  template <int vectors>
  L1NORM_INLINE bool block_of_doubles(int64_t i, const double* x, Doubles* quotients) const {
    Longs unproven = {};
    for (int k = 0; k < vectors; ++k) {
      const int64_t at = i + k * kLanes;
      const Doubles inverse = divisor.inverse(at), hi = divisor.hi(at);
      const Doubles v = load<Doubles>(x + k * kLanes), q = v * inverse;
      const Doubles r = fused(-q, divisor.lo(at), fused(-q, hi, v));
      const Longs sign = as<Longs>(v) & INT64_MIN;  // -0 / m is -0, which the remainder's sum would lose
      quotients[k] = as<Doubles>((as<Longs>(fused(r, inverse, q)) & INT64_MAX) | sign);
      // Above it remainders are exact and quotients normal.
      const Doubles smallest = hi < 0x1p60 ? Doubles{} + 0x1p-960 : hi * 0x1p-1020;
      unproven |= (as<Doubles>(as<Longs>(v) & INT64_MAX) < smallest) & (v != 0.0);
      unproven |= inverse != inverse;
    }
    return !any(unproven);
  }
};

// make_divisor() for vectors. Of doubles one at a time: theirs may need a shift.
template <typename Type>
void make_divisors(Sums sums, int64_t n, Count count, double eps, Divisors divisors) {
  for (int64_t i = 0; i < n; i += kLanes) {
    if constexpr (kOfDoubles<Type>) {
      for (int64_t k = i; k < i + kLanes; ++k) {
        const Divisor m = make_divisor<double>({sums.hi[k], sums.lo[k]}, count, eps);
        divisors.hi[k] = m.hi;
        divisors.lo[k] = m.lo;
        divisors.shift[k] = m.shift;
        divisors.inverse[k] = inverse_of<Type>(m);
      }
    } else {
      const Doubles sum = load<Doubles>(sums.hi + i), q = sum * count.reciprocal;
      const Doubles rest = (fused(-q, Doubles{} + count.value, sum) + load<Doubles>(sums.lo + i)) * count.reciprocal;
      const Longs finite = q - q == 0.0;
      Doubles hi = finite ? q + rest : q, lo = finite ? rest - (hi - q) : Doubles{};
      const Longs clamped = (hi < eps) | ((hi == eps) & (lo < 0.0));
      hi = clamped ? Doubles{} + eps : hi;
      lo = clamped ? Doubles{} : lo;
      const Longs usable = (hi > Range<Type>::kLeast) & (hi < Range<Type>::kMost);
      store(divisors.hi + i, hi);
      store(divisors.lo + i, lo);
      store(divisors.shift + i, Doubles{});
      store(divisors.inverse + i, usable ? 1.0 / hi : Doubles{} + __builtin_nan(""));
    }
  }
}

}  // namespace
}  // namespace l1norm::cpu
