// The quotients of whole columns.
#pragma once

#include "columns.cuh"
#include "held.cuh"
#include "proof.cuh"

namespace l1norm::cuda {

// A value that stays in a register.
__device__ __forceinline__ double settled(double x) {
  asm("" : "+d"(x));
  return x;
}

template <typename T, int kSteps, int kColumns, int kUnits, bool kShared>
class ColumnQuotients : Columns<T, false, kSteps, kColumns, kUnits, kShared> {
  using Base = Columns<T, false, kSteps, kColumns, kUnits, kShared>;
  using Base::c;
  using Base::each_other;
  using Base::exists;
  using Base::first_step;
  using Base::kFew;
  using Base::kFews;
  using Base::load;
  using Base::offsets;
  using Base::sharers;
  using Base::store;
  using Base::t;
  using Base::tally;
  using Base::way;
  using Base::x;
  using typename Base::Few;
  using typename Base::UnitPack;
  // Of a step's, whose quotients are proven together.
  static constexpr int kGroup = sizeof(T) == 4 ? kFews : 1, kGroups = kFews / kGroup;
  // What is not proven needs its column's sum again: short columns are kept for that, else their sums take less.
  static constexpr bool kKeepsSums = kSteps > (sizeof(T) == 2 ? 4 : 2);
  // Whether units are taken carefully when all others are done, by code that is there once; else a register is missing.
  static constexpr bool kCareLast = kUnits > 2 || sizeof(T) == 2;
  static_assert(!kShared || (kKeepsSums && sizeof(T) < 8));
  // Whether sums of halves are no more than known to lie between two floats, which are nearly always one.
  static constexpr bool kBounded = sizeof(T) == 2 && !kKeepsSums;
  // Whether the last pair that is not proven stays in a register: of float16, where a thread often has one and rarely
  // two. What was stored comes back from the L2 cache, for which all of a warp waits.
  static constexpr bool kKeepsLast = kKeepsSums && std::is_same_v<T, __half>;

 public:
  using Base::Base;

  __device__ __forceinline__ void normalize() {
    Offsets o[kUnits];
    this->all_offsets(o);
#pragma unroll
    for (int j = 0; j < kUnits; ++j) load(j, o[j]);
    using Bits = std::conditional_t<kUnits * kSteps * kGroups <= 32, uint32_t, uint64_t>;
    Bits unproven = 0;
    Few last{};            // of what is not proven
    uint32_t careful = 0;  // units
    Sum totals[kKeepsSums ? kColumns * kUnits : 1];
    [[maybe_unused]] const FloatCount count(c.count, c.eps);
#pragma unroll
    for (int j = 0; j < kUnits; ++j) {
      Quotient<T> quotients[kFews][kFew];
      Least<T> least;
      bool plain = true;
      Sum sums[kColumns];
      if (!kBounded || c.denominator != nullptr) sum_columns(j, least, sums, plain);
      if constexpr (kKeepsSums) {
#pragma unroll
        for (int k = 0; k < kColumns; ++k) totals[j * kColumns + k] = sums[k];
      }
      if (plain && c.denominator != nullptr && exists(j)) {
        write_denominators(sizeof(T) == 2 ? offsets_anew(j).denominator : o[j].denominator, sums);
      }
#pragma unroll
      for (int k = 0; k < kColumns; ++k) {
        Quotient<T>& quotient = quotients[k / kFew][k % kFew];
        if constexpr (kBounded) {
          const auto magnitude = [&](int u) { return fabsf(widen_at(x[j][u], k)); };
          quotient = Quotient<T>(bounds_of<kSteps>(magnitude), count);
        } else {
          quotient = Quotient<T>(sums[k], c.count, c.eps, Plain{});
        }
        plain &= quotient.settle_for(least);
      }
      const int64_t output = sizeof(T) == 2 && (kUnits > 1 || kShared) ? offsets_anew(j).output : o[j].output;
      if (!plain) {
        store(j, output);
        if constexpr (kCareLast) {
          careful |= 1u << j;
        } else {
          normalize_carefully(j);
        }
        continue;
      }
      visit<&Offsets::output, kSteps>(way(j), c.geometry.row, static_cast<T*>(c.output) + output,
                                      [&](int u, T* to, bool there) {
                                        const UnitPack y = divide(j, u, quotients, least, unproven, last);
                                        if (there) *reinterpret_cast<UnitPack*>(to) = y;
                                      });
    }
#pragma unroll 1
    for (; careful != 0; careful &= careful - 1) normalize_carefully(__ffs(static_cast<int>(careful)) - 1);
    // What is not proven was stored as it was read, or is still here.
#pragma unroll 1
    for (bool is_last = true; unproven != 0; is_last = false) {
      const int bit = 63 - __clzll(static_cast<long long>(unproven));
      unproven &= ~(Bits{1} << bit);
      const int group = bit % kGroups, u = bit / kGroups % kSteps, j = bit / kGroups / kSteps;
      const int step = first_step() + u * sharers();
      if (!exists(j) || step >= static_cast<int>(c.geometry.row.count)) continue;
      T* const to = static_cast<T*>(c.output) + offsets(j).output + c.geometry.row.at_small(step).output;
#pragma unroll 1
      for (int f = group * kGroup; f < (group + 1) * kGroup; ++f) {
        T values[kFew];
        // All of them before one waits for another's quotient.
#pragma unroll
        for (int k = 0; k < kFew && kKeepsSums; ++k) {
          values[k] = kKeepsLast && is_last ? element_of(last, k)[0] : to[f * kFew + k];
        }
#pragma unroll
        for (int k = 0; k < kFew; ++k) divide_one_again(j, u, f * kFew + k, k, totals, values[k], to);
      }
    }
  }

