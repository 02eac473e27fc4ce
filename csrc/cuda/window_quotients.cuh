// Quotients of windows of columns.
#pragma once

#include "unproven.cuh"
#include "windows.cuh"

namespace l1norm::cuda {
namespace column_ring_kernel {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

// What is known of a column with that sum: of float32, the inverse of its divisor in two words, of which the least
// number stands for all that multiply_by() is not for, and those of zero and NaN make quotients NaN; of halves, bounds
// of that inverse, or such as prove no quotient.
constexpr float kNoInverse = 0x1p-149f;
template <typename T>
__device__ __forceinline__ float2 known_floats(const Sum& sum, const Call& c) {
  if constexpr (sizeof(T) == 2) {
    const Quotient<T> by(sum, c.count, c.eps);
    return by.usable ? make_float2(by.above, by.below) : make_float2(INFINITY, 0.0f);
  } else {
    const FloatDivisor m(sum, c.count, c.eps);
    if (!m.usable || m.hi == INFINITY) return make_float2(kNoInverse, 0.0f);
    if (m.is_special) return make_float2(m.reciprocal(), 0.0f);
    const double inverse = near_reciprocal(static_cast<double>(m.hi) + static_cast<double>(m.lo));
    const float first = static_cast<float>(inverse);
    return make_float2(first, static_cast<float>(inverse - static_cast<double>(first)));
  }
}

template <class W>
struct WindowQuotients : Ring<W> {
  using Ring<W>::c;
  using Ring<W>::l;
  using Ring<W>::tables;
  using typename Ring<W>::Few;

  // What a lane holds of a step.
  struct Held {
    Few x;

    Held() = default;
    __device__ __forceinline__ explicit Held(const char* at) : x(*reinterpret_cast<const Few*>(at)) {}
  };

  // The inverse of a divisor, within 2^-47 of it.
  struct Inverse {
    float hi, lo;
  };

  // The product's first word, and a correction by its second one, which is exact but for 2^-24 of it and 2^-47 of the
  // quotient: near a rounding boundary it is at least 2^-25 of the quotient, so that scaling it by 1 +- 2^-18 brackets
  // that. Zero where y is the quotient rounded once, if x is in range.
  static __device__ __forceinline__ uint32_t multiply_by(float x, const Inverse& by, float& y) {
    const float q = x * by.hi;
    // Of this sign, so that a zero keeps its own.
    const float excess = fmaf(-x, by.lo, fmaf(-x, by.hi, q));
    y = fmaf(excess, -(1.0f + 0x1p-18f), q);
    return __float_as_uint(y) ^ __float_as_uint(fmaf(excess, -(1.0f - 0x1p-18f), q));
  }

  // What elements must be above, twice their bits less one, so that quotients by a window's divisors are normal and
  // corrections lose nothing. All are not where a column has no inverse. Places that no column has are zeros.
  __device__ __forceinline__ uint32_t limit_of(int n) const {
    constexpr int kPairs = W::kWhole ? W::kColumns / 2 : W::kColumns, kLanes = kPairs < 32 ? kPairs : 32;
    const int first = W::kWhole ? n * W::kColumns : (n * W::kColumns + l.shift - (W::kColumns - 1)) & ~1;
    uint32_t least = ~0u;
#pragma unroll
    for (int i = 0; i < kPairs / kLanes; ++i) {
      const float4 pair = words_at((first + 2 * (lane_of_warp() % kLanes + 32 * i)) * 8);
      least = min(least, min(__float_as_uint(pair.x) - 1u, __float_as_uint(pair.z) - 1u));
    }
    least = __reduce_min_sync(0xffffffffu, least) + 1u;
    if (least == __float_as_uint(kNoInverse)) return ~0u;
    const float most = approximate_reciprocal(__uint_as_float(least));
    return 2u * __float_as_uint(fmaxf(0x1p-101f, most * 0x1p-90f)) - 2u;
  }

  // The inverses of the pair of columns of that index times 8.
  using Words = float4;
  __device__ __forceinline__ Words words_at(int index) const {
    return this->template words_of<float4>(tables.results.floats, index);
  }
  struct Made {
    Inverse first, second;

    __device__ __forceinline__ explicit Made(const Words& of) : first{of.x, of.y}, second{of.z, of.w} {}
  };

  // False where one is not proven.
  __device__ __forceinline__ bool make(const Held& held, const Made& by, int, uint32_t limit, Few& y) const {
    const Few& x = held.x;
    const uint32_t differ = multiply_by(x[0], by.first, y.units[0]) | multiply_by(x[1], by.second, y.units[1]);
    const uint32_t least = min(2u * __float_as_uint(x[0]) - 1u, 2u * __float_as_uint(x[1]) - 1u);
    return (differ == 0) & (least > limit);
  }

  // Of an element that stands where its quotient goes.
  __device__ __forceinline__ void make_again(float* place, int column) const {
    const double2 words = tables.results.doubles[column & (W::kKnown - 1)];
    *place = exact_quotient(*place, exact_divisor<float>(Sum{words.x, words.y}, c));
  }
};

// Of halves, whose windows are whole.
template <class W>
struct WindowHalfQuotients : HalfWindows<W> {
  using Ring<W>::c;
  using Ring<W>::tables;
  using typename Ring<W>::Element;
  using typename Ring<W>::Few;
  using Held = typename WindowQuotients<W>::Held;

  // Bounds of the inverses of four divisors.
  using typename HalfWindows<W>::Words;
  struct Made {
    Quotient<Element> by[4];

    __device__ __forceinline__ explicit Made(const Words& m) {
      const float words[] = {m.first.x,  m.first.y,  m.first.z,  m.first.w,
                             m.second.x, m.second.y, m.second.z, m.second.w};
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        by[k].above = words[2 * k];
        by[k].below = words[2 * k + 1];
      }
    }
  };

  __device__ __forceinline__ bool make(const Held& held, const Made& made, int, uint32_t, Few& y) const {
    uint32_t differ = 0;
#pragma unroll
    for (int u = 0; u < 2; ++u) {
      differ |= Quotient<Element>::divide_pair(made.by[2 * u], made.by[2 * u + 1], held.x.units[u], y.units[u]);
    }
    return differ == 0;
  }

  __device__ __forceinline__ void make_again(Element* place, int column) const {
    const double2 words = tables.results.doubles[column & (W::kKnown - 1)];
    const Sum sum{words.x, words.y};
    *place = Exactly<Element>(sum, c).divide(*place, Quotient<Element>(sum, c.count, c.eps));
  }
};

#endif

}  // namespace column_ring_kernel
}  // namespace l1norm::cuda
