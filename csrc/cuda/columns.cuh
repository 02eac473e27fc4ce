// Whole columns, in the registers of a thread each or of a few lanes of a warp, which share no more than their sums.
#pragma once

#include "gradient.cuh"
#include "lattice.cuh"

namespace l1norm::cuda {

// V neighbours of what rows have one of; packed: they are neighbours in memory, at a pack's start.
template <int N, typename V>
__device__ __forceinline__ void load_beside(const V* from, int64_t step, bool packed, V (&to)[N]) {
  if (N > 1 && packed) {
    constexpr int kPack = N * sizeof(V) < kPackBytes ? N : kPackBytes / static_cast<int>(sizeof(V));
#pragma unroll
    for (int k = 0; k < N; k += kPack) {
      const Pack<V, kPack> pack = *reinterpret_cast<const Pack<V, kPack>*>(from + k);
#pragma unroll
      for (int e = 0; e < kPack; ++e) to[k + e] = pack.units[e];
    }
  } else {
#pragma unroll
    for (int k = 0; k < N; ++k) to[k] = from[k * step];
  }
}

// A value that stays in a register.
__device__ __forceinline__ double settled(double x) {
  asm("" : "+d"(x));
  return x;
}

// kUnits units of kColumns columns each, of up to kSteps elements. kShared: lanes have as many each of one unit, by
// turns.
template <typename T, bool kBackward, int kSteps, int kColumns, int kUnits, bool kShared>
struct WholeColumns {
  using UnitPack = Pack<T, kColumns>;
  // What is worked on at a time: one column, or a pair of halves.
  static constexpr int kFews = UnitPack::kUnits, kFew = kColumns / kFews;
  using Few = Pack<T, kFew>;
  static_assert(kUnits * kSteps * kFews <= 64);
  // Of a step's, whose quotients are proven together.
  static constexpr int kGroup = sizeof(T) == 4 ? kFews : 1, kGroups = kFews / kGroup;
  // Whether divisors are made from the columns anew, as reading them takes long where columns are this short (2
  // float32: a seventh of all bytes). Of other types, and one by one, there is no time for more arithmetic.
  static constexpr bool kMakesDivisors = kBackward && sizeof(T) == 4 && kColumns > 1 && !kShared;
  // What is not proven needs its column's sum again: short columns are kept for that, else their sums take less.
  static constexpr bool kKeepsSums = kSteps > (sizeof(T) == 2 ? 4 : 2);
  static_assert(!kShared || (kUnits == 1 && kKeepsSums && (sizeof(T) < 8 || kBackward)));
  // Infinities and NaN are noted of a unit's columns together.
  using ColumnTally = std::conditional_t<std::is_same_v<T, __half>, HalfTally<__half, double, NoLargest>, Tally<T>>;

  const Call& c;
  const Tiling& t;
  int64_t first_unit;  // the thread's others follow, 32 apart
  UnitPack x[kUnits][kSteps];
  std::conditional_t<kBackward, UnitPack[kUnits][kSteps], Empty> g;

  __device__ __forceinline__ WholeColumns(const Call& c_, const Tiling& t_, int64_t first_unit_)
      : c(c_), t(t_), first_unit(first_unit_) {}

  __device__ __forceinline__ bool exists(int j) const { return first_unit + 32 * j < c.geometry.rows.count; }
  __device__ __forceinline__ int64_t unit(int j) const { return exists(j) ? first_unit + 32 * j : 0; }
  __device__ __forceinline__ Offsets offsets(int j) const { return offsets_of(t, c.geometry.rows, unit(j)); }
  __device__ __forceinline__ void all_offsets(Offsets (&o)[kUnits]) const {
#pragma unroll
    for (int j = 0; j < kUnits; ++j) o[j] = offsets(j);
  }
  // The thread's first step.
  __device__ __forceinline__ int first_step() const {
    return kShared ? static_cast<int>(threadIdx.x % 32) >> t.lane_bits : 0;
  }
  __device__ __forceinline__ int sharers() const { return kShared ? t.step_lanes() : 1; }
  __device__ __forceinline__ Way way(int j) const {
    const Walk& steps = c.geometry.row;
    const int first = first_step(), end = exists(j) ? static_cast<int>(steps.count) : first;
    return Way(t, steps, first, end - first, sharers(), kShared ? t.outer_step : steps.dims > 1 ? 0 : 1);
  }

