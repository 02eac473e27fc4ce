// A thread's share of a row's sum of magnitudes.
#pragma once

#include "../exact.h"
#include "least.cuh"
#include "pack.cuh"

namespace l1norm::cuda {

template <int N, typename Term>
__device__ __forceinline__ double add_tree(const Term& term, int first = 0) {
  if constexpr (N == 1) {
    return term(first);
  } else {
    return add_tree<N / 2>(term, first) + add_tree<N - N / 2>(term, first + N / 2);
  }
}

// What packs keep in register u, counted through them, without an address.
template <int kPacks, typename T, int N>
__device__ __forceinline__ auto unit_of(const Pack<T, N>* packs, int u) {
  constexpr int kUnits = Pack<T, N>::kUnits;
  Pack<T, N / kUnits> unit{{packs[0].units[0]}};
#pragma unroll
  for (int i = 1; i < kPacks * kUnits; ++i) {
    unit.units[0] = i == u ? packs[i / kUnits].units[i % kUnits] : unit.units[0];
  }
  return unit;
}

// Sums elements that a tally loses bits of: each is a term of its own. In a loop, as it is rare.
class CarefulSum {
 public:
  template <typename Bound>
  __device__ __forceinline__ bool is_exact(const Bound&) const {
    return true;
  }

  __device__ __forceinline__ Sum sum() const { return total_; }

 protected:
  // term(): of an element, or of as many as there are operands.
  template <int kPacks, typename Term, typename T, int N, typename... Others>
  __device__ __forceinline__ void add_terms(const Term& term, const Pack<T, N>* packs, const Others*... others) {
    constexpr int kUnits = Pack<T, N>::kUnits;
#pragma unroll 1
    for (int u = 0; u < kPacks * kUnits; ++u) {
      add_unit<N / kUnits>(term, unit_of<kPacks>(packs, u), unit_of<kPacks>(others, u)...);
    }
  }

 private:
  Sum total_;

  template <int kElements, typename Term, typename... Units>
  __device__ __forceinline__ void add_unit(const Term& term, const Units&... units) {
#pragma unroll
    for (int k = 0; k < kElements; ++k) accumulate(total_, term(widen_at(units, k)...));
  }
};

template <typename T>
class CarefulTally : public CarefulSum {
 public:
  template <int kPacks, int N>
  __device__ __forceinline__ void add(const Pack<T, N>* packs) {
    add_terms<kPacks>([](float x) { return static_cast<double>(fabsf(x)); }, packs);
  }

  template <int kPacks, int N>
  __device__ __forceinline__ void set(const Pack<T, N>* packs) {
    add<kPacks>(packs);
  }

  template <int kPacks, int N>
  __device__ __forceinline__ void extend(const Pack<T, N>* packs) {
    add<kPacks>(packs);
  }
};

// A half type's magnitude as a double, times a power of two: its exponent and fraction, from the bit kShift of the
// upper word on, where a double keeps its own; subnormals too. Two integer instructions where a conversion takes eight
// times as long. An infinity or NaN reads as a number there.
template <int kShift, int kExponent>
struct Placed {
  template <typename T, int N>
  static __device__ __forceinline__ double at(const Pack<T, N>* packs, int k) {
    if constexpr (N == 1) {
      unsigned short bits;
      memcpy(&bits, &packs[k], sizeof bits);
      return of_upper(static_cast<uint32_t>(bits) << kShift);
    } else {
      const uint32_t both = packs[k / N].units[k % N / 2];
      return of_upper(k % 2 == 0 ? both << kShift : both >> (16 - kShift));
    }
  }

  static __device__ __forceinline__ double of_upper(uint32_t word) {
    return __hiloint2double(static_cast<int>(word & (0x7fffu << kShift)), 0);
  }

  static __device__ __forceinline__ Sum unscaled(const Sum& sum) {
    const double scale = __hiloint2double((1023 + kExponent) << 20, 0);
    return {sum.hi * scale, sum.lo * scale};
  }

  template <typename T>
  static __device__ __forceinline__ uint32_t exact_below(const Least<T>& least) {
    return least.exact_below();
  }
};

// A float's, converted.
struct Converted {
  template <int N>
  static __device__ __forceinline__ double at(const Pack<float, N>* packs, int k) {
    return static_cast<double>(fabsf(packs[k / N][k % N]));
  }

  static __device__ __forceinline__ Sum unscaled(const Sum& sum) { return sum; }
  static __device__ __forceinline__ uint32_t exact_below(const Least<float>& least) { return least.exact_below(); }
};

// Likewise placed, in three integer instructions: where few warps share a multiprocessor they are done sooner than a
// conversion (1 x 4096 on an H200: 1.86 us, 1.97 converted), and many rows are not slower, but those that warps hold
// (127: by 0.4%).
struct PlacedFloat {
  template <int N>
  static __device__ __forceinline__ double at(const Pack<float, N>* packs, int k) {
    const uint32_t bits = __float_as_uint(packs[k / N][k % N]);
    return __hiloint2double(static_cast<int>((bits & 0x7fffffffu) >> 3), static_cast<int>(bits << 29));
  }

