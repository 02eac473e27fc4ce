// A lane's packs of a run in which columns come round, from their read to the write of their results.
#pragma once

#include "column_tally.cuh"
#include "gradient.cuh"
#include "lattice.cuh"
#include "losses.cuh"
#include "proof.cuh"
#include "warp_columns.cuh"

namespace l1norm::cuda {

// A lane's packs of a run. Its first one is the lane's pack of the run's first round, the second one that of the last
// round, and those behind are of the rounds between, where all packs are whole: of the others the first and the last
// one of the run may hold neighbours of it, which are zeros here.
template <typename T, bool kBackward, int kPacks>
class WarpRun {
  static constexpr int kPack = kPackBytes / static_cast<int>(sizeof(T));
  using RunPack = Pack<T, kPack>;
  // What is worked on at a time: one element, or a pair of halves.
  static constexpr int kUnits = RunPack::kUnits, kUnit = kPack / kUnits;
  using Few = Pack<T, kUnit>;
  // Packs whose elements are added together, or not at all where a lane has fewer.
  static constexpr int kTogether = kBackward && kPacks % 4 == 0 ? 4 : 2;
  static_assert(kPacks % kTogether == 0 && kPacks < 32);

 public:
  using First = std::conditional_t<kBackward, DotTally<T>, ColumnTally<T>>;
  using Result = std::conditional_t<kBackward, Slope<T>, Quotient<T>>;
  // As lanes read it at once.
  struct alignas(kPackBytes) SharedResult {
    Result of;
  };

  // run: its number; warp: of those that share it.
  __device__ __forceinline__ WarpRun(const Call& c_, const WarpColumns& s_, int64_t run, int warp) : c(c_), s(s_) {
    const int lane = static_cast<int>(threadIdx.x) & (s.team() - 1);
    const bool exists = run < s.runs;
    offsets_ = offsets_of(c.geometry.rows, exists ? run : 0);
    shift_ = elements_past<T>(c.output, offsets_.output, kPack);
    const int all = (s.run + shift_ + kPack - 1) / kPack, pack = warp * s.lanes + lane;
    const int rounds = static_cast<int>(s.by_packs.quotient(static_cast<uint32_t>(all + s.apart() - 1)));
    at_ = pack * kPack - shift_;
    last_ = (rounds - 1) * s.apart() * kPack;
    rounds_ = exists && lane < s.lanes ? rounds : 0;
    const int end = s.run - at_;
    begin_ = max(-at_, 0);
    end_ = rounds_ > 0 ? min(max(end, 0), kPack) : 0;
    last_end_ = rounds_ > 1 ? min(max(end - last_, 0), kPack) : 0;
    slot_ = lane * kPack;
  }

  __device__ __forceinline__ int64_t denominator(int column) const {
    const int k = s.turns.column_of(column + s.turns.columns * kPack - shift_);
    return offsets_.denominator + k * s.beside;
  }

  __device__ __forceinline__ void load() {
    // All of both, before something waits for one of them.
    if constexpr (kBackward) load_whole<&Offsets::grad>(c.grad, s.span_grad, g_);
    load_whole<&Offsets::input>(c.input, s.span_input, x_);
    if (begin_ == 0 && (end_ == kPack || end_ == 0) && (last_end_ == kPack || last_end_ == 0)) return;
    if constexpr (kBackward) cut<&Offsets::grad>(c.grad, s.span_grad, g_);
    cut<&Offsets::input>(c.input, s.span_input, x_);
  }

