// The row kernels in GCC's and clang's portable vectors, compiled once for each instruction set by kernels_*.cpp.
// No include guard, no includes: the including file sets L1NORM_CAPABILITY, L1NORM_CAPABILITY_NAME and
// L1NORM_VECTOR_BYTES, and selects the instruction set.

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
    return to_half(input_gradient(to_float(g), to_float(x), d));
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
    return to_bfloat16(input_gradient(to_float(g), to_float(x), d));
  }
  static constexpr bool kSubnormalQuotients = true;
};

struct DoubleType {
  using Element = double;
  static L1NORM_INLINE double divide(double x, Divisor m) { return divide_exactly(x, m); }
  static L1NORM_INLINE double differentiate(double g, double x, const Gradient& d) { return input_gradient(g, x, d); }
};

// sgn(x) * magnitude, for a finite one's bits.
L1NORM_INLINE Doubles signed_as(Doubles x, Longs magnitude) {
  return as<Doubles>(((as<Longs>(x) & INT64_MIN) ^ magnitude) & (x != 0.0));
}

// Two compensated accumulators a lane, so that their chains overlap.
struct Accumulators {
  Doubles hi[2] = {}, lo[2] = {};

  L1NORM_INLINE void add(int k, Doubles x) {
    const Doubles s = hi[k] + x, t = s - hi[k];
    lo[k] += (hi[k] - (s - t)) + (x - t);
    hi[k] = s;
  }

  L1NORM_INLINE Sum total() const {
    Sum total;
    for (int k = 0; k < 2; ++k) {
      for (int i = 0; i < kLanes; ++i) total = total + Sum{hi[k][i], lo[k][i]};
    }
    return total;
  }
};

L1NORM_INLINE Doubles magnitudes(Floats f) { return to_doubles(as<Floats>(as<Ints>(f) & 0x7fffffff)); }

// The sum of four vectors' magnitudes: exact in double unless the exponents lie more than 29 apart.
template <typename Type>
L1NORM_INLINE Doubles group_sum(const typename Type::Element* p) {
  return (magnitudes(Type::load_floats(p)) + magnitudes(Type::load_floats(p + kLanes))) +
         (magnitudes(Type::load_floats(p + 2 * kLanes)) + magnitudes(Type::load_floats(p + 3 * kLanes)));
}

template <typename Type>
L1NORM_INLINE void add_block(Accumulators& a, const typename Type::Element* p) {
  if constexpr (sizeof(typename Type::Element) == 8) {
    for (int g = 0; g < 2 * kGroup; ++g) {
      a.add(g & 1, as<Doubles>(load<Longs>(p + g * kLanes) & INT64_MAX));
    }
  } else {
    a.add(0, group_sum<Type>(p));
    a.add(1, group_sum<Type>(p + kGroup * kLanes));
  }
}

constexpr int kBlock = 2 * kGroup * kLanes;  // elements that a step of a loop handles

// Fewer than kBlock elements, and zeros.
template <typename Element>
struct Part {
  Element elements[kBlock] = {};

  L1NORM_INLINE Part(const Element* from, int64_t n) {
    __builtin_memcpy(elements, from, static_cast<size_t>(n) * sizeof(Element));
  }
};

template <typename Type>
Sum sum(const void* x, int64_t n) {
  using Element = typename Type::Element;
  const Element* p = static_cast<const Element*>(x);
  Accumulators a;
  int64_t i = 0;
  for (; i + kBlock <= n; i += kBlock) add_block<Type>(a, p + i);
  if (i < n) add_block<Type>(a, Part<Element>(p + i, n - i).elements);
  return a.total();
}

template <typename Type>
L1NORM_INLINE void add_products(Accumulators& a, const typename Type::Element* g, const typename Type::Element* x,
                                Doubles scale) {
  for (int k = 0; k < 2 * kGroup; ++k) {
    if constexpr (sizeof(typename Type::Element) == 8) {
      const Doubles v = load<Doubles>(x + k * kLanes) * scale, w = load<Doubles>(g + k * kLanes), product = w * v;
      a.add(k & 1, product);
      a.lo[k & 1] += fused(w, v, -product);
    } else {
      a.add(k & 1, to_doubles(Type::load_floats(g + k * kLanes)) * to_doubles(Type::load_floats(x + k * kLanes)));
    }
  }
}

template <typename Type>
Sum dot(const void* gradients, const void* input, int64_t n, double scale) {
  using Element = typename Type::Element;
  const Element* g = static_cast<const Element*>(gradients);
  const Element* x = static_cast<const Element*>(input);
  const Doubles scales = Doubles{} + scale;
  Accumulators a;
  int64_t i = 0;
  for (; i + kBlock <= n; i += kBlock) add_products<Type>(a, g + i, x + i, scales);
  if (i < n) add_products<Type>(a, Part<Element>(g + i, n - i).elements, Part<Element>(x + i, n - i).elements, scales);
  return a.total();
}

template <bool streaming, typename Element, typename Vector>
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

// An operation on a row's elements: block() does kBlock of them and tells whether all are right, each() does any number
// one at a time, usable tells whether block() can do any.