 private:
  // The lanes that have this one's columns: every so many.
  __device__ __forceinline__ unsigned with_these_columns() const {
    const unsigned every = t.lanes == 16 ? 0x10001u : t.lanes == 8 ? 0x1010101u : 0x11111111u;
    return every << (threadIdx.x & (t.lanes - 1));
  }

  // plain: whether they are exact.
  __device__ __forceinline__ void sum_columns(int j, Least<T>& least, Sum (&sums)[kColumns], bool& plain) const {
    note_each<kSteps>(least, x[j]);
    ColumnTally<T> tallies[kColumns];
#pragma unroll
    for (int k = 0; k < kColumns && kShared; ++k) tallies[k] = tally(j, k);
    if constexpr (kShared) {
      each_other([&](const auto& other) {
        least.join(other);
#pragma unroll
        for (int k = 0; k < kColumns; ++k) tallies[k].join(other);
      });
    }
#pragma unroll
    for (int k = 0; k < kColumns; ++k) {
      const ColumnTally<T> tallied = kShared ? tallies[k] : tally(j, k);
      sums[k] = tallied.sum();
      plain &= tallied.is_exact(least);
    }
  }

  // Of a column's lanes the one that writes its denominator.
  __device__ __forceinline__ bool is_mine(int k) const { return (k & (sharers() - 1)) == first_step(); }

  // Of columns whose sums are exact; of those that lanes share each lane writes some. A loop where they are written one
  // by one: unrolled among the quotients, it was most of the kernel, and what runs lay far apart.
  __device__ __forceinline__ void write_denominators(int64_t at, const Sum (&sums)[kColumns]) const {
    const auto write_one = [&](int k) { write_denominator<T>(c, at + k * t.denominator_step, one_of(sums, k)); };
    if constexpr (kShared || sizeof(T) == 8) {
#pragma unroll 1
      for (int k = first_step(); k < kColumns; k += sharers()) write_one(k);
    } else {
      constexpr int kTogether = kColumns < 4 ? kColumns : 4;
      uint32_t left = 0;
#pragma unroll
      for (int first = 0; first < kColumns; first += kTogether) {
        float m[kTogether];
#pragma unroll
        for (int k = 0; k < kTogether; ++k) {
          double divisor;
          if (!rounded_divisor(sums[first + k], c.count, c.eps, divisor)) left |= 1u << (first + k);
          m[k] = static_cast<float>(divisor);
        }
        float* const to = static_cast<float*>(c.denominator) + at + first * t.denominator_step;
        store_beside(m, to, t.denominator_step, t.packed);
      }
#pragma unroll 1
      for (; left != 0; left &= left - 1) write_one(__ffs(static_cast<int>(left)) - 1);
    }
  }

  // Worked out again rather than kept in registers, of which halves need all.
  __device__ __forceinline__ Offsets offsets_anew(int j) const {
    int64_t anew = this->unit(j);
    asm volatile("" : "+l"(anew));
    return offsets_of(t, c.geometry.rows, anew);
  }

