// The least magnitude among elements, but for zeros: what tells whether sums of them, and remainders, lose anything.
#pragma once

#include "pack.cuh"

namespace l1norm::cuda {

// Of all lanes of a warp.
__device__ __forceinline__ uint32_t warp_least(uint32_t bits) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  return __reduce_min_sync(0xffffffffu, bits);
#else
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) bits = min(bits, __shfl_xor_sync(0xffffffffu, bits, lanes));
  return bits;
#endif
}

// Of types that need none: sums of float16 are exact, and of doubles each is a term of its own.
template <typename T>
struct Least {
  template <int N>
  __device__ __forceinline__ void note(const Pack<T, N>&) {}
  template <typename Other>
  __device__ __forceinline__ void join(const Other&) {}
  __device__ __forceinline__ void join_warp() {}
};

template <>
struct Least<float> {
  uint32_t bits = ~0u;  // twice its own, less one: zeros rank above everything

  template <int N>
  __device__ __forceinline__ void note(const Pack<float, N>& x) {
#pragma unroll
    for (int k = 0; k < N; ++k) bits = min(bits, 2u * __float_as_uint(x.units[k]) - 1u);
  }

  // other(bits): those of another thread.
  template <typename Other>
  __device__ __forceinline__ void join(const Other& other) {
    bits = min(bits, other(bits));
  }
  // Those of all lanes of the warp.
  __device__ __forceinline__ void join_warp() { bits = warp_least(bits); }

  // The upper word of a double: sums below it are exact in double, as all elements are multiples of the least one's
  // last place, 2^-23 of its power of two. Without a least one it is far above 0.
  __device__ __forceinline__ uint32_t exact_below() const { return (exponent() + (1023u - 127u + 53u - 23u)) << 20; }

  // The same of magnitudes whose exponents are taken for a double's; at most what an infinity reads as.
  __device__ __forceinline__ uint32_t placed_below() const { return min(exponent() + (53u - 23u), 255u) << 20; }

 private:
  __device__ __forceinline__ uint32_t exponent() const { return (bits / 2u + (bits & 1u)) >> 23; }
};

template <>
struct Least<__nv_bfloat16> {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  static constexpr uint32_t kTimes = 1;  // an instruction adds to halves of a word apart
#else
  static constexpr uint32_t kTimes = 2;
#endif
  // kTimes its own, less one: of the upper elements of pairs in the upper half, of the lower ones in the lower.
  uint32_t bits = ~0u;

  template <int N>
  __device__ __forceinline__ void note(const Pack<__nv_bfloat16, N>& x) {
#pragma unroll
    for (int u = 0; u < Pack<__nv_bfloat16, N>::kUnits; ++u) {
      uint32_t both = 0;
      memcpy(&both, &x.units[u], sizeof x.units[u]);
      if constexpr (kTimes == 1) {
        bits = __viaddmin_u16x2(both & 0x7fff7fffu, ~0u, bits);
      } else {
        // The lower half may borrow of the upper one, which is even.
        bits = __vminu2(bits, 2u * (both & 0x7fff7fffu) - 0x00010001u);
      }
    }
  }

  template <typename Other>
  __device__ __forceinline__ void join(const Other& other) {
    bits = __vminu2(bits, other(bits));
  }
  __device__ __forceinline__ void join_warp() { bits = warp_least(min(bits >> 16, bits & 0xffffu)) * 0x10001u; }

  // As above, of magnitudes whose exponents are taken for a double's; at most what an infinity reads as.
  __device__ __forceinline__ uint32_t exact_below() const { return min(exponent() + (53u - 7u), 255u) << 20; }

  // Of zeros alone, above all others.
  __device__ __forceinline__ uint32_t exponent() const { return (min(bits >> 16, bits & 0xffffu) + 1u) / kTimes >> 7; }
};

template <int kPacks, typename T, int N>
__device__ __forceinline__ void note_each(Least<T>& least, const Pack<T, N>* packs) {
#pragma unroll
  for (int u = 0; u < kPacks; ++u) least.note(packs[u]);
}

}  // namespace l1norm::cuda
