// Quotients, of a row by a shared divisor and of columns by their own. Part of vector_kernels.h.
//
// An operation on elements: block() does some vectors of those from column i on and tells whether all are right; each()
// does any number one at a time. block() proves its quotients: two products that bracket the exact one rounded alike.

namespace l1norm::cpu {
namespace {

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

// By RowDivisor, ColumnDivisors or SummedColumns.
template <typename Type, typename Divisor>
struct Quotients {
  using Element = typename Type::Element;
  static constexpr bool kOfFloats = sizeof(Element) == sizeof(float);
  static constexpr bool kOneNumber = std::is_same_v<Divisor, RowDivisor>;
  static constexpr bool kInPairs = std::is_same_v<Type, BFloat16Type>;
  // Two vectors at a time make one where floats divide, and four of bfloat16, in pairs.
  template <int vectors>
  static constexpr int kWidth = kInPairs && vectors % 4 == 0                                    ? 4 * kLanes
                                : (kByFloats<Type> || sizeof(Element) == 2) && vectors % 2 == 0 ? 2 * kLanes
                                                                                                : kLanes;
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
    } else if constexpr (kInPairs && vectors % 4 == 0) {
      return block_of_pairs<vectors>(i, x, q);
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

  // Neighbours as the halves of a word: either is a float with nothing behind it, without a permutation. A product is
  // within one and a half of its last places, subnormal ones too, so all are right that are three or more from the
  // middle of two results.
  template <int vectors>
  L1NORM_INLINE bool block_of_pairs(int64_t i, const Element* x, Result<vectors>* q) const {
    using Words = UIntsOf<kWide>;
    using Halves = Result<vectors>;
    constexpr uint32_t kOff = 2, kUpper = 0xffff0000u;
    constexpr uint16_t kMagnitude = 0x7fff, kInfinity = 0x7f80;
    Halves nearest = Halves{} - uint16_t{1}, most = {};
    for (int k = 0; k < vectors / 4; ++k) {
      const Words v = load<Words>(x + k * 2 * kWide);
      FloatsOf<kWide> even, odd;
      reciprocals(i + k * 2 * kWide, even, odd);
      const auto product = [&](Words half, FloatsOf<kWide> reciprocal) {
        return as<Words>(as<FloatsOf<kWide>>(half) * reciprocal) + (0x8000u + kOff);
      };
      const Words a = product(v << 16, even), b = product(v & kUpper, odd);
      q[k] = as<Halves>((a >> 16) | (b & kUpper));
      const Halves off = as<Halves>((a & ~kUpper) | (b << 16));
      nearest = off < nearest ? off : nearest;
      if constexpr (!kOneNumber) {
        const Halves size = q[k] & kMagnitude;
        most = size > most ? size : most;
      }
    }
    const bool divides = !kOneNumber || divisor.reciprocal == divisor.reciprocal;
    // A quotient that is NaN may be one by what cannot be divided by.
    return divides &&
           !any(below<Halves>(nearest, Halves{} + uint16_t{2 * kOff + 1}) | below<Halves>(Halves{} + kInfinity, most));
  }

  // Of columns from i on, every other one.
  L1NORM_INLINE void reciprocals(int64_t i, FloatsOf<kWide>& even, FloatsOf<kWide>& odd) const {
    if constexpr (kOneNumber) {
      even = odd = FloatsOf<kWide>{} + divisor.reciprocal;
    } else {
      const FloatsOf<kWide> a = load<FloatsOf<kWide>>(divisor.reciprocal + i),
                            b = load<FloatsOf<kWide>>(divisor.reciprocal + i + kWide);
      even = unzipped<0>(a, b, std::make_index_sequence<kWide>{});
      odd = unzipped<1>(a, b, std::make_index_sequence<kWide>{});
    }
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

}  // namespace
}  // namespace l1norm::cpu