  __device__ __forceinline__ void load(int j, const Offsets& o) {
    const auto fetch = [](UnitPack& pack, const T* from, bool there) {
      pack = load_pack<Access::kOnce>(reinterpret_cast<const UnitPack*>(from), there);
    };
    if constexpr (kBackward) {
      visit<&Offsets::grad, kSteps>(way(j), c.geometry.row, static_cast<const T*>(c.grad) + o.grad,
                                    [&](int u, const T* from, bool there) { fetch(g[j][u], from, there); });
    }
    visit<&Offsets::input, kSteps>(way(j), c.geometry.row, static_cast<const T*>(c.input) + o.input,
                                   [&](int u, const T* from, bool there) { fetch(x[j][u], from, there); });
  }

  __device__ __forceinline__ void normalize() {
    Offsets o[kUnits];
    all_offsets(o);
#pragma unroll
    for (int j = 0; j < kUnits; ++j) load(j, o[j]);
    using Bits = std::conditional_t<kUnits * kSteps * kGroups <= 32, uint32_t, uint64_t>;
    Bits unproven = 0;
    Sum totals[kKeepsSums ? kColumns * kUnits : 1];
#pragma unroll
    for (int j = 0; j < kUnits; ++j) {
      Quotient<T> quotients[kFews][kFew];
      Least<T> least;
      note_each<kSteps>(least, x[j]);
      Specials<T> specials = specials_of(j);
      ColumnTally shared[kShared ? kColumns : 1];
      if constexpr (kShared) {
#pragma unroll
        for (int k = 0; k < kColumns; ++k) shared[k] = tally(j, k);
        each_other([&](const auto& other) {
          least.join(other);
          specials.join(other);
#pragma unroll
          for (int k = 0; k < kColumns; ++k) shared[k].join(other);
        });
      }
      bool plain = specials.is_finite();
#pragma unroll
      for (int k = 0; k < kColumns; ++k) {
        const ColumnTally tallied = kShared ? shared[kShared ? k : 0] : tally(j, k);
        const Sum total = tallied.sum();
        if constexpr (kKeepsSums) totals[j * kColumns + k] = total;
        Quotient<T>& quotient = quotients[k / kFew][k % kFew];
        quotient = Quotient<T>(total, c.count, c.eps, Plain{});
        plain &= tallied.is_exact(least) & quotient.settle_for(least);
        if (c.denominator != nullptr && exists(j) && is_mine(k)) {
          const int64_t at = sizeof(T) == 2 ? offsets_anew(j).denominator : o[j].denominator;
          write_denominator<T>(c, at + k * t.denominator_step, total);
        }
      }
      if (!plain) {
        normalize_carefully(j);
        continue;
      }
      const int64_t output = sizeof(T) == 2 && (kUnits > 1 || kShared) ? offsets_anew(j).output : o[j].output;
      visit<&Offsets::output, kSteps>(way(j), c.geometry.row, static_cast<T*>(c.output) + output,
                                      [&](int u, T* to, bool there) {
                                        const UnitPack y = divide(j, u, quotients, least, unproven);
                                        if (there) *reinterpret_cast<UnitPack*>(to) = y;
                                      });
    }
    // What is not proven was stored as it was read, or is still here.
#pragma unroll 1
    for (; unproven != 0; unproven &= unproven - 1) {
      const int bit = __ffsll(static_cast<long long>(unproven)) - 1;
      const int group = bit % kGroups, u = bit / kGroups % kSteps, j = bit / kGroups / kSteps;
      const int step = first_step() + u * sharers();
      if (!exists(j) || step >= static_cast<int>(c.geometry.row.count)) continue;
      T* const to = static_cast<T*>(c.output) + offsets(j).output + c.geometry.row.at_small(step).output;
#pragma unroll 1
      for (int f = group * kGroup; f < (group + 1) * kGroup; ++f) {
#pragma unroll
        for (int k = 0; k < kFew; ++k) divide_one_again(j, u, f * kFew + k, k, totals, to);
      }
    }
  }