// Quotients of a row by a shared divisor. block() proves them: two products that bracket the exact quotient rounded
// alike.
template <typename Type>
struct Quotients;

template <typename Type>
struct Division {
  using Element = typename Type::Element;

  Divisor divisor;

  void each(const Element* x, Element* y, int64_t n) const {
    for (int64_t i = 0; i < n; ++i) y[i] = Type::divide(x[i], divisor);
  }
};

template <>
struct Quotients<FloatType> : Division<FloatType> {
  Doubles above, below;
  bool usable;

  explicit Quotients(Divisor m) : Division{m}, usable(m.hi > 0x1p-400 && m.hi < 0x1p400) {
    const double inverse = 1.0 / m.hi;  // within 2^-52 of the quotient once multiplied
    above = Doubles{} + inverse * (1.0 + 0x1p-50);
    below = Doubles{} + inverse * (1.0 - 0x1p-50);
  }

  using Result = Floats;

  L1NORM_INLINE bool block(const float* x, Floats* q) const {
    Ints unproven = {};
    for (int g = 0; g < 2 * kGroup; ++g) {
      const Doubles v = to_doubles(load<Floats>(x + g * kLanes));
      q[g] = to_floats(v * above);
      unproven |= q[g] != to_floats(v * below);
    }
    return !any(unproven);
  }
};

template <typename Type>
struct HalfQuotients : Division<Type> {
  Floats above, below;
  bool usable;

  explicit HalfQuotients(Divisor m) : Division<Type>{m}, usable(m.hi > 0x1p-100 && m.hi < 0x1p100) {
    const float inverse = static_cast<float>(1.0 / m.hi);  // within 2^-23 of the quotient once multiplied
    above = Floats{} + inverse * (1.0f + 0x1p-22f);
    below = Floats{} + inverse * (1.0f - 0x1p-22f);
  }

  using Result = UShorts;

  L1NORM_INLINE bool block(const typename Type::Element* x, UShorts* q) const {
    Ints unproven = {};
    for (int g = 0; g < 2 * kGroup; ++g) {
      const Floats v = Type::load_floats(x + g * kLanes), high = v * above;
      q[g] = Type::round(high);
      unproven |= __builtin_convertvector(q[g] != Type::round(v * below), Ints);
      if constexpr (Type::kSubnormalQuotients) {  // the products' own rounding must stay relative
        unproven |= (as<Floats>(as<Ints>(high) & 0x7fffffff) < 0x1p-120f) & (v != 0.0f);
      }
    }
    return !any(unproven);
  }
};
template <>
struct Quotients<HalfType> : HalfQuotients<HalfType> {
  using HalfQuotients::HalfQuotients;
};
template <>
struct Quotients<BFloat16Type> : HalfQuotients<BFloat16Type> {
  using HalfQuotients::HalfQuotients;
};

template <>
struct Quotients<DoubleType> : Division<DoubleType> {
  Doubles hi, lo, inverse, smallest;
  bool usable;

  explicit Quotients(Divisor m) : Division{m}, usable(m.hi > 0x1p-900 && m.hi < 0x1p900 && m.shift == 0) {
    hi = Doubles{} + m.hi;
    lo = Doubles{} + m.lo;
    inverse = Doubles{} + 1.0 / m.hi;
    // Above it remainders are exact and quotients normal.
    smallest = Doubles{} + (m.hi < 0x1p60 ? 0x1p-960 : m.hi * 0x1p-1020);
  }

  using Result = Doubles;

  L1NORM_INLINE bool block(const double* x, Doubles* quotients) const {
    Longs unproven = {};
    for (int g = 0; g < 2 * kGroup; ++g) {
      const Doubles v = load<Doubles>(x + g * kLanes), q = v * inverse;
      const Doubles r = fused(-q, lo, fused(-q, hi, v));
      const Longs sign = as<Longs>(v) & INT64_MIN;  // -0 / m is -0, which the remainder's sum would lose
      quotients[g] = as<Doubles>((as<Longs>(fused(r, inverse, q)) & INT64_MAX) | sign);
      unproven |= (as<Doubles>(as<Longs>(v) & INT64_MAX) < smallest) & (v != 0.0);
    }
    return !any(unproven);
  }
};

// y[i] = g[i] / m - sgn(x[i]) * through. block() leaves a row whose through is not finite, where sgn(0) matters, to
// each().
template <typename Type>
struct Differences {
  using Element = typename Type::Element;
  using Result = decltype(Type::round(Floats{}));

  Gradient gradient;
  Doubles inverse;
  Longs through;
  bool usable;

  explicit Differences(const Gradient& d)
      : gradient(d),
        inverse(Doubles{} + d.inverse),
        through(as<Longs>(Doubles{} + d.through)),
        usable(is_finite(d.through)) {}

  void each(const Element* g, const Element* x, Element* y, int64_t n) const {
    for (int64_t i = 0; i < n; ++i) y[i] = Type::differentiate(g[i], x[i], gradient);
  }

