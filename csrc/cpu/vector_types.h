// How each element type is read into vectors, and rounded from them. Part of vector_kernels.h.

namespace l1norm::cpu {
namespace {

// How a type is read as float, rounded from float, and divided.
struct FloatType {
  using Element = float;
  static L1NORM_INLINE Floats load_floats(const float* p) { return load<Floats>(p); }
  static L1NORM_INLINE Floats round(Floats f) { return f; }
  static constexpr bool kRoundsNaN = true;
  static L1NORM_INLINE float divide(float x, Divisor m) { return divide_exactly(x, m); }
  static L1NORM_INLINE float differentiate(float g, float x, const Gradient& d) { return input_gradient(g, x, d); }
};

L1NORM_INLINE float half_gradient(float g, float x, const Gradient& d) {
  FloatGradient floats;
  return make_float_gradient(d, floats) ? input_gradient(g, x, floats) : input_gradient(g, x, d);
}

// Half types are read and rounded in vectors of kLanes or twice as many.
struct HalfType {
  using Element = Half;
  template <int lanes>
  static L1NORM_INLINE FloatsOf<lanes> widen(UShortsOf<lanes> h) {
#if defined(__x86_64__) && L1NORM_VECTOR_BYTES == 64
    if constexpr (lanes == 16) return as<FloatsOf<lanes>>(_mm512_maskz_cvtph_ps(0xffff, as<__m256i>(h)));
#endif
#if defined(__x86_64__) && L1NORM_VECTOR_BYTES >= 32
    if constexpr (lanes == 8) return as<FloatsOf<lanes>>(_mm256_cvtph_ps(as<__m128i>(h)));
    if constexpr (lanes == 4) return as<FloatsOf<lanes>>(_mm_cvtph_ps(_mm_cvtsi64_si128(as<long long>(h))));
#endif
    FloatsOf<lanes> f;
    for (int i = 0; i < lanes; ++i) f[i] = to_float(Half{h[i]});
    return f;
  }
  template <int lanes = kLanes>
  static L1NORM_INLINE FloatsOf<lanes> load_floats(const Half* p) {
    return widen<lanes>(load<UShortsOf<lanes>>(p));
  }
  template <int lanes = kLanes>
  static L1NORM_INLINE UShortsOf<lanes> round(FloatsOf<lanes> f) {
#if defined(__x86_64__) && L1NORM_VECTOR_BYTES >= 32
    constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
#endif
#if defined(__x86_64__) && L1NORM_VECTOR_BYTES == 64
    if constexpr (lanes == 16) {
      return as<UShortsOf<lanes>>(_mm512_maskz_cvtps_ph(0xffff, as<__m512>(f), kNearest));
    }
#endif
#if defined(__x86_64__) && L1NORM_VECTOR_BYTES >= 32
    if constexpr (lanes == 8) return as<UShortsOf<lanes>>(_mm256_cvtps_ph(as<__m256>(f), kNearest));
    if constexpr (lanes == 4) {
      return as<UShortsOf<lanes>>(_mm_cvtsi128_si64(_mm_cvtps_ph(as<__m128>(f), kNearest)));
    }
#endif
    UShortsOf<lanes> h;
    for (int i = 0; i < lanes; ++i) h[i] = to_half(f[i]).bits;
    return h;
  }
  // A sum of magnitudes in float is exact up to this multiple of the least of them.
  static constexpr float kExactReach = 0x1p13f;
  template <int lanes>
  static L1NORM_INLINE UShortsOf<lanes> round_bound(FloatsOf<lanes> f) {
    return round<lanes>(f);
  }
  static L1NORM_INLINE Half divide(Half x, Divisor m) {
    return to_half(static_cast<float>(divide_exactly<Float16Format>(static_cast<double>(to_float(x)), m)));
  }
  static L1NORM_INLINE Half differentiate(Half g, Half x, const Gradient& d) {
    return to_half(half_gradient(to_float(g), to_float(x), d));
  }
  static constexpr bool kRoundsNaN = true;
  // Quotients of float16 numbers are normal floats, or zero.
  static constexpr bool kSubnormalQuotients = false;
};

struct BFloat16Type {
  using Element = BFloat16;
  template <int lanes>
  static L1NORM_INLINE FloatsOf<lanes> widen(UShortsOf<lanes> b) {
    return as<FloatsOf<lanes>>(widened<lanes>(b) << 16);
  }
  template <int lanes = kLanes>
  static L1NORM_INLINE FloatsOf<lanes> load_floats(const BFloat16* p) {
    return widen<lanes>(load<UShortsOf<lanes>>(p));
  }
  static constexpr bool kRoundsNaN = false;
  template <int lanes = kLanes>
  static L1NORM_INLINE UShortsOf<lanes> round(FloatsOf<lanes> f) {
    const UIntsOf<lanes> u = as<UIntsOf<lanes>>(f);
    return narrowed<lanes>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
  }
  static constexpr float kExactReach = 0x1p16f;
  // Of a strict bound of an exact number: how ties go does not matter.
  template <int lanes>
  static L1NORM_INLINE UShortsOf<lanes> round_bound(FloatsOf<lanes> f) {
    return narrowed<lanes>((as<UIntsOf<lanes>>(f) + 0x8000u) >> 16);
  }
  static L1NORM_INLINE BFloat16 divide(BFloat16 x, Divisor m) {
    return to_bfloat16(static_cast<float>(divide_exactly<BFloat16Format>(static_cast<double>(to_float(x)), m)));
  }
  static L1NORM_INLINE BFloat16 differentiate(BFloat16 g, BFloat16 x, const Gradient& d) {
    return to_bfloat16(half_gradient(to_float(g), to_float(x), d));
  }
  static constexpr bool kSubnormalQuotients = true;
};

struct DoubleType {
  using Element = double;
  static L1NORM_INLINE Floats load_floats(const double* p) { return to_floats(load<Doubles>(p)); }
  static L1NORM_INLINE Doubles round(Floats f) { return to_doubles(f); }
  static constexpr bool kRoundsNaN = true;
  static L1NORM_INLINE double divide(double x, Divisor m) { return divide_exactly(x, m); }
  static L1NORM_INLINE double differentiate(double g, double x, const Gradient& d) { return input_gradient(g, x, d); }
};

template <typename Element>
struct Typed;
template <>
struct Typed<float> : FloatType {
  using Bits = uint32_t;
  static constexpr int kFraction = Float32Format::kBits - 1;  // bits
};
template <>
struct Typed<Half> : HalfType {
  using Bits = uint16_t;
  static constexpr int kFraction = Float16Format::kBits - 1;  // bits
};
template <>
struct Typed<BFloat16> : BFloat16Type {
  using Bits = uint16_t;
  static constexpr int kFraction = BFloat16Format::kBits - 1;  // bits
};
template <>
struct Typed<double> : DoubleType {
  using Bits = uint64_t;
  static constexpr int kFraction = 52;  // bits
};

// Vectors that hold a type's elements.
template <typename Element, int lanes>
struct ResultOf : VectorOf<Element, lanes> {};
template <int lanes>
struct ResultOf<Half, lanes> : VectorOf<uint16_t, lanes> {};
template <int lanes>
struct ResultOf<BFloat16, lanes> : VectorOf<uint16_t, lanes> {};

}  // namespace
}  // namespace l1norm::cpu
