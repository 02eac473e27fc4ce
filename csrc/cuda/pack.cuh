// Elements as kernels read and write them: 16-byte packs, widened to the type that arithmetic is done in.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "../dtype.h"
#include "device.h"

namespace l1norm::cuda {

__device__ __forceinline__ uint32_t upper_word(double x) { return static_cast<uint32_t>(__double2hiint(x)); }

// N elements that move in one instruction. Two-byte ones are kept in pairs: one by one they would take a register each.
template <typename T, int N>
struct alignas(sizeof(T) * N) Pack {
  static constexpr bool kPairs = sizeof(T) == 2 && N > 1;
  using Unit = std::conditional_t<kPairs, uint32_t, T>;
  static constexpr int kUnits = kPairs ? N / 2 : N;
  Unit units[kUnits];

  __device__ __forceinline__ T operator[](int k) const {
    if constexpr (kPairs) {
      if constexpr (std::is_same_v<T, __half>) {
        // Not by its bits: conversions take either one of a pair, and its magnitude.
        __half2 pair;
        memcpy(&pair, &units[k / 2], sizeof pair);
        return k % 2 == 0 ? pair.x : pair.y;
      } else {
        const unsigned short bits = static_cast<unsigned short>(k % 2 == 0 ? units[k / 2] : units[k / 2] >> 16);
        T x;
        memcpy(&x, &bits, sizeof x);
        return x;
      }
    } else {
      return units[k];
    }
  }
};

// Element k of a pack, whatever k, without an address for the pack, which would move it from registers to memory.
template <typename T, int N>
__device__ __forceinline__ Pack<T, 1> element_of(const Pack<T, N>& pack, int k) {
  constexpr int kUnits = Pack<T, N>::kUnits;
  auto unit = pack.units[0];
#pragma unroll
  for (int u = 1; u < kUnits; ++u) {
    auto other = pack.units[u];
    if constexpr (sizeof other == 4) asm("" : "+r"(reinterpret_cast<uint32_t&>(other)));
    unit = k / (N / kUnits) == u ? other : unit;
  }
  Pack<T, 1> element;
  if constexpr (Pack<T, N>::kPairs) {
    const unsigned short bits = static_cast<unsigned short>(k % 2 == 0 ? unit : unit >> 16);
    memcpy(&element, &bits, sizeof element);
  } else {
    element.units[0] = unit;
  }
  return element;
}

// Made before what follows is read from memory.
template <typename T, int N>
__device__ __forceinline__ void settle(Pack<T, N>& pack) {
#pragma unroll
  for (int u = 0; u < Pack<T, N>::kUnits; ++u) asm volatile("" : "+r"(pack.units[u])::"memory");
}

// A pack of N elements, element k being make(k).
template <typename T, int N, typename Make>
__device__ __forceinline__ Pack<T, N> make_pack(const Make& make) {
  Pack<T, N> pack;
#pragma unroll
  for (int u = 0; u < Pack<T, N>::kUnits; ++u) {
    if constexpr (Pack<T, N>::kPairs) {
      const T pair[2] = {make(2 * u), make(2 * u + 1)};
      memcpy(&pack.units[u], pair, sizeof pair);
    } else {
      pack.units[u] = make(u);
    }
  }
  return pack;
}

// Of an operand that is one number. Where a row has no such element, the other operand has zeros.
template <typename T, int N, int kCount>
__device__ __forceinline__ void fill_packs(Pack<T, N> (&packs)[kCount], T number) {
#pragma unroll
  for (int u = 0; u < kCount; ++u) packs[u] = make_pack<T, N>([&](int) { return number; });
}

// Elements from the last multiple of so many, a power of two, in memory to the one at `offset` from start.
template <typename T>
__device__ __forceinline__ int elements_past(const void* start, int64_t offset, int multiple) {
  return static_cast<int>(static_cast<int64_t>(reinterpret_cast<uintptr_t>(start) / sizeof(T)) + offset) &
         (multiple - 1);
}

// Elements between p and the next multiple of that many bytes, a power of two.
template <typename T>
__device__ __forceinline__ int elements_to(const T* p, int bytes) {
  return static_cast<int>((-reinterpret_cast<uintptr_t>(p) & static_cast<unsigned>(bytes - 1)) / sizeof(T));
}

// What a value of T is computed in.
template <typename T>
using Wide = std::conditional_t<std::is_same_v<T, double>, double, float>;

// Keeps the compiler from computing an address in global memory anew from its parts wherever it is used.
template <typename P>
__device__ __forceinline__ P* settled(P* p) {
  asm("" : "+l"(p));
  __builtin_assume(__isGlobal(p));
  return p;
}

__device__ __forceinline__ float widen(__half x) { return __half2float(x); }
__device__ __forceinline__ float widen(__nv_bfloat16 x) {
  return __uint_as_float(static_cast<uint32_t>(__bfloat16_as_ushort(x)) << 16);
}
__device__ __forceinline__ float widen(float x) { return x; }
__device__ __forceinline__ double widen(double x) { return x; }

// The first and the second of two neighbours, from their bits.
template <typename T>
__device__ __forceinline__ float widen_first(uint32_t pair) {
  if constexpr (std::is_same_v<T, __half>) {
    return __low2float(*reinterpret_cast<const __half2*>(&pair));
  } else {
    return __uint_as_float(pair << 16);
  }
}
template <typename T>
__device__ __forceinline__ float widen_second(uint32_t pair) {
  if constexpr (std::is_same_v<T, __half>) {
    return __high2float(*reinterpret_cast<const __half2*>(&pair));
  } else {
    return __uint_as_float(pair & 0xffff0000u);
  }
}

// Element k of a pack.
template <typename T, int N>
__device__ __forceinline__ Wide<T> widen_at(const Pack<T, N>& pack, int k) {
  if constexpr (Pack<T, N>::kPairs) {
    return k % 2 == 0 ? widen_first<T>(pack.units[k / 2]) : widen_second<T>(pack.units[k / 2]);
  } else {
    return widen(pack.units[k]);
  }
}

template <typename T>
__device__ __forceinline__ T narrow(Wide<T> x) {
  if constexpr (std::is_same_v<T, __half>) {
    return __float2half_rn(x);
  } else if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    return __float2bfloat16_rn(x);
  } else {
    return x;
  }
}

