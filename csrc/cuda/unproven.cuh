// Quotients that quotient.cuh does not prove, by exact arithmetic.
#pragma once

#include "../call.h"
#include "quotient.cuh"

namespace l1norm::cuda {

// x / m rounded once to T, for any x and m.
template <typename T>
__device__ __forceinline__ T exact_quotient(T x, const Divisor& m) {
  if constexpr (sizeof(T) == 2) {
    using Format = std::conditional_t<std::is_same_v<T, __half>, Float16Format, BFloat16Format>;
    return narrow<T>(static_cast<float>(divide_exactly<Format>(widen(x), m)));
  } else {
    return divide_exactly(x, m);
  }
}

template <typename T>
__device__ __forceinline__ Divisor exact_divisor(const Sum& total, const Call& c) {
  return make_divisor<Wide<T>>(total, c.count, c.eps);
}

// Whether what is not proven is better read again than kept in registers: for float64 it is next to nothing.
template <typename T>
constexpr bool kReadAgain = sizeof(T) == 8;

// A pack's quotients, and a bit for each that is not proven. quotient_of(k): the one that divides the k-th element.
template <typename T, int N, typename QuotientOf>
__device__ __forceinline__ uint32_t unproven_halves(const Pack<T, N>& pack, const QuotientOf& quotient_of,
                                                    Pack<T, N>& quotients) {
  static_assert(Pack<T, N>::kPairs);
  uint32_t unproven = 0;
#pragma unroll
  for (int k = 0; k < N; k += 2) {
    const Quotient<T>&first = quotient_of(k), &second = quotient_of(k + 1);
    const uint32_t differ = Quotient<T>::divide_pair(first, second, pack.units[k / 2], quotients.units[k / 2]);
    if (!first.usable || (differ & 0xffffu) != 0) unproven |= 1u << k;
    if (!second.usable || (differ >> 16) != 0) unproven |= 2u << k;
  }
  return unproven;
}

// Whether what divide_nearby() answers counts. Not where eps takes the sum's place, or may.
template <typename T>
__device__ __forceinline__ bool is_nearby(const Quotient<T>& quotient, const Sum& sum, const Call& c) {
  return quotient.usable && sum.hi > c.eps * c.count.value * (1.0 + 0x1p-40) && c.count.value < 0x1p40;
}

// The quotient of a half, where a few instructions tell it: the nearer one of the two that bounds round to, which are
// neighbours. False elsewhere.
template <typename T>
__device__ __forceinline__ bool divide_nearby(T x, const Quotient<T>& quotient, const Sum& sum, const Call& c, T& y) {
  static_assert(sizeof(T) == 2);
  const float size = fabsf(widen(x));
  const uint32_t bounds = narrow_pair<T>(__fmul_ru(size, quotient.above), __fmul_rd(size, quotient.below));
  const float upper = widen_first<T>(bounds), lower = widen_second<T>(bounds);
  const double middle = static_cast<double>(fmaf(lower, 0.5f, upper * 0.5f));
  // Whether the element is above the middle's product with the divisor, both times the count. Near the middle the first
  // difference is exact.
  const double scaled = static_cast<double>(size) * c.count.value;
  const double rest = fma(-middle, sum.lo, fma(-middle, sum.hi, scaled));
  const bool tie = fabs(rest) < scaled * kUnknown, takes_upper = tie ? (bounds & 1) == 0 : rest > 0.0;
  y = narrow<T>(copysignf(takes_upper ? upper : lower, widen(x)));
  return upper < INFINITY;
}

// What finds a row's quotients that are not proven. kNearby: by way of divide_nearby(), where that answers.
template <typename T, bool kNearby = sizeof(T) == 2>
class Exactly {
 public:
  __device__ __forceinline__ Exactly(const Sum& sum, const Call& c) : c_(c) {
    if constexpr (kNearby) {
      of_ = sum;
    } else {
      of_ = exact_divisor<T>(sum, c);
    }
  }

  __device__ __forceinline__ T divide(T x, const Quotient<T>& quotient) const {
    if constexpr (kNearby) {
      T y;
      if (is_nearby(quotient, of_, c_) && divide_nearby(x, quotient, of_, c_, y)) return y;
      Sum sum = of_;
      asm volatile("" : "+d"(sum.hi));  // else the divisor is made ahead of all, and kept
      return exact_quotient(x, exact_divisor<T>(sum, c_));
    } else {
      return exact_quotient(x, of_);
    }
  }

