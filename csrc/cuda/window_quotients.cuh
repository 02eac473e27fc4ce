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

  // As Quotient<float>, without what is made once a divisor; constants in the place of two products: what is rounded of
  // the correction is 2^-24 of it. Zero where y is the quotient rounded once, if x is in range.
  static __device__ __forceinline__ uint32_t divide_by(float x, float hi, float lo, float& y) {
    const float inverse = approximate_reciprocal(hi), q = x * inverse;
    const float correction = fmaf(q, lo, fmaf(q, hi, -x)) * inverse;
    y = fmaf(correction, -(1.0f + 0x1p-18f), q);
    return __float_as_uint(y) ^ __float_as_uint(fmaf(correction, -(1.0f - 0x1p-18f), q));
  }

  // What elements must be above, twice their bits less one, so that quotients by a window's divisors are normal and
  // remainders lose nothing. All are not where one of the divisors is infinite.
  __device__ __forceinline__ uint32_t limit_of(int n) const {
    const int first = (n * W::kColumns + l.shift - (W::kColumns - 1)) & ~1;
    float most = 0.0f;
#pragma unroll
    for (int i = 0; i < W::kColumns / 32; ++i) {
      const float4 pair = words_at((first + 2 * (lane_of_warp() + 32 * i)) * 8);
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

  // False where one is not proven.
  static __device__ __forceinline__ bool make(const Pair& pair, const Words& m, uint32_t limit, float2& y) {
    const float2& x = pair.x;
    const uint32_t differ = divide_by(x.x, m.x, m.y, y.x) | divide_by(x.y, m.z, m.w, y.y);
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