  // The quotients of a step. Sets the bits of what is not proven, which stays as it was read where sums are kept.
  template <typename Bits>
  __device__ __forceinline__ UnitPack divide(int j, int u, const Quotient<T> (&quotients)[kFews][kFew],
                                             const Least<T>& least, Bits& unproven, Few& last) const {
    UnitPack y;
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      bool proven = true;
#pragma unroll
      for (int f = group * kGroup; f < (group + 1) * kGroup; ++f) {
        Few few;
        proven &= divide_beside(quotients[f], Few{{x[j][u].units[f]}}, few, least);
        y.units[f] = few.units[0];
      }
#pragma unroll
      for (int f = group * kGroup; f < (group + 1) * kGroup; ++f) {
        if (kKeepsSums && !proven) y.units[f] = x[j][u].units[f];
      }
      if (proven) continue;
      unproven |= Bits{1} << ((j * kSteps + u) * kGroups + group);
      if constexpr (kKeepsLast) last = Few{{x[j][u].units[group]}};
    }
    return y;
  }

  // The sum of a number, which is `first` or a multiple of `step` behind it. Values are settled, as the compiler would
  // keep them in memory for an index.
  template <int kTotals>
  static __device__ __forceinline__ Sum one_of(const Sum (&totals)[kTotals], int wanted, int first = 0, int step = 1) {
    Sum total;
#pragma unroll
    for (int i = first; i < kTotals; i += step) {
      const double hi = settled(totals[i].hi), lo = sizeof(T) == 8 ? settled(totals[i].lo) : totals[i].lo;
      total = {i == wanted ? hi : total.hi, i == wanted ? lo : total.lo};
    }
    return total;
  }

  // The quotient of a column's step, `value` where sums are kept; few: the column's number among those that are worked
  // on at a time.
  template <int kTotals>
  __device__ __forceinline__ void divide_one_again(int j, int u, int column, int few, const Sum (&totals)[kTotals],
                                                   T value, T* to) const {
    const int wanted = j * kColumns + column;
    Sum total;
    if constexpr (kKeepsSums) {
      total = one_of(totals, wanted, few, kFew);
    } else {
      Pack<T, 1> elements[kSteps];
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
#pragma unroll
        for (int i = few; i < kUnits * kColumns; i += kFew) {
          if (i == few || i == wanted) elements[s].units[0] = x[i / kColumns][s][i % kColumns];
        }
      }
      if constexpr (kBounded) {
#pragma unroll
        for (int s = 0; s < kSteps; ++s) accumulate(total, static_cast<double>(fabs(widen(elements[s].units[0]))));
      } else {
        Tally<T> tally;
        tally.template set<kSteps>(elements);
        total = tally.sum();
      }
      value = elements[0].units[0];
#pragma unroll
      for (int s = 1; s < kSteps; ++s) value = s == u ? elements[s].units[0] : value;
    }
    if constexpr (sizeof(T) == 2) {
      to[column] = Exactly<T>(total, c).divide(value, Quotient<T>(total, c.count, c.eps, Plain{}));
    } else {
      to[column] = exact_quotient(value, exact_divisor<T>(total, c));
    }
  }

  // A unit with a column that Tally loses bits of, or whose quotient is not plain, and which was stored as it was read:
  // its columns are taken one by one.
  __device__ __forceinline__ void normalize_carefully(int j) const {
    if (!exists(j)) return;
    const Walk& steps = c.geometry.row;
    const Offsets o = offsets(j);
    T* const start = static_cast<T*>(c.output) + o.output;
    const int count = static_cast<int>(steps.count), first = first_step();
#pragma unroll 1
    for (int k = 0; k < kColumns; ++k) {
      Sum total;
#pragma unroll 1
      for (int u = first; u < count; u += sharers()) {
        accumulate(total, static_cast<double>(fabs(widen(start[steps.at_small(u).output + k]))));
      }
      if constexpr (kShared) {
        each_other([&](const auto& other) { total = total + Sum{other(total.hi), other(total.lo)}; },
                   with_these_columns());
      }
      if (c.denominator != nullptr && is_mine(k)) {
        write_denominator<T>(c, o.denominator + k * t.denominator_step, total);
      }
      const Divisor m = exact_divisor<T>(total, c);
#pragma unroll 1
      for (int u = first; u < count; u += sharers()) {
        T& element = start[steps.at_small(u).output + k];
        element = exact_quotient(element, m);
      }
    }
  }
};

}  // namespace l1norm::cuda