  // Of a magnitude's bits, by a multiplication that makes both words.
  static __device__ __forceinline__ double multiplied(uint32_t magnitude) {
    double placed;
    asm("{\n\t.reg .b64 both;\n\tmul.wide.u32 both, %1, 0x20000000;\n\tmov.b64 %0, both;\n\t}"
        : "=d"(placed)
        : "r"(magnitude));
    return placed;
  }

  static __device__ __forceinline__ Sum unscaled(const Sum& sum) { return Placed<0, 1023 - 127>::unscaled(sum); }
  static __device__ __forceinline__ uint32_t exact_below(const Least<float>& least) { return least.placed_below(); }
};

// How each type's magnitudes enter a sum.
template <typename T>
using Magnitude =
    std::conditional_t<std::is_same_v<T, float>, Converted,
                       std::conditional_t<std::is_same_v<T, __half>, Placed<10, 1023 - 15>, Placed<13, 1023 - 127>>>;

// Sums the elements of packs that add() is given; set() takes them as the first ones, extend() as more of set()'s term.
// Up to 16 elements enter as one term: they are first added to each other in double, as a tree. That loses nothing
// unless their magnitudes lie far apart: is_exact() tells, of the least of them. No finite bfloat16, nor a float that
// is placed, reaches what an infinity reads as; sums that do are left to CarefulTally.
template <typename T, typename How = Magnitude<T>>
class Tally {
 public:
  using Careful = CarefulTally<T>;

  Tally() = default;
  __device__ __forceinline__ explicit Tally(double placed) : total_{placed, 0.0}, most_(upper_word(placed)) {}

  template <int kPacks, int N>
  __device__ __forceinline__ void add(const Pack<T, N>* packs) {
    accumulate(total_, magnitudes<kPacks>(packs));
  }

  template <int kPacks, int N>
  __device__ __forceinline__ void set(const Pack<T, N>* packs) {
    total_ = {magnitudes<kPacks>(packs), 0.0};
  }

  template <int kPacks, int N>
  __device__ __forceinline__ void extend(const Pack<T, N>* packs) {
    total_.hi += add_tree<kPacks * N>([&](int k) { return How::at(packs, k); });
    most_ = upper_word(total_.hi);
  }

  // As more of set()'s term, other(total) being that of another thread. is_exact() wants the least of both's elements.
  template <typename Other>
  __device__ __forceinline__ void join(const Other& other) {
    total_.hi += other(total_.hi);
    most_ = upper_word(total_.hi);
  }

  __device__ __forceinline__ bool is_exact(const Least<T>& least) const { return most_ < How::exact_below(least); }
  __device__ __forceinline__ Sum sum() const { return How::unscaled(total_); }
  // Of one term, before it is scaled.
  __device__ __forceinline__ double placed() const { return total_.hi; }

  // The same in fewer instructions, of elements whose sum turns out to be below kFinite.
  static constexpr double kFinite = INFINITY;
  __device__ __forceinline__ Sum finite_sum() const { return sum(); }

 private:
  Sum total_;
  uint32_t most_ = 0;  // the upper word of the largest term

  template <int kPacks, int N>
  __device__ __forceinline__ double magnitudes(const Pack<T, N>* packs) {
    const double term = add_tree<kPacks * N>([&](int k) { return How::at(packs, k); });
    most_ = max(most_, upper_word(term));
    return term;
  }
};

template <>
class Tally<double> {
 public:
  using Careful = Tally<double>;

  template <int kPacks, int N>
  __device__ __forceinline__ void add(const Pack<double, N>* packs) {
#pragma unroll
    for (int k = 0; k < kPacks * N; ++k) accumulate(total_, fabs(packs[k / N][k % N]));
  }

  template <int kPacks, int N>
  __device__ __forceinline__ void set(const Pack<double, N>* packs) {
    total_ = {fabs(packs[0][0]), 0.0};
#pragma unroll
    for (int k = 1; k < kPacks * N; ++k) accumulate(total_, fabs(packs[k / N][k % N]));
  }

  template <int kPacks, int N>
  __device__ __forceinline__ void extend(const Pack<double, N>* packs) {
    add<kPacks>(packs);
  }

  __device__ __forceinline__ bool is_exact(const Least<double>&) const { return true; }
  __device__ __forceinline__ Sum sum() const { return total_; }

  static constexpr double kFinite = INFINITY;
  __device__ __forceinline__ Sum finite_sum() const { return total_; }

 private:
  Sum total_;
};

__device__ __forceinline__ void enter(Sum& total, double term) { accumulate(total, term); }
__device__ __forceinline__ void enter(double& total, double term) { total += term; }

// The largest of float16's magnitudes, which tells of infinities and NaNs: sums may pass what those read as.
class Largest {
 public:
  __device__ __forceinline__ void note(uint32_t both) {
    __half2 pair;
    memcpy(&pair, &both, sizeof pair);
    largest_ = __hmax2_nan(largest_, __habs2(pair));
  }