  // Hands in what the lane has of its packs' columns. False where bits may be lost by that.
  __device__ __forceinline__ bool hand_in(const TeamParts<double, T>& parts) {
    First tallies[kPack];
    Losses<First> losses;
#pragma unroll
    for (int u = 0; u < kPacks; u += kTogether) {
      if (u > 0 && u >= rounds_) break;
      if constexpr (!kBackward) note_each<kTogether>(least_, x_ + u);
#pragma unroll
      for (int k = 0; k < kPack; ++k) {
        Pack<T, 1> elements[kTogether], grads[kTogether];
#pragma unroll
        for (int i = 0; i < kTogether; ++i) {
          elements[i] = element_of(x_[u + i], k);
          if constexpr (kBackward) grads[i] = element_of(g_[u + i], k);
        }
        if constexpr (kBackward) {
          if (u == 0) {
            tallies[k].template set<kTogether>(grads, elements, 1.0);
          } else {
            tallies[k].template extend<kTogether>(grads, elements, 1.0);
          }
        } else if (u == 0) {
          tallies[k].template set<kTogether>(elements);
        } else {
          tallies[k].template extend<kTogether>(elements);
        }
      }
    }
#pragma unroll
    for (int k = 0; k < kPack; ++k) {
      if constexpr (kBackward) losses.note(tallies[k], least_);
      if (rounds_ > 0) parts[slot_ + k] = placed(tallies[k]);
    }
    if constexpr (kBackward && !std::is_same_v<First, typename First::Careful>) {
      return !losses.any([&](auto& seer) { seer.template add<kPacks>(g_, x_, 0.0); });
    }
    return true;
  }

  // The same where they would be.
  __device__ __forceinline__ void hand_in_carefully(const TeamParts<Sum, T>& parts) const {
    if (rounds_ == 0) return;
#pragma unroll 1
    for (int k = 0; k < kPack; ++k) {
      typename First::Careful tally;
      Pack<T, 1> elements[kPacks], grads[kPacks];
#pragma unroll
      for (int u = 0; u < kPacks; ++u) {
        elements[u] = element_of(x_[u], k);
        if constexpr (kBackward) grads[u] = element_of(g_[u], k);
      }
      if constexpr (kBackward) {
        tally.template add<kPacks>(grads, elements, 1.0);
      } else {
        tally.template add<kPacks>(elements);
      }
      parts[slot_ + k] = tally.sum();
    }
  }

  // Whether such a sum of the warp's lost nothing, and what it is.
  static __device__ __forceinline__ bool is_exact(double total, const Least<T>& least) {
    if constexpr (kBackward) {
      return true;
    } else {
      return First(total).is_exact(least);
    }
  }
  static __device__ __forceinline__ Sum sum(double total) {
    if constexpr (kBackward) {
      return {total, 0.0};
    } else {
      return First(total).sum();
    }
  }

  __device__ __forceinline__ bool exists() const { return rounds_ > 0; }
  // Of all lanes of the warp.
  __device__ __forceinline__ auto least_of_warp() const {
    Least<T> least;
    if constexpr (!kBackward) {
      least = least_;
      least.join_warp();
    }
    return least;
  }

  // results, sums: of columns, as slots number them.
  __device__ __forceinline__ void finish(const SharedResult* results, const double2* sums) {
    if (rounds_ == 0) return;
    const SharedResult* const mine = results + s.turns.column_of(slot_);
    if constexpr (kBackward) {
      differentiate(mine);
      store();
    } else {
      Quotient<T> quotients[kPack];
      bool suits = true;
#pragma unroll
      for (int k = 0; k < kPack; ++k) {
        quotients[k] = mine[k].of;
        suits &= quotients[k].settle_for(least_);
      }
      uint32_t unproven = 0;
      if (suits) {
        each_pack([&](int u) { unproven |= divide(quotients, x_[u]) ? 0u : 1u << u; });
      } else {
        unproven = ~0u;
      }
      store();
      unproven &= (1u << rounds_) - 1;
      // What is not proven was stored as it was read.
#pragma unroll 1
      for (; unproven != 0; unproven &= unproven - 1) {
        divide_again(mine, __ffs(static_cast<int>(unproven)) - 1, sums + (mine - results));
      }
    }
  }

 private:
  const Call& c;
  const WarpColumns& s;
  Offsets offsets_;  // of the run
  int shift_;        // elements from a pack's start to the run's
  int at_, last_;    // the first pack's first element, counted from the run's, and from there to that of the last round
  int rounds_;       // that the lane has packs of; in the last one maybe none
  int begin_, end_;  // elements of the first pack that are the run's
  int last_end_;     // of the last round's
  int slot_;
  RunPack x_[kPacks];
  std::conditional_t<kBackward, RunPack[kPacks], Empty> g_;
  std::conditional_t<kBackward, Empty, Least<T>> least_;