 private:
  const Call& c_;
  std::conditional_t<kNearby, Sum, Divisor> of_;
};

// The quotient of one element whose pack was not proven.
template <typename T, bool kNearby>
__device__ __forceinline__ T divide_again(T x, const Quotient<T>& quotient, const Exactly<T, kNearby>& exactly) {
  const Pack<T, 1> element{{x}};
  Pack<T, 1> y;
  return quotient.divide(element, y) ? y[0] : exactly.divide(x, quotient);
}

// The quotients of N elements, of kColumns neighbouring rows, that were not proven together and were stored as they
// were read. at(k): where the k-th is; null for none. sum_of(column): its row's.
template <int N, typename T, int kColumns, typename At, typename SumOf>
__device__ __forceinline__ void divide_stored_again(const Quotient<T> (&quotients)[kColumns], const At& at,
                                                    const SumOf& sum_of, const Call& c) {
  constexpr bool kHalf = sizeof(T) == 2, kMany = N > 2;
  static_assert(N <= 2 || kColumns == 2);
  T* to[N];
#pragma unroll
  for (int k = 0; k < N; ++k) to[k] = at(k);
  // All of them before one waits for another's quotient.
  const Pack<T, N> x = make_pack<T, N>([&](int k) { return to[k] != nullptr ? *to[k] : T{}; });
  uint32_t left = (1u << N) - 1;
  Pack<T, N> proven;
  if constexpr (kMany) left = unproven_halves(x, [&](int k) -> const Quotient<T>& { return quotients[k % 2]; }, proven);
#pragma unroll
  for (int k = 0; k < N; ++k) {
    T y;
    bool found = to[k] == nullptr;
    if constexpr (kMany) {
      if ((left >> k & 1) != 0) continue;
      y = proven[k];
    } else if constexpr (kHalf) {
      // Of both at once, without a branch.
      const Sum sum = sum_of(k);
      const bool nearby = divide_nearby(x[k], quotients[k], sum, c, y);
      if (!found && !(nearby & is_nearby(quotients[k], sum, c))) continue;
    } else {
      const Pack<T, 1> element{{x[k]}};
      Pack<T, 1> quotient;
      if (!found && !quotients[k % kColumns].divide(element, quotient)) continue;
      y = quotient[0];
    }
    left &= ~(1u << k);
    if (!found) *to[k] = y;
  }
#pragma unroll 1
  for (; left != 0; left &= left - 1) {
    const int wanted = __ffs(static_cast<int>(left)) - 1, column = wanted % kColumns;
    T* mine = to[0];
    T element = x[0];
#pragma unroll
    for (int k = 1; k < N; ++k) {
      mine = k == wanted ? to[k] : mine;
      element = k == wanted ? x[k] : element;
    }
    if (mine == nullptr) continue;
    const Sum sum = sum_of(column);
    if constexpr (kHalf && kMany) {
      Quotient<T> own = quotients[0];
      if (column != 0) own = quotients[kColumns - 1];  // by value, as an array that is indexed lies in memory
      T y;
      if (is_nearby(own, sum, c) && divide_nearby(element, own, sum, c, y)) {
        *mine = y;
        continue;
      }
    }
    *mine = exact_quotient(element, exact_divisor<T>(sum, c));
  }
}

// The quotients of a pack that was not proven. Halves that were proven are at y: the others are found side by side and
// then taken one by one, so that lanes of a warp, each with another one, do the same.
template <typename T, int N, bool kNearby>
__device__ __forceinline__ void divide_each_again(const Pack<T, N>& pack, T* y, const Quotient<T>& quotient,
                                                  const Exactly<T, kNearby>& exactly) {
  if constexpr (Pack<T, N>::kPairs) {
    Pack<T, N> quotients;
    uint32_t unproven = unproven_halves(pack, [&](int) -> const Quotient<T>& { return quotient; }, quotients);
#pragma unroll 1
    for (; unproven != 0; unproven &= unproven - 1) {
      const int k = __ffs(static_cast<int>(unproven)) - 1;
      y[k] = exactly.divide(element_of(pack, k)[0], quotient);
    }
  } else {
    // Not by way of element_of(): a kernel of doubles would spill on compute capability 10.0.
#pragma unroll 1
    for (int k = 0; k < N; ++k) {
      T element = pack.units[0];
#pragma unroll
      for (int u = 1; u < N; ++u) element = u == k ? pack.units[u] : element;
      y[k] = divide_again(element, quotient, exactly);
    }
  }
}

}  // namespace l1norm::cuda
