// A thread's share of a row's sum of magnitudes.
#pragma once

#include "../exact.h"
#include "pack.cuh"

namespace l1norm::cuda {

// Sums the elements of packs that add() is given. Up to 16 elements enter as one term: they are first added to each
// other in double as a tree, which loses nothing unless their exponents lie more than 29 apart.
template <typename T>
struct Tally;

template <int N, typename Term>
__device__ __forceinline__ double add_tree(const Term& term, int first = 0) {
  if constexpr (N == 1) {
    return term(first);
  } else {
    return add_tree<N / 2>(term, first) + add_tree<N - N / 2>(term, first + N / 2);
  }
}

template <>
struct Tally<float> {
  Sum total;

  template <int kPacks, int N>
  __device__ __forceinline__ void add(const Pack<float, N>* packs) {
    accumulate(total, magnitudes<kPacks>(packs));
  }

  // As the first ones.
  template <int kPacks, int N>
  __device__ __forceinline__ void set(const Pack<float, N>* packs) {
    total = {magnitudes<kPacks>(packs), 0.0};
  }

  __device__ __forceinline__ Sum sum() const { return total; }

 private:
  template <int kPacks, int N>
  static __device__ __forceinline__ double magnitudes(const Pack<float, N>* packs) {
    return add_tree<kPacks * N>([&](int k) { return static_cast<double>(fabsf(packs[k / N][k % N])); });
  }
};

template <>
struct Tally<double> {
  Sum total;

  template <int kPacks, int N>
  __device__ __forceinline__ void add(const Pack<double, N>* packs) {
#pragma unroll
    for (int k = 0; k < kPacks * N; ++k) accumulate(total, fabs(packs[k / N][k % N]));
  }

  template <int kPacks, int N>
  __device__ __forceinline__ void set(const Pack<double, N>* packs) {
    total = {fabs(packs[0][0]), 0.0};
#pragma unroll
    for (int k = 1; k < kPacks * N; ++k) accumulate(total, fabs(packs[k / N][k % N]));
  }

  __device__ __forceinline__ Sum sum() const { return total; }
};

// A half type's exponent and fraction, placed where a double keeps its own, are the magnitude times a power of two,
// subnormals too: two integer instructions where a conversion takes eight times as long. An infinity or NaN reads as a
// number there, so the largest magnitude is kept beside the sum to tell.
template <typename T, typename T2, int kShift, int kExponent>
struct HalfTally {
  Sum total;
  T2 largest{};

  template <int kPacks, int N>
  __device__ __forceinline__ void add(const Pack<T, N>* packs) {
    accumulate(total, magnitudes<kPacks>(packs));
  }

  template <int kPacks, int N>
  __device__ __forceinline__ void set(const Pack<T, N>* packs) {
    total = {magnitudes<kPacks>(packs), 0.0};
  }

  __device__ __forceinline__ Sum sum() const {
    // Infinity or NaN where there is one.
    T ends[2];
    memcpy(ends, &largest, sizeof ends);
    const float top = widen(__hmax_nan(ends[0], ends[1]));
    const double unscale = __hiloint2double((1023 + kExponent) << 20, 0);
    return top - top == 0.0f ? Sum{total.hi * unscale, total.lo * unscale} : Sum{static_cast<double>(top), 0.0};
  }

 private:
  static constexpr uint32_t kMask = 0x7fffu << kShift;

  template <int kPacks, int N>
  __device__ __forceinline__ double magnitudes(const Pack<T, N>* packs) {
    if constexpr (N == 1) {
      return add_tree<kPacks>([&](int k) {
        unsigned short bits;
        memcpy(&bits, &packs[k], sizeof bits);
        note(bits);
        return __hiloint2double(static_cast<int>((static_cast<uint32_t>(bits) << kShift) & kMask), 0);
      });
    } else {
#pragma unroll
      for (int k = 0; k < kPacks * N / 2; ++k) note(packs[k / (N / 2)].units[k % (N / 2)]);
      return add_tree<kPacks * N>([&](int k) {
        const uint32_t both = packs[k / N].units[k % N / 2];
        const uint32_t high = k % 2 == 0 ? both << kShift : both >> (16 - kShift);
        return __hiloint2double(static_cast<int>(high & kMask), 0);
      });
    }
  }

  __device__ __forceinline__ void note(uint32_t both) {
    T2 pair;
    memcpy(&pair, &both, sizeof pair);
    largest = __hmax2_nan(largest, __habs2(pair));
  }
};
// float16: 5 bits of exponent, bias 15; bfloat16: 8 bits, bias 127; double: bias 1023.
template <>
struct Tally<__half> : HalfTally<__half, __half2, 10, 1023 - 15> {};
template <>
struct Tally<__nv_bfloat16> : HalfTally<__nv_bfloat16, __nv_bfloat162, 13, 1023 - 127> {};

// Packs of N elements that enter a sum as one term: a divisor of kPacks, of up to 16 elements.
template <int kPacks, int N, int kGroup = kPacks>
constexpr int kGroupOf =
    kGroup == 1 || (kGroup * N <= 16 && kPacks % kGroup == 0) ? kGroup
                                                              : kGroupOf<kPacks, N, (kGroup > 1 ? kGroup - 1 : 1)>;

// Adds an array of packs.
template <typename T, int N, int kPacks>
__device__ __forceinline__ void add_packs(Tally<T>& tally, const Pack<T, N> (&packs)[kPacks]) {
  constexpr int kGroup = kGroupOf<kPacks, N>;
  static_assert(kPacks % kGroup == 0);
#pragma unroll
  for (int u = 0; u < kPacks; u += kGroup) tally.template add<kGroup>(packs + u);
}

}  // namespace l1norm::cuda