  L1NORM_INLINE bool block(const Element* g, const Element* x, Result* y) const {
    Ints nan = {};
    for (int k = 0; k < 2 * kGroup; ++k) {
      const Doubles v = to_doubles(Type::load_floats(x + k * kLanes));
      const Doubles product = to_doubles(Type::load_floats(g + k * kLanes)) * inverse;
      const Floats f = to_floats(product - signed_as(v, through));
      if constexpr (!Type::kRoundsNaN) nan |= f != f;
      y[k] = Type::round(f);
    }
    return Type::kRoundsNaN || !any(nan);
  }
};

template <>
struct Differences<DoubleType> {
  using Result = Doubles;

  Gradient gradient;
  Doubles inverse, inverse_low;
  Longs through, through_low;
  bool usable;

  explicit Differences(const Gradient& d)
      : gradient(d),
        inverse(Doubles{} + d.inverse),
        inverse_low(Doubles{} + d.inverse_low),
        through(as<Longs>(Doubles{} + d.through)),
        through_low(as<Longs>(Doubles{} + d.through_low)),
        usable(is_finite(d.through)) {}

  void each(const double* g, const double* x, double* y, int64_t n) const {
    for (int64_t i = 0; i < n; ++i) y[i] = input_gradient(g[i], x[i], gradient);
  }

  L1NORM_INLINE bool block(const double* gradients, const double* x, Doubles* y) const {
    Longs infinite = {};
    for (int k = 0; k < 2 * kGroup; ++k) {
      const Doubles v = load<Doubles>(x + k * kLanes), g = load<Doubles>(gradients + k * kLanes);
      const Doubles product = g * inverse, t = signed_as(v, through);
      const Doubles product_low = fused(g, inverse_low, fused(g, inverse, -product));
      const Doubles difference = product - t, step = difference - product;
      const Doubles error = (product - (difference - step)) - (t + step);
      y[k] = difference + (error + (product_low - signed_as(v, through_low)));
      infinite |= y[k] - y[k] != 0.0;
    }
    return !any(infinite);
  }
};

template <bool streaming, typename Operation, typename Element, typename... Inputs>
L1NORM_INLINE void run_block(const Operation& operation, Element* y, const Inputs*... inputs) {
  typename Operation::Result results[2 * kGroup];
  if (!operation.block(inputs..., results)) return operation.each(inputs..., y, kBlock);
  for (int k = 0; k < 2 * kGroup; ++k) store<streaming>(y + k * kLanes, results[k]);
}

template <typename Operation, typename Element, typename... Inputs>
void run_part(const Operation& operation, int64_t n, Element* y, const Inputs*... inputs) {
  Element results[kBlock];
  run_block<false>(operation, results, Part<Element>(inputs, n).elements...);
  __builtin_memcpy(y, results, static_cast<size_t>(n) * sizeof(Element));
}

template <bool streaming, typename Operation, typename Element, typename... Inputs>
int64_t run_body(const Operation& operation, int64_t i, int64_t n, Element* y, const Inputs*... inputs) {
  for (; i + kBlock <= n; i += kBlock) run_block<streaming>(operation, y + i, (inputs + i)...);
  return i;
}

// y may be an input.
template <typename Operation, typename Element, typename... Inputs>
void run(const Operation& operation, int64_t n, bool streaming, Element* y, const Inputs*... inputs) {
  if (!operation.usable) return operation.each(inputs..., y, n);
  int64_t i = 0;
  if (streaming && n >= 4 * kBlock) {
    i = static_cast<int64_t>((-reinterpret_cast<uintptr_t>(y) & 63) / sizeof(Element));
    if (i > 0) run_part(operation, i, y, inputs...);
    i = run_body<true>(operation, i, n, y, inputs...);
#if defined(__x86_64__)
    _mm_sfence();  // streaming stores are ordered by nothing else
#endif
  } else {
    i = run_body<false>(operation, i, n, y, inputs...);
  }
  if (i < n) run_part(operation, n - i, y + i, (inputs + i)...);
}

template <typename Type>
void divide(const void* x, void* y, int64_t n, Divisor m, bool streaming) {
  using Element = typename Type::Element;
  run(Quotients<Type>(m), n, streaming, static_cast<Element*>(y), static_cast<const Element*>(x));
}

template <typename Type>
void differentiate(const void* g, const void* x, void* y, int64_t n, const Gradient& gradient, bool streaming) {
  using Element = typename Type::Element;
  run(Differences<Type>(gradient), n, streaming, static_cast<Element*>(y), static_cast<const Element*>(g),
      static_cast<const Element*>(x));
}

}  // namespace

const Capability L1NORM_CAPABILITY = {
    L1NORM_CAPABILITY_NAME,
    {sum<HalfType>, divide<HalfType>, dot<HalfType>, differentiate<HalfType>},
    {sum<BFloat16Type>, divide<BFloat16Type>, dot<BFloat16Type>, differentiate<BFloat16Type>},
    {sum<FloatType>, divide<FloatType>, dot<FloatType>, differentiate<FloatType>},
    {sum<DoubleType>, divide<DoubleType>, dot<DoubleType>, differentiate<DoubleType>},
};

}  // namespace l1norm::cpu