  // Infinity or NaN where there is one. By one value: a kernel that holds rows of float16 would spill by two.
  __device__ __forceinline__ Sum unless_special(const Sum& finite) const {
    const float largest = top();
    return largest - largest == 0.0f ? finite : Sum{static_cast<double>(largest), 0.0};
  }

 private:
  __device__ __forceinline__ float top() const {
    __half ends[2];
    memcpy(ends, &largest_, sizeof ends);
    return widen(__hmax_nan(ends[0], ends[1]));
  }

  __half2 largest_{};
};

// No finite bfloat16 reaches what an infinity reads as.
struct NoLargest {
  __device__ __forceinline__ void note(uint32_t) {}
  __device__ __forceinline__ Sum unless_special(const Sum& sum) const { return sum; }
};

template <typename T>
using Specials = std::conditional_t<std::is_same_v<T, __half>, Largest, NoLargest>;

// Sums halves as Tally does. Total: a Sum, or a double, which may lose bits.
template <typename T, typename Total>
class HalfTally {
 public:
  using Careful = HalfTally;

  template <int kPacks, int N>
  __device__ __forceinline__ void add(const Pack<T, N>* packs) {
    enter(total_, magnitudes<kPacks>(packs));
  }

  template <int kPacks, int N>
  __device__ __forceinline__ void set(const Pack<T, N>* packs) {
    total_ = {magnitudes<kPacks>(packs)};
  }

  template <int kPacks, int N>
  __device__ __forceinline__ void extend(const Pack<T, N>* packs) {
    add<kPacks>(packs);
  }

  __device__ __forceinline__ bool is_exact(const Least<T>&) const { return true; }
  __device__ __forceinline__ Sum sum() const { return special_.unless_special(finite_sum()); }

  // Of elements among which no infinity or NaN is: those of float16 read as 2^16 or more.
  static constexpr double kFinite = 0x1p16;
  __device__ __forceinline__ Sum finite_sum() const { return Magnitude<T>::unscaled(Sum{total_}); }
  // Before that is scaled.
  __device__ __forceinline__ Total placed() const { return total_; }

 private:
  Total total_{};
  Specials<T> special_;

  template <int kPacks, int N>
  __device__ __forceinline__ double magnitudes(const Pack<T, N>* packs) {
    if constexpr (N > 1) {
#pragma unroll
      for (int k = 0; k < kPacks * N / 2; ++k) special_.note(packs[k / (N / 2)].units[k % (N / 2)]);
    }
    return add_tree<kPacks * N>([&](int k) {
      if constexpr (N == 1) {
        unsigned short bits;
        memcpy(&bits, &packs[k], sizeof bits);
        special_.note(bits);
      }
      return Magnitude<T>::at(packs, k);
    });
  }
};

// Float16 are multiples of 2^-24 below 2^16: sums of 2^13 of them lose nothing, and a thread holds fewer on chip.
template <>
class Tally<__half> : public HalfTally<__half, double> {
 public:
  using Careful = Tally<__half>;
};

// A tally of any number of elements.
template <typename T>
using LongTally = std::conditional_t<std::is_same_v<T, __half>, HalfTally<__half, Sum>, Tally<T>>;

// The tally of rows that blocks hold, of which few may have the GPU to themselves.
template <typename T>
using QuickTally = std::conditional_t<std::is_same_v<T, float>, Tally<float, PlacedFloat>, Tally<T>>;

// Notes packs with the tallies that `add` below is called with first.
template <int kPacks, typename Sums, typename Bound, typename T, int N>
__device__ __forceinline__ void note_first(const Sums&, Bound& least, const Pack<T, N>* packs) {
  if constexpr (std::is_same_v<Sums, Tally<T>> || std::is_same_v<Sums, QuickTally<T>>) note_each<kPacks>(least, packs);
}

// Packs of N elements that enter a sum as one term: a divisor of kPacks, of up to 16 elements.
template <int kPacks, int N, int kGroup = kPacks>
constexpr int kGroupOf =
    kGroup == 1 || (kGroup * N <= 16 && kPacks % kGroup == 0) ? kGroup
                                                              : kGroupOf<kPacks, N, (kGroup > 1 ? kGroup - 1 : 1)>;

// Adds an array of packs.
template <typename Sums, typename T, int N, int kPacks>
__device__ __forceinline__ void add_packs(Sums& tally, const Pack<T, N> (&packs)[kPacks]) {
  constexpr int kGroup = kGroupOf<kPacks, N>;
  static_assert(kPacks % kGroup == 0);
#pragma unroll
  for (int u = 0; u < kPacks; u += kGroup) tally.template add<kGroup>(packs + u);
}

}  // namespace l1norm::cuda
