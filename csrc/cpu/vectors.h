// GCC's and clang's portable vectors, and how each element type is read into them. Part of vector_kernels.h.

namespace l1norm::cpu {
namespace {

#if defined(__x86_64__) && L1NORM_VECTOR_BYTES == 16
constexpr bool kFused = false;  // a * b + c, rounded once, is a call of a function
#else
constexpr bool kFused = true;
#endif
constexpr int kLanes = L1NORM_VECTOR_BYTES / 8;  // doubles in a vector

template <typename Element, int lanes = kLanes>
struct VectorOf {
  typedef Element type __attribute__((vector_size(lanes * sizeof(Element))));
};
template <int lanes>
using FloatsOf = typename VectorOf<float, lanes>::type;
template <int lanes>
using IntsOf = typename VectorOf<int32_t, lanes>::type;
template <int lanes>
using UIntsOf = typename VectorOf<uint32_t, lanes>::type;
template <int lanes>
using UShortsOf = typename VectorOf<uint16_t, lanes>::type;
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

// A row's number, or one of each column's from column i on.
template <typename Vector, typename Number>
L1NORM_INLINE Vector numbers(Number x, [[maybe_unused]] int64_t i) {
  if constexpr (std::is_pointer_v<Number>) {
    return load<Vector>(x + i);
  } else {
    return Vector{} + x;
  }
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
  } else if constexpr (sizeof mask == 8) {
    return as<int64_t>(mask) != 0;
  } else {
    const __m128i m = as<__m128i>(mask);
    return !_mm_testz_si128(m, m);
  }
#else
  int64_t some = 0;
  for (size_t i = 0; i < sizeof mask / sizeof mask[0]; ++i) some |= mask[i];
  return some != 0;
#endif
}

L1NORM_INLINE bool all_between(Doubles x, double least, double most) {
#if defined(__x86_64__) && L1NORM_VECTOR_BYTES == 64
  const __m512d v = as<__m512d>(x);
  const __mmask8 above = _mm512_cmp_pd_mask(v, _mm512_set1_pd(least), _CMP_GT_OQ);
  return _mm512_mask_cmp_pd_mask(above, v, _mm512_set1_pd(most), _CMP_LT_OQ) == 0xff;
#else
  return !any(~((x > least) & (x < most)));
#endif
}

// Not 0 where a is less than the limit.
template <typename Unsigned>
L1NORM_INLINE Unsigned below(Unsigned a, Unsigned limit) {
  return (a > limit ? a : limit) ^ a;
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

template <typename Vector>
L1NORM_INLINE Vector fused_floats(Vector a, Vector b, Vector c) {
#if defined(__x86_64__) && L1NORM_VECTOR_BYTES == 64
  if constexpr (sizeof a == 64) return as<Vector>(_mm512_fmadd_ps(as<__m512>(a), as<__m512>(b), as<__m512>(c)));
#endif
#if defined(__x86_64__) && L1NORM_VECTOR_BYTES >= 32
  if constexpr (sizeof a == 32) return as<Vector>(_mm256_fmadd_ps(as<__m256>(a), as<__m256>(b), as<__m256>(c)));
  if constexpr (sizeof a == 16) return as<Vector>(_mm_fmadd_ps(as<__m128>(a), as<__m128>(b), as<__m128>(c)));
#endif
  Vector r;
  for (size_t i = 0; i < sizeof a / sizeof a[0]; ++i) r[i] = __builtin_fmaf(a[i], b[i], c[i]);
  return r;
}
L1NORM_INLINE Floats fused(Floats a, Floats b, Floats c) { return fused_floats(a, b, c); }
L1NORM_INLINE FloatsOf<2 * kLanes> fused(FloatsOf<2 * kLanes> a, FloatsOf<2 * kLanes> b, FloatsOf<2 * kLanes> c) {
  return fused_floats(a, b, c);
}

// GCC splits its own conversions in two. (The masked forms: the plain ones warn in GCC 12.)
L1NORM_INLINE Doubles to_doubles(Floats f) {
#if defined(__x86_64__) && L1NORM_VECTOR_BYTES == 64
  return as<Doubles>(_mm512_maskz_cvtps_pd(0xff, as<__m256>(f)));
#elif defined(__x86_64__) && L1NORM_VECTOR_BYTES == 32
  return as<Doubles>(_mm256_cvtps_pd(as<__m128>(f)));
#else
  return __builtin_convertvector(f, Doubles);
#endif
}

L1NORM_INLINE Floats to_floats(Doubles d) {
#if defined(__x86_64__) && L1NORM_VECTOR_BYTES == 64
  return as<Floats>(_mm512_maskz_cvtpd_ps(0xff, as<__m512d>(d)));
#elif defined(__x86_64__) && L1NORM_VECTOR_BYTES == 32
  return as<Floats>(_mm256_cvtpd_ps(as<__m256d>(d)));
#else
  return __builtin_convertvector(d, Floats);
#endif
}

// GCC does these in halves or by permutations.
template <int lanes>
L1NORM_INLINE UIntsOf<lanes> widened(UShortsOf<lanes> v) {
#if defined(__x86_64__) && L1NORM_VECTOR_BYTES == 64
  if constexpr (lanes == 16) return as<UIntsOf<lanes>>(_mm512_maskz_cvtepu16_epi32(0xffff, as<__m256i>(v)));
#endif
#if defined(__x86_64__) && L1NORM_VECTOR_BYTES >= 32
  if constexpr (lanes == 8) return as<UIntsOf<lanes>>(_mm256_cvtepu16_epi32(as<__m128i>(v)));
  if constexpr (lanes == 4) return as<UIntsOf<lanes>>(_mm_cvtepu16_epi32(_mm_cvtsi64_si128(as<long long>(v))));
#endif
  return __builtin_convertvector(v, UIntsOf<lanes>);
}

// Of numbers below 2^16.
template <int lanes>
L1NORM_INLINE UShortsOf<lanes> narrowed(UIntsOf<lanes> v) {
#if defined(__x86_64__) && L1NORM_VECTOR_BYTES == 64
  if constexpr (lanes == 16) return as<UShortsOf<lanes>>(_mm512_maskz_cvtepi32_epi16(0xffff, as<__m512i>(v)));
  if constexpr (lanes == 8) return as<UShortsOf<lanes>>(_mm256_maskz_cvtepi32_epi16(0xff, as<__m256i>(v)));
#endif
#if defined(__x86_64__) && L1NORM_VECTOR_BYTES == 32
  if constexpr (lanes == 8) {
    const __m256i u = as<__m256i>(v);
    return as<UShortsOf<lanes>>(_mm_packus_epi32(_mm256_castsi256_si128(u), _mm256_extracti128_si256(u, 1)));
  }
  if constexpr (lanes == 4) {
    const __m128i u = as<__m128i>(v);
    return as<UShortsOf<lanes>>(_mm_cvtsi128_si64(_mm_packus_epi32(u, u)));
  }
#endif
  return __builtin_convertvector(v, UShortsOf<lanes>);
}

L1NORM_INLINE FloatsOf<2 * kLanes> joined(Floats lower, Floats upper) {
#if defined(__x86_64__) && L1NORM_VECTOR_BYTES == 64
  const __m512d wide = _mm512_castpd256_pd512(as<__m256d>(lower));
  return as<FloatsOf<2 * kLanes>>(_mm512_maskz_insertf64x4(0xff, wide, as<__m256d>(upper), 1));
#else
  FloatsOf<2 * kLanes> wide;
  for (int i = 0; i < kLanes; ++i) wide[i] = lower[i], wide[kLanes + i] = upper[i];
  return wide;
#endif
}

// Rounded to odd: what is then rounded to a half type is d rounded once.
L1NORM_INLINE Floats to_odd_floats(Doubles d) {
  const Floats nearest = to_floats(d);
  const Doubles size = as<Doubles>(as<Longs>(d) & INT64_MAX),
                other = as<Doubles>(as<Longs>(to_doubles(nearest)) & INT64_MAX);
  const Ints more = __builtin_convertvector(size > other, Ints), less = __builtin_convertvector(size < other, Ints);
  const Ints bits = as<Ints>(nearest), even = ~bits & 1;
  return as<Floats>(bits + (even & more) - (even & less));
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
  FloatGradient floats;
  return make_float_gradient(d, floats) ? input_gradient(g, x, floats) : input_gradient(g, x, d);
}

// Half types are read and rounded in vectors of kLanes or twice as many.
struct HalfType {
  using Element = Half;
  template <int lanes = kLanes>
  static L1NORM_INLINE FloatsOf<lanes> load_floats(const Half* p) {
#if defined(__x86_64__) && L1NORM_VECTOR_BYTES == 64
    if constexpr (lanes == 16) return as<FloatsOf<lanes>>(_mm512_maskz_cvtph_ps(0xffff, load<__m256i>(p)));
#endif
#if defined(__x86_64__) && L1NORM_VECTOR_BYTES >= 32
    if constexpr (lanes == 8) return as<FloatsOf<lanes>>(_mm256_cvtph_ps(load<__m128i>(p)));
    if constexpr (lanes == 4) {
      return as<FloatsOf<lanes>>(_mm_cvtph_ps(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
    }
#endif
    FloatsOf<lanes> f;
    for (int i = 0; i < lanes; ++i) f[i] = to_float(p[i]);
    return f;
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
  template <int lanes = kLanes>
  static L1NORM_INLINE FloatsOf<lanes> load_floats(const BFloat16* p) {
    return as<FloatsOf<lanes>>(widened<lanes>(load<UShortsOf<lanes>>(p)) << 16);
  }
  static constexpr bool kRoundsNaN = false;
  template <int lanes = kLanes>
  static L1NORM_INLINE UShortsOf<lanes> round(FloatsOf<lanes> f) {
    const UIntsOf<lanes> u = as<UIntsOf<lanes>>(f);
    return narrowed<lanes>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
  }
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

// Vectors that hold a type's elements.
template <typename Element, int lanes>
struct ResultOf : VectorOf<Element, lanes> {};
template <int lanes>
struct ResultOf<Half, lanes> : VectorOf<uint16_t, lanes> {};
template <int lanes>
struct ResultOf<BFloat16, lanes> : VectorOf<uint16_t, lanes> {};

// Elements of the two vectors in turns, from `first` on.
template <int first, typename Vector, size_t... i>
L1NORM_INLINE Vector zipped(Vector a, Vector b, std::index_sequence<i...>) {
#if defined(__clang__)
  return __builtin_shufflevector(a, b, (first + i / 2 + (i % 2) * sizeof...(i))...);
#else
  return __builtin_shuffle(a, b, decltype(a == b){(first + i / 2 + (i % 2) * sizeof...(i))...});
#endif
}

// n < kLanes elements, and zeros.
template <typename Element>
struct Part {
  alignas(kLanes * sizeof(Element)) Element elements[kLanes];

  L1NORM_INLINE Part(const Element* from, int64_t n) {
#if defined(__x86_64__) && L1NORM_VECTOR_BYTES == 64
    if constexpr (sizeof elements == 64) {
      store(elements, _mm512_maskz_loadu_epi8(mask(n), from));
    } else if constexpr (sizeof elements == 32) {
      store(elements, _mm256_maskz_loadu_epi8(static_cast<__mmask32>(mask(n)), from));
    } else {
      store(elements, _mm_maskz_loadu_epi8(static_cast<__mmask16>(mask(n)), from));
    }
#else
    __builtin_memset(elements, 0, sizeof elements);
    __builtin_memcpy(elements, from, static_cast<size_t>(n) * sizeof(Element));
#endif
  }

  Part() = default;

  L1NORM_INLINE void copy_to(Element* to, int64_t n) const {
#if defined(__x86_64__) && L1NORM_VECTOR_BYTES == 64
    if constexpr (sizeof elements == 64) {
      _mm512_mask_storeu_epi8(to, mask(n), load<__m512i>(elements));
    } else if constexpr (sizeof elements == 32) {
      _mm256_mask_storeu_epi8(to, static_cast<__mmask32>(mask(n)), load<__m256i>(elements));
    } else {
      _mm_mask_storeu_epi8(to, static_cast<__mmask16>(mask(n)), load<__m128i>(elements));
    }
#else
    __builtin_memcpy(to, elements, static_cast<size_t>(n) * sizeof(Element));
#endif
  }

 private:
  static L1NORM_INLINE uint64_t mask(int64_t n) { return (uint64_t{1} << n * sizeof(Element)) - 1; }
};

}  // namespace
}  // namespace l1norm::cpu