// packs[index] without an address for the packs, which would move them from registers to memory.
template <typename P, int N>
__device__ __forceinline__ P select(const P (&packs)[N], int index) {
  P pack = packs[0];
#pragma unroll
  for (int u = 1; u < N; ++u) {
    if (u == index) pack = packs[u];
  }
  return pack;
}

// Two values as the bits of two neighbours.
template <typename T>
__device__ __forceinline__ uint32_t narrow_pair(float first, float second) {
  uint32_t bits;
  if constexpr (std::is_same_v<T, __half>) {
    const __half2 pair = __floats2half2_rn(first, second);
    memcpy(&bits, &pair, sizeof bits);
  } else {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(first, second);
    memcpy(&bits, &pair, sizeof bits);
  }
  return bits;
}

// An input element as T, cast as Tensor.to() casts: to a half type by way of float.
template <typename T, typename In>
__device__ __forceinline__ T read(In x) {
  if constexpr (std::is_same_v<T, In>) {
    return x;
  } else if constexpr (std::is_same_v<T, double>) {
    return widen(x);
  } else {
    return narrow<T>(static_cast<float>(widen(x)));
  }
}

// CUDA's type for a DType.
template <DType>
struct ElementOf;
template <>
struct ElementOf<DType::kHalf> {
  using type = __half;
};
template <>
struct ElementOf<DType::kBFloat16> {
  using type = __nv_bfloat16;
};
template <>
struct ElementOf<DType::kFloat> {
  using type = float;
};
template <>
struct ElementOf<DType::kDouble> {
  using type = double;
};

}  // namespace l1norm::cuda
