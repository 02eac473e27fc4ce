// GCC's and clang's portable vectors. Part of vector_kernels.h.

namespace l1norm::cpu {
namespace {

#if defined(__x86_64__) && L1NORM_VECTOR_BYTES == 16
constexpr bool kFused = false;  // a * b + c, rounded once, is a call of a function
#else
constexpr bool kFused = true;
#endif
constexpr int kLanes = L1NORM_VECTOR_BYTES / 8;  // doubles in a vector
constexpr int kWide = 2 * kLanes;                // floats

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
L1NORM_INLINE FloatsOf<kWide> fused(FloatsOf<kWide> a, FloatsOf<kWide> b, FloatsOf<kWide> c) {
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

L1NORM_INLINE Floats lower_half(FloatsOf<kWide> wide) {
  Floats half;
  __builtin_memcpy(&half, &wide, sizeof half);
  return half;
}

L1NORM_INLINE Floats upper_half(FloatsOf<kWide> wide) {
#if defined(__x86_64__) && L1NORM_VECTOR_BYTES == 64
  return as<Floats>(_mm512_maskz_extractf64x4_pd(0xff, as<__m512d>(wide), 1));
#elif defined(__x86_64__) && L1NORM_VECTOR_BYTES == 32
  return as<Floats>(_mm256_extractf128_ps(as<__m256>(wide), 1));
#else
  Floats half;
  __builtin_memcpy(&half, reinterpret_cast<const char*>(&wide) + sizeof half, sizeof half);
  return half;
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

L1NORM_INLINE FloatsOf<kWide> joined(Floats lower, Floats upper) {
#if defined(__x86_64__) && L1NORM_VECTOR_BYTES == 64
  const __m512d wide = _mm512_castpd256_pd512(as<__m256d>(lower));
  return as<FloatsOf<kWide>>(_mm512_maskz_insertf64x4(0xff, wide, as<__m256d>(upper), 1));
#elif defined(__x86_64__) && L1NORM_VECTOR_BYTES == 32
  return as<FloatsOf<kWide>>(_mm256_set_m128(as<__m128>(upper), as<__m128>(lower)));
#else
  FloatsOf<kWide> wide;
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

// Elements of the two vectors in turns, from `first` on.
template <int first, typename Vector, size_t... i>
L1NORM_INLINE Vector zipped(Vector a, Vector b, std::index_sequence<i...>) {
#if defined(__clang__)
  return __builtin_shufflevector(a, b, (first + i / 2 + (i % 2) * sizeof...(i))...);
#else
  return __builtin_shuffle(a, b, decltype(a == b){(first + i / 2 + (i % 2) * sizeof...(i))...});
#endif
}

// Every other element of the two vectors, from `first` on.
template <int first, typename Vector, size_t... i>
L1NORM_INLINE Vector unzipped(Vector a, Vector b, std::index_sequence<i...>) {
#if defined(__clang__)
  return __builtin_shufflevector(a, b, (first + 2 * i)...);
#else
  return __builtin_shuffle(a, b, decltype(a == b){(first + 2 * i)...});
#endif
}

// 0 < n < kLanes elements, and zeros.
template <typename Element>
struct Part {
  alignas(kLanes * sizeof(Element)) Element elements[kLanes];

  L1NORM_INLINE Part(const Element* from, [[maybe_unused]] int64_t n) {
#if defined(__x86_64__) && L1NORM_VECTOR_BYTES == 64
    if constexpr (sizeof elements == 64) {
      store(elements, _mm512_maskz_loadu_epi8(mask(n), from));
    } else if constexpr (sizeof elements == 32) {
      store(elements, _mm256_maskz_loadu_epi8(static_cast<__mmask32>(mask(n)), from));
    } else {
      store(elements, _mm_maskz_loadu_epi8(static_cast<__mmask16>(mask(n)), from));
    }
#elif defined(__x86_64__) && L1NORM_VECTOR_BYTES == 32
    if constexpr (sizeof(Element) == 8) {
      store(elements,
            _mm256_maskload_epi64(reinterpret_cast<const long long*>(from), as<__m256i>(Longs{0, 1, 2, 3} < n)));
    } else if constexpr (sizeof(Element) == 4) {
      const Ints first = Ints{0, 1, 2, 3} < static_cast<int>(n);
      store(elements, _mm_maskload_epi32(reinterpret_cast<const int*>(from), as<__m128i>(first)));
    } else {
      const auto at = [&](int64_t i) { return uint64_t{as<uint16_t>(from[i])} << 16 * i; };
      store(elements, at(0) | at(n / 2) | at(n - 1));
    }
#else
    static_assert(kLanes == 2);
    elements[0] = *from;
    elements[1] = Element{};
#endif
  }

  Part() = default;

  L1NORM_INLINE void copy_to(Element* to, [[maybe_unused]] int64_t n) const {
#if defined(__x86_64__) && L1NORM_VECTOR_BYTES == 64
    if constexpr (sizeof elements == 64) {
      _mm512_mask_storeu_epi8(to, mask(n), load<__m512i>(elements));
    } else if constexpr (sizeof elements == 32) {
      _mm256_mask_storeu_epi8(to, static_cast<__mmask32>(mask(n)), load<__m256i>(elements));
    } else {
      _mm_mask_storeu_epi8(to, static_cast<__mmask16>(mask(n)), load<__m128i>(elements));
    }
#elif defined(__x86_64__) && L1NORM_VECTOR_BYTES == 32
    // Of known sizes, in a few instructions.
    if (n & 2) __builtin_memcpy(to, elements, 2 * sizeof(Element));
    if (n & 1) to[n & 2] = elements[n & 2];
#else
    *to = *elements;
#endif
  }

 private:
  static L1NORM_INLINE uint64_t mask(int64_t n) { return (uint64_t{1} << n * sizeof(Element)) - 1; }
};

}  // namespace
}  // namespace l1norm::cpu