  static __device__ __forceinline__ double placed(const First& tally) {
    if constexpr (kBackward) {
      return tally.sum().hi;
    } else {
      return tally.placed();
    }
  }

  // Whether the operand has a whole pack where the lane has one of so many elements, from there on.
  template <int64_t Offsets::* kOf>
  __device__ __forceinline__ bool has_whole(int from, int elements, int64_t span) const {
    const int64_t first = offsets_.*kOf + at_ + from;
    return elements > 0 && first >= 0 && first + kPack <= span;
  }

  // Neighbours of the run are read with it, but for what lies outside of the operand.
  template <int64_t Offsets::* kOf>
  __device__ __forceinline__ void load_whole(const void* operand, int64_t span, RunPack (&packs)[kPacks]) const {
    const T* const from = static_cast<const T*>(operand) + offsets_.*kOf + at_;
    const int step = s.apart() * kPack;
    const auto load = [&](int place, bool there) {
      return load_pack<Access::kOnce>(reinterpret_cast<const RunPack*>(from + place), there);
    };
    packs[0] = load(0, has_whole<kOf>(0, end_, span));
    packs[1] = load(last_, has_whole<kOf>(last_, last_end_, span));
#pragma unroll
    for (int u = 2; u < kPacks; ++u) packs[u] = load((u - 1) * step, u < rounds_);
  }

  // Leaves the run's elements of the packs that are not whole.
  template <int64_t Offsets::* kOf>
  __device__ __forceinline__ void cut(const void* operand, int64_t span, RunPack (&packs)[kPacks]) const {
    const T* const from = static_cast<const T*>(operand) + offsets_.*kOf + at_;
    if (end_ > 0 && !has_whole<kOf>(0, end_, span)) packs[0] = load_elements(from, begin_, end_);
    if (last_end_ > 0 && !has_whole<kOf>(last_, last_end_, span)) packs[1] = load_elements(from + last_, 0, last_end_);
    keep(packs[0], begin_, end_);
    keep(packs[1], 0, last_end_);
  }

  static __device__ __forceinline__ RunPack load_elements(const T* from, int begin, int end) {
    return make_pack<T, kPack>([&](int k) { return k >= begin && k < end ? from[k] : T{}; });
  }

  // Those of a pack's elements, and zeros.
  static __device__ __forceinline__ void keep(RunPack& pack, int begin, int end) {
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      if constexpr (RunPack::kPairs) {
        const uint32_t lower = 2 * u >= begin && 2 * u < end ? 0xffffu : 0u;
        const uint32_t upper = 2 * u + 1 >= begin && 2 * u + 1 < end ? 0xffff0000u : 0u;
        pack.units[u] &= lower | upper;
      } else {
        if (u < begin || u >= end) pack.units[u] = T{};
      }
    }
  }

  __device__ __forceinline__ void store() const {
    T* const to = static_cast<T*>(c.output) + offsets_.output + at_;
    const int step = s.apart() * kPack;
    store_own(to, x_[0], begin_, end_);
    store_own(to + last_, x_[1], 0, last_end_);
#pragma unroll
    for (int u = 2; u < kPacks; ++u) {
      if (u < rounds_) store_pack<Access::kOnce>(reinterpret_cast<RunPack*>(to + (u - 1) * step), x_[u]);
    }
  }

  static __device__ __forceinline__ void store_own(T* to, const RunPack& pack, int begin, int end) {
    if (begin == 0 && end == kPack) {
      store_pack<Access::kOnce>(reinterpret_cast<RunPack*>(to), pack);
    } else {
#pragma unroll
      for (int k = 0; k < kPack; ++k) {
        if (k >= begin && k < end) to[k] = pack[k];
      }
    }
  }

