// Quotients of windows of columns.
#pragma once

#include "unproven.cuh"
#include "windows.cuh"

namespace l1norm::cuda {
namespace column_ring_kernel {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

// What is known of a column with that sum: of float32, a divisor in two words, of which an infinite one stands for all
// that divide_by() is not for, and zero and NaN make quotients NaN; of halves, bounds of its inverse, or such as prove
// no quotient.
template <typename T>
__device__ __forceinline__ float2 known_floats(const Sum& sum, const Call& c) {
  if constexpr (sizeof(T) == 2) {
    const Quotient<T> by(sum, c.count, c.eps);
    return by.usable ? make_float2(by.above, by.below) : make_float2(INFINITY, 0.0f);
  } else {
    const FloatDivisor m(sum, c.count, c.eps);
    return m.usable ? make_float2(m.hi, m.is_special ? 0.0f : m.lo) : make_float2(INFINITY, 0.0f);
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

  // In two words.
  struct Divisor {
    float hi, lo, inverse;

    __device__ __forceinline__ Divisor(float hi_, float lo_) : hi(hi_), lo(lo_), inverse(approximate_reciprocal(hi_)) {}
  };

  // As Quotient<float>, without what is made once a divisor; constants in the place of two products: what is rounded of
  // the correction is 2^-24 of it. Zero where y is the quotient rounded once, if x is in range.
  static __device__ __forceinline__ uint32_t divide_by(float x, const Divisor& m, float& y) {
    const float q = x * m.inverse;
    const float correction = fmaf(q, m.lo, fmaf(q, m.hi, -x)) * m.inverse;
    y = fmaf(correction, -(1.0f + 0x1p-18f), q);
    return __float_as_uint(y) ^ __float_as_uint(fmaf(correction, -(1.0f - 0x1p-18f), q));
  }

  // What elements must be above, twice their bits less one, so that quotients by a window's divisors are normal and
  // remainders lose nothing. All are not where one of the divisors is infinite.
  __device__ __forceinline__ uint32_t limit_of(int n) const {
    constexpr int kPairs = W::kWhole ? W::kColumns / 2 : W::kColumns, kLanes = kPairs < 32 ? kPairs : 32;
    const int first = W::kWhole ? n * W::kColumns : (n * W::kColumns + l.shift - (W::kColumns - 1)) & ~1;
    float most = 0.0f;
#pragma unroll
    for (int i = 0; i < kPairs / kLanes; ++i) {
      const float4 pair = words_at((first + 2 * (lane_of_warp() % kLanes + 32 * i)) * 8);
      most = fmaxf(most, fmaxf(pair.x, pair.z));
    }
    const uint32_t bits = __reduce_max_sync(0xffffffffu, __float_as_uint(most));
    if (bits >= __float_as_uint(INFINITY)) return ~0u;
    return 2u * __float_as_uint(fmaxf(0x1p-101f, __uint_as_float(bits) * 0x1p-90f)) - 2u;
  }

  // The divisors of the pair of columns of that index times 8.
  using Words = float4;
  __device__ __forceinline__ Words words_at(int index) const {
    return this->template words_of<float4>(tables.results.floats, index);
  }
  struct Made {
    Divisor first, second;

    __device__ __forceinline__ explicit Made(const Words& m) : first(m.x, m.y), second(m.z, m.w) {}
  };

  // False where one is not proven.
  __device__ __forceinline__ bool make(const Held& held, const Made& by, int, uint32_t limit, Few& y) const {
    const Few& x = held.x;
    const uint32_t differ = divide_by(x[0], by.first, y.units[0]) | divide_by(x[1], by.second, y.units[1]);
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
struct WindowHalfQuotients : Ring<W> {
  using Ring<W>::c;
  using Ring<W>::tables;
  using typename Ring<W>::Element;
  using typename Ring<W>::Few;
  using Held = typename WindowQuotients<W>::Held;

  __device__ __forceinline__ uint32_t limit_of(int) const { return 0; }

  // Bounds of the inverses of four divisors.
  struct Words {
    float4 first, second;
  };
  __device__ __forceinline__ Words words_at(int index) const {
    const auto& floats = tables.results.floats;
    return {this->template words_of<float4>(floats, index), this->template words_of<float4>(floats, index + 16)};
  }
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
