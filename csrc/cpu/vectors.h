// GCC's and clang's portable vectors, and how each element type is read into them. Part of vector_kernels.h.

namespace l1norm::cpu {
namespace {

constexpr int kLanes = L1NORM_VECTOR_BYTES / 8;  // doubles in a vector
constexpr int kGroup = 4;                        // vectors whose sum enters the accumulator as one term

template <typename Element>
struct VectorOf {
  typedef Element type __attribute__((vector_size(kLanes * sizeof(Element))));
};
using Doubles = VectorOf<double>::type;
using Longs = VectorOf<int64_t>::type;
using Floats = VectorOf<float>::type;
using Ints = VectorOf<int32_t>::type;
using UInts = VectorOf<uint32_t>::type;
using UShorts = VectorOf<uint16_t>::type;

// The same bits as another type. (Not shared with half_types.h: vectors must not cross instruction sets.)
template <typename To, typename From>
L1NORM_INLINE To as(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  __builtin_memcpy(&to, &from, sizeof to);
  return to;
}

template <typename Vector, typename Element>
L1NORM_INLINE Vector load(const Element* p) {
  Vector v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}

template <bool streaming = false, typename Element, typename Vector>
L1NORM_INLINE void store(Element* p, Vector v) {
#if defined(__x86_64__)
  if constexpr (streaming) {  // p is aligned to the vector
    if constexpr (sizeof v == 64) {
      _mm512_stream_si512(reinterpret_cast<__m512i*>(p), as<__m512i>(v));
    } else if constexpr (sizeof v == 32) {
      _mm256_stream_si256(reinterpret_cast<__m256i*>(p), as<__m256i>(v));
    } else if constexpr (sizeof v == 16) {
      _mm_stream_si128(reinterpret_cast<__m128i*>(p), as<__m128i>(v));
    } else if constexpr (sizeof v == 8) {
      _mm_stream_si64(reinterpret_cast<long long*>(p), as<long long>(v));
    } else {
      _mm_stream_si32(reinterpret_cast<int*>(p), as<int>(v));
    }
    return;
  }
#endif
  __builtin_memcpy(p, &v, sizeof v);
}

template <typename Mask>
L1NORM_INLINE bool any(Mask mask) {
#if defined(__x86_64__) && L1NORM_VECTOR_BYTES >= 32
  if constexpr (sizeof mask == 64) {
    const __m512i m = as<__m512i>(mask);
    return _mm512_test_epi32_mask(m, m) != 0;
  } else if constexpr (sizeof mask == 32) {
    const __m256i m = as<__m256i>(mask);
    return !_mm256_testz_si256(m, m);
  } else {
    const __m128i m = as<__m128i>(mask);
    return !_mm_testz_si128(m, m);
  }
#else
  int64_t some = 0;
  for (int i = 0; i < kLanes; ++i) some |= mask[i];
  return some != 0;
#endif
}

// a * b + c, rounded once.
L1NORM_INLINE Doubles fused(Doubles a, Doubles b, Doubles c) {
#if defined(__x86_64__) && L1NORM_VECTOR_BYTES == 64
  return as<Doubles>(_mm512_fmadd_pd(as<__m512d>(a), as<__m512d>(b), as<__m512d>(c)));
#elif defined(__x86_64__) && L1NORM_VECTOR_BYTES == 32
  return as<Doubles>(_mm256_fmadd_pd(as<__m256d>(a), as<__m256d>(b), as<__m256d>(c)));
#else
  Doubles r;
  for (int i = 0; i < kLanes; ++i) r[i] = __builtin_fma(a[i], b[i], c[i]);
  return r;
#endif
}

L1NORM_INLINE Floats fused(Floats a, Floats b, Floats c) {
#if defined(__x86_64__) && L1NORM_VECTOR_BYTES == 64
  return as<Floats>(_mm256_fmadd_ps(as<__m256>(a), as<__m256>(b), as<__m256>(c)));
#elif defined(__x86_64__) && L1NORM_VECTOR_BYTES == 32
  return as<Floats>(_mm_fmadd_ps(as<__m128>(a), as<__m128>(b), as<__m128>(c)));
#else
  Floats r;
  for (int i = 0; i < kLanes; ++i) r[i] = __builtin_fmaf(a[i], b[i], c[i]);
  return r;
#endif
}

// GCC splits its own conversion of a 64-byte vector in two. (The masked form: the plain one warns in GCC 12.)
L1NORM_INLINE Doubles to_doubles(Floats f) {
#if defined(__x86_64__) && L1NORM_VECTOR_BYTES == 64
  return as<Doubles>(_mm512_maskz_cvtps_pd(0xff, as<__m256>(f)));
#else
  return __builtin_convertvector(f, Doubles);
#endif
}

L1NORM_INLINE Floats to_floats(Doubles d) {
#if defined(__x86_64__) && L1NORM_VECTOR_BYTES == 64
  return as<Floats>(_mm512_maskz_cvtpd_ps(0xff, as<__m512d>(d)));
#else
  return __builtin_convertvector(d, Floats);
#endif
}

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
  PairGradient pair;
  return make_pair_gradient(d, pair) ? input_gradient(g, x, pair) : input_gradient(g, x, d);
}

struct HalfType {
  using Element = Half;
  static L1NORM_INLINE Floats load_floats(const Half* p) {
#if defined(__x86_64__) && L1NORM_VECTOR_BYTES == 64
    return as<Floats>(_mm256_cvtph_ps(load<__m128i>(p)));
#elif defined(__x86_64__) && L1NORM_VECTOR_BYTES == 32
    return as<Floats>(_mm_cvtph_ps(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
#else
    Floats f;
    for (int i = 0; i < kLanes; ++i) f[i] = to_float(p[i]);
    return f;
#endif
  }
  static L1NORM_INLINE UShorts round(Floats f) {
#if defined(__x86_64__) && L1NORM_VECTOR_BYTES == 64
    return as<UShorts>(_mm256_cvtps_ph(as<__m256>(f), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#elif defined(__x86_64__) && L1NORM_VECTOR_BYTES == 32
    const __m128i h = _mm_cvtps_ph(as<__m128>(f), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    return as<UShorts>(_mm_cvtsi128_si64(h));
#else
    UShorts h;
    for (int i = 0; i < kLanes; ++i) h[i] = to_half(f[i]).bits;
    return h;
#endif
  }
  static L1NORM_INLINE Half divide(Half x, Divisor m) {
    return to_half(round_to_odd_float(quotient_to_odd(to_float(x), m)));
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
  static L1NORM_INLINE Floats load_floats(const BFloat16* p) {
    return as<Floats>(__builtin_convertvector(load<UShorts>(p), UInts) << 16);
  }
  static constexpr bool kRoundsNaN = false;
  static L1NORM_INLINE UShorts round(Floats f) {
    const UInts u = as<UInts>(f);
    return __builtin_convertvector((u + 0x7fffu + ((u >> 16) & 1u)) >> 16, UShorts);
  }
  static L1NORM_INLINE BFloat16 divide(BFloat16 x, Divisor m) {
    return to_bfloat16(round_to_odd_float(quotient_to_odd(to_float(x), m)));
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
};
template <>
struct Typed<Half> : HalfType {
  using Bits = uint16_t;
};
template <>
struct Typed<BFloat16> : BFloat16Type {
  using Bits = uint16_t;
};
template <>
struct Typed<double> : DoubleType {
  using Bits = uint64_t;
};

// n < kLanes elements, and zeros.
template <typename Element>
struct Part {
  Element elements[kLanes] = {};

  L1NORM_INLINE Part(const Element* from, int64_t n) {
    __builtin_memcpy(elements, from, static_cast<size_t>(n) * sizeof(Element));
  }
};

}  // namespace
}  // namespace l1norm::cpu