  __device__ __forceinline__ void differentiate() {
    Wide<T> m[kUnits][kColumns], h[kUnits][kColumns];
    Offsets o[kUnits];
    all_offsets(o);
#pragma unroll
    for (int j = 0; j < kUnits && !kMakesDivisors; ++j) {
      load_beside(static_cast<const Wide<T>*>(c.denominator) + o[j].denominator, t.denominator_step, t.packed, m[j]);
      if (c.grad_denominator != nullptr) {
        load_beside(static_cast<const Wide<T>*>(c.grad_denominator) + o[j].denominator, t.denominator_step, t.packed,
                    h[j]);
      } else {
#pragma unroll
        for (int k = 0; k < kColumns; ++k) h[j][k] = Wide<T>{};
      }
    }
#pragma unroll
    for (int j = 0; j < kUnits; ++j) load(j, o[j]);
#pragma unroll
    for (int j = 0; j < kUnits; ++j) {
      Slope<T> all[kMakesDivisors ? kColumns : 1];
      if constexpr (kMakesDivisors) find_slopes(j, o[j].denominator, all);
      const auto by = [&](int k) { return sizeof(T) == 8 ? dot_scale<Wide<T>>(m[j][k], c.count) : 1.0; };
      SharedDot<T> shared[kShared ? kColumns : 1];
      if constexpr (kShared) {
#pragma unroll
        for (int k = 0; k < kColumns; ++k) shared[k] = SharedDot<T>(dot(j, k, by(k)));
        each_other([&](const auto& other) {
#pragma unroll
          for (int k = 0; k < kColumns; ++k) shared[k].join(other);
        });
      }
#pragma unroll
      for (int f = 0; f < kFews; ++f) {
        Slope<T> slopes[kFew];
        const Slope<T>* at[kFew];
#pragma unroll
        for (int k = 0; k < kFew; ++k) {
          const int column = f * kFew + k;
          if constexpr (kMakesDivisors) {
            slopes[k] = all[column];
          } else {
            const GradientScale scale = RowDivisor<T>{m[j][column], h[j][column]}.scale(c);
            const Sum total = kShared ? shared[kShared ? column : 0].sum() : dot(j, column, by(column));
            slopes[k] = Slope<T>(make_gradient<Wide<T>>(total, scale));
          }
          at[k] = &slopes[k];
        }
        Few of_g[kSteps], of_x[kSteps];
#pragma unroll
        for (int u = 0; u < kSteps; ++u) {
          of_g[u] = {{g[j][u].units[f]}};
          of_x[u] = {{x[j][u].units[f]}};
        }
        // Else two units of pairs would leave a multiprocessor fewer blocks.
        differentiate_beside<(kUnits > 1 && kColumns > 1)>(at, of_g, of_x);
#pragma unroll
        for (int u = 0; u < kSteps; ++u) x[j][u].units[f] = of_x[u].units[0];
      }
      visit<&Offsets::output, kSteps>(way(j), c.geometry.row, static_cast<T*>(c.output) + o[j].output,
                                      [&](int u, T* to, bool there) {
                                        if (there) *reinterpret_cast<UnitPack*>(to) = x[j][u];
                                      });
    }
  }

 private:
  // Calls join(other) for each turn in which sums of a column become one, other(v) being what another lane has.
  template <typename Join>
  __device__ __forceinline__ void each_other(const Join& join, unsigned lanes = 0xffffffffu) const {
#pragma unroll 1
    for (int bit = t.lanes; bit < 32; bit *= 2) join([&](auto v) { return __shfl_xor_sync(lanes, v, bit); });
  }

  // The lanes that have this one's columns: every so many.
  __device__ __forceinline__ unsigned with_these_columns() const {
    const unsigned every = t.lanes == 16 ? 0x10001u : t.lanes == 8 ? 0x1010101u : 0x11111111u;
    return every << (threadIdx.x & (t.lanes - 1));
  }

  // Of a column's lanes the one that writes its denominator.
  __device__ __forceinline__ bool is_mine(int k) const { return (k & (sharers() - 1)) == first_step(); }

  // Worked out again rather than kept in registers, of which halves need all.
  __device__ __forceinline__ Offsets offsets_anew(int j) const {
    int64_t anew = unit(j);
    asm volatile("" : "+l"(anew));
    return offsets_of(t, c.geometry.rows, anew);
  }

  // Of a unit's elements.
  __device__ __forceinline__ Specials<T> specials_of(int j) const {
    Specials<T> specials;
    if constexpr (sizeof(T) == 2) {
#pragma unroll
      for (int u = 0; u < kSteps; ++u) {
#pragma unroll
        for (int f = 0; f < kFews; ++f) {
          uint32_t bits = 0;
          memcpy(&bits, &x[j][u].units[f], sizeof x[j][u].units[f]);
          specials.note(bits);
        }
      }
    }
    return specials;
  }

  __device__ __forceinline__ ColumnTally tally(int j, int k) const {
    Pack<T, 1> elements[kSteps];
#pragma unroll
    for (int u = 0; u < kSteps; ++u) elements[u].units[0] = x[j][u][k];
    ColumnTally tally;
    tally.template set<kSteps>(elements);
    return tally;
  }

