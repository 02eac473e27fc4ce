// The signs of elements, two bits each: all that counts of a row in its gradient once their dot product is known.
#pragma once

#include <cstdint>
#include <type_traits>

#include "access.cuh"
#include "pack.cuh"

namespace l1norm::cuda {

constexpr int kSignBits = 2;  // of an element: whether it is no zero, and whether it is negative

// Of a pack.
template <typename T>
using Signs = std::conditional_t<sizeof(T) == 2, uint16_t, uint8_t>;

template <typename T>
using BitsOf = std::conditional_t<sizeof(T) == 8, uint64_t, std::conditional_t<sizeof(T) == 4, uint32_t, uint16_t>>;

template <typename T>
__device__ __forceinline__ unsigned sign_of(T x) {
  BitsOf<T> bits;
  memcpy(&bits, &x, sizeof bits);
  const unsigned negative = static_cast<unsigned>(bits >> (sizeof(T) * 8 - 1));
  return (static_cast<BitsOf<T>>(bits << 1) != 0 ? 1u : 0u) | negative << 1;
}

template <typename T, int N>
__device__ __forceinline__ unsigned signs_of_pack(const Pack<T, N>& pack) {
  unsigned signs = 0;
#pragma unroll
  for (int k = 0; k < N; ++k) signs |= sign_of(pack[k]) << (k * kSignBits);
  return signs;
}

// What stands for the elements of a pack: ones and zeros of those signs.
template <typename T, int N>
__device__ __forceinline__ Pack<T, N> pack_of_signs(unsigned signs) {
  constexpr BitsOf<T> kOne = sizeof(T) == 8              ? 0x3ff0000000000000
                             : sizeof(T) == 4            ? 0x3f800000
                             : std::is_same_v<T, __half> ? 0x3c00
                                                         : 0x3f80;
  return make_pack<T, N>([&](int k) {
    const unsigned sign = signs >> (k * kSignBits);
    const BitsOf<T> bits = static_cast<BitsOf<T>>(static_cast<BitsOf<T>>(sign >> 1) << (sizeof(T) * 8 - 1)) |
                           ((sign & 1) != 0 ? kOne : BitsOf<T>{});
    T x;
    memcpy(&x, &bits, sizeof x);
    return x;
  });
}

// Those of a thread's packs, in global memory in between.
template <typename T, int kPacks>
struct alignas(sizeof(Signs<T>) * kPacks) SignsOfPacks {
  Signs<T> signs[kPacks];
};

// A thread's packs of a row, in the place of which it has their signs.
template <typename P, int kPacks>
class InSigns;
template <typename T, int N, int kPacks>
class InSigns<Pack<T, N>, kPacks> {
 public:
  __device__ __forceinline__ explicit InSigns(uint4*) {}
  template <Access>
  __device__ __forceinline__ void load(int, const Pack<T, N>*, bool) const {}
  __device__ __forceinline__ void wait() const {}

  // Another block's, from the L2 cache.
  __device__ __forceinline__ void read(const SignsOfPacks<T, kPacks>* from, bool there) {
    using Word = std::conditional_t<sizeof *from == 16, uint4, uint2>;
    static_assert(sizeof(Word) == sizeof *from);
    Word word{};
    if (there) word = __ldcg(reinterpret_cast<const Word*>(from));
    memcpy(&mine_, &word, sizeof mine_);
  }

  template <int kGroup>
  __device__ __forceinline__ void get(int u, Pack<T, N> (&group)[kGroup]) const {
#pragma unroll
    for (int k = 0; k < kGroup; ++k) group[k] = pack_of_signs<T, N>(mine_.signs[u + k]);
  }

 private:
  SignsOfPacks<T, kPacks> mine_;
};

}  // namespace l1norm::cuda
