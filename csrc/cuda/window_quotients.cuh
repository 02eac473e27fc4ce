// Quotients of windows of columns.
#pragma once

#include "unproven.cuh"
#include "windows.cuh"

namespace l1norm::cuda {
namespace column_ring_kernel {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

template <class W>
struct WindowQuotients : Ring<W> {
  using Ring<W>::c;
  using Ring<W>::l;
  using Ring<W>::tables;

  // Two neighbours.
  struct Pair {
    float2 x;

    Pair() = default;
    __device__ __forceinline__ explicit Pair(const char* at) : x(*reinterpret_cast<const float2*>(at)) {}
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
    return this->template words_of<float4>(tables.results.divisors, index);
  }
  struct Made {
    Divisor first, second;

    __device__ __forceinline__ explicit Made(const Words& m) : first(m.x, m.y), second(m.z, m.w) {}
  };

  // False where one is not proven.
  static __device__ __forceinline__ bool make(const Pair& pair, const Made& by, uint32_t limit, float2& y) {
    const float2& x = pair.x;
    const uint32_t differ = divide_by(x.x, by.first, y.x) | divide_by(x.y, by.second, y.y);
    const uint32_t least = min(2u * __float_as_uint(x.x) - 1u, 2u * __float_as_uint(x.y) - 1u);
    return (differ == 0) & (least > limit);
  }

  // Of an element that stands where its quotient goes.
  __device__ __forceinline__ void make_again(float* place, int column) const {
    const double2 words = tables.results.totals[column & (W::kKnown - 1)];
    *place = exact_quotient(*place, exact_divisor<float>(Sum{words.x, words.y}, c));
  }
};

#endif

}  // namespace column_ring_kernel
}  // namespace l1norm::cuda