  // The quotients of a step. Sets the bits of what is not proven, which stays as it was read where sums are kept.
  template <typename Bits>
  __device__ __forceinline__ UnitPack divide(int j, int u, const Quotient<T> (&quotients)[kFews][kFew],
                                             const Least<T>& least, Bits& unproven) const {
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
      if (!proven) unproven |= Bits{1} << ((j * kSteps + u) * kGroups + group);
    }
    return y;
  }

  // The quotient of a column's step; few: the column's number among those that are worked on at a time.
  template <int kTotals>
  __device__ __forceinline__ void divide_one_again(int j, int u, int column, int few, const Sum (&totals)[kTotals],
                                                   T* to) const {
    const int wanted = j * kColumns + column;
    Sum total;
    T value;
    if constexpr (kKeepsSums) {
#pragma unroll
      for (int i = few; i < kUnits * kColumns; i += kFew) {
        // Else the compiler would keep them in memory, for an index.
        const double hi = settled(totals[i].hi), lo = sizeof(T) == 8 ? settled(totals[i].lo) : totals[i].lo;
        total = {i == wanted ? hi : total.hi, i == wanted ? lo : total.lo};
      }
      value = to[column];
    } else {
      Pack<T, 1> elements[kSteps];
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
#pragma unroll
        for (int i = few; i < kUnits * kColumns; i += kFew) {
          if (i == few || i == wanted) elements[s].units[0] = x[i / kColumns][s][i % kColumns];
        }
      }
      Tally<T> tally;
      tally.template set<kSteps>(elements);
      total = tally.sum();
      value = elements[0].units[0];
#pragma unroll
      for (int s = 1; s < kSteps; ++s) value = s == u ? elements[s].units[0] : value;
    }
    to[column] = exact_quotient(value, exact_divisor<T>(total, c));
  }

  // A unit with a column that Tally loses bits of, or whose quotient is not plain: its elements are stored as they were
  // read, and their columns taken one by one.
  __device__ __forceinline__ void normalize_carefully(int j) const {
    if (!exists(j)) return;
    const Walk& steps = c.geometry.row;
    const Offsets o = offsets(j);
    T* const start = static_cast<T*>(c.output) + o.output;
    visit<&Offsets::output, kSteps>(way(j), steps, start, [&](int u, T* to, bool there) {
      if (there) *reinterpret_cast<UnitPack*>(to) = x[j][u];
    });
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

  // Adds the products of a column's elements and their results' gradients to a tally.
  template <typename Products>
  __device__ __forceinline__ void multiply(int j, int k, double by, Products& tally) const {
    Pack<T, 1> elements[kSteps], grads[kSteps];
#pragma unroll
    for (int u = 0; u < kSteps; ++u) {
      elements[u].units[0] = x[j][u][k];
      grads[u].units[0] = g[j][u][k];
    }
    tally.template set<kSteps>(grads, elements, by);
  }

  __device__ __forceinline__ Sum dot(int j, int k, double by) const {
    return dot_of<T>([&](auto& tally) { multiply(j, k, by, tally); });
  }

  // A unit's, with divisors made anew. Where one is not plain, or has a gradient of its own, they are read.
  __device__ __forceinline__ void find_slopes(int j, int64_t denominator, Slope<T> (&slopes)[kColumns]) const {
    Least<T> least;
    note_each<kSteps>(least, x[j]);
    bool plain = c.grad_denominator == nullptr;
#pragma unroll
    for (int k = 0; k < kColumns; ++k) {
      const auto tallied = tally(j, k);
      DotTally<T> products;
      multiply(j, k, 1.0, products);
      double m;
      plain &= rounded_divisor(tallied.sum(), c.count, c.eps, m) & tallied.is_exact(least);
      const Gradient d = make_plain_gradient(products.finite_sum(), m, near_reciprocal(m), c.count, c.eps);
      plain &= is_finite(d.through);
      slopes[k] = Slope<T>(d);
    }
    if (plain || !exists(j)) return;
#pragma unroll
    for (int k = 0; k < kColumns; ++k) {
      const RowDivisor<T> divisor(c, denominator + k * t.denominator_step);
      slopes[k] = Slope<T>(make_gradient<Wide<T>>(dot(j, k, 1.0), divisor.scale(c)));
    }
  }
};

}  // namespace l1norm::cuda