  // slopes: of the lane's columns.
  __device__ __forceinline__ void differentiate(const SharedResult* slopes) {
    if constexpr (RunPack::kPairs) {
      FloatGradient floats[kPack];
      bool in_floats = true;
#pragma unroll
      for (int k = 0; k < kPack; ++k) {
        floats[k] = slopes[k].of.floats;
        in_floats &= slopes[k].of.in_floats();
      }
      if (in_floats) {
        each_pack([&](int u) {
#pragma unroll
          for (int unit = 0; unit < kUnits; ++unit) {
            x_[u].units[unit] =
                input_gradients<T>(g_[u].units[unit], x_[u].units[unit], floats[2 * unit], floats[2 * unit + 1]);
          }
        });
      } else {
        // In a loop, as it is rare.
#pragma unroll 1
        for (int k = 0; k < kPack; ++k) {
          const Slope<T> slope = slopes[k].of;
          each_pack([&](int u) {
            const T result = slope.gradient(element_of(g_[u], k)[0], element_of(x_[u], k)[0]);
            x_[u] = make_pack<T, kPack>([&](int i) { return i == k ? result : x_[u][i]; });
          });
        }
      }
    } else {
      Slope<T> own[kPack];
#pragma unroll
      for (int k = 0; k < kPack; ++k) own[k] = slopes[k].of;
      each_pack([&](int u) {
#pragma unroll
        for (int k = 0; k < kPack; ++k) x_[u].units[k] = own[k].gradient(g_[u][k], x_[u][k]);
      });
    }
  }

  // Calls use(u) for the lane's packs, two by two.
  template <typename Use>
  __device__ __forceinline__ void each_pack(const Use& use) const {
#pragma unroll
    for (int u = 0; u < kPacks; u += 2) {
      if (u > 0 && u >= rounds_) break;
      use(u);
      use(u + 1);
    }
  }

  // False, and the pack as it was, where its quotients are not proven.
  __device__ __forceinline__ bool divide(const Quotient<T> (&quotients)[kPack], RunPack& x) const {
    Proof<T> proof;
    RunPack y;
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit) {
      Quotient<T> own[kUnit];
#pragma unroll
      for (int k = 0; k < kUnit; ++k) own[k] = quotients[unit * kUnit + k];
      Few few;
      proof.divide(own, Few{{x.units[unit]}}, few, least_);
      y.units[unit] = few.units[0];
    }
    const bool proven = proof.holds();
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit) x.units[unit] = proven ? y.units[unit] : x.units[unit];
    return proven;
  }

  // Of the lane's u-th pack, which was stored as it was read.
  __device__ __forceinline__ void divide_again(const SharedResult* results, int u, const double2* sums) const {
    Quotient<T> quotients[kPack];
#pragma unroll
    for (int k = 0; k < kPack; ++k) quotients[k] = results[k].of;
    const int begin = u == 0 ? begin_ : 0, end = u == 0 ? end_ : u == 1 ? last_end_ : kPack;
    T* const to = static_cast<T*>(c.output) + offsets_.output + at_ +
                  (u == 0   ? 0
                   : u == 1 ? last_
                            : (u - 1) * s.apart() * kPack);
    const bool whole = begin == 0 && end == kPack;
    RunPack x = whole ? *reinterpret_cast<const RunPack*>(to) : load_elements(to, begin, end), y = x;
    uint32_t left = (1u << kPack) - 1;
    if constexpr (RunPack::kPairs) {
      left = unproven_halves(x, [&](int k) -> const Quotient<T>& { return quotients[k]; }, y);
    } else {
#pragma unroll
      for (int k = 0; k < kPack; ++k) {
        Pack<T, 1> quotient;
        if (quotients[k].divide(element_of(x, k), quotient)) {
          y.units[k] = quotient.units[0];
          left &= ~(1u << k);
        }
      }
    }
    store_own(to, y, begin, end);
#pragma unroll 1
    for (; left != 0; left &= left - 1) {
      const int k = __ffs(static_cast<int>(left)) - 1;
      if (k < begin || k >= end) continue;
      const double2 sum = sums[k];
      Quotient<T> quotient = quotients[0];
#pragma unroll
      for (int i = 1; i < kPack; ++i) {
        if (i == k) quotient = quotients[i];
      }
      to[k] = Exactly<T>({sum.x, sum.y}, c).divide(element_of(x, k)[0], quotient);
    }
  }
};

}  // namespace l1norm::cuda
