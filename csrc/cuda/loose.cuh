// A thread's packs of rows side by side that begin at any place of a pack, from their read to the write of their
// results: packs lie where memory has them, and their elements are columns that stay from one to the next.
//
// A Place says which they are: how many `packs`, which of them are whole and, of the others, which elements (first() to
// last()) are rows'; offset() of the first one in an operand and bump() to the next; where its sums (`slot`) and
// results (`result`) are, and its columns' denominator().
#pragma once

#include "gradient.cuh"
#include "lattice.cuh"

namespace l1norm::cuda {

template <typename T, int kPacks, Access kAccess>
struct LooseCells {
  static constexpr int kPack = kPackBytes / sizeof(T);
  using CellPack = Pack<T, kPack>;
  CellPack held[kPacks];

  template <int64_t Offsets::* kOf, typename Place>
  __device__ __forceinline__ void load(const Place& place, const void* operand) {
    const T* const start = static_cast<const T*>(operand);
    const int64_t at = place.template offset<kOf>(), bump = place.template bump<kOf>();
    const T* p = settled(start + at);
#pragma unroll
    for (int u = 0; u < kPacks; ++u) {
      held[u] = load_pack<kAccess>(reinterpret_cast<const CellPack*>(p), place.is_whole(u));
      p = settled(p + bump);
    }
    if (place.all_whole()) return;
    // At the ends of rows packs may hold neighbours of others, but for the operand's ends.
#pragma unroll
    for (int u = 0; u < kPacks; ++u) {
      if (u >= place.packs) break;
      if (place.is_whole(u)) continue;
      const int64_t here = at + u * bump;
      if (here >= 0 && here + kPack <= place.template extent<kOf>()) {
        held[u] = load_pack<kAccess>(reinterpret_cast<const CellPack*>(start + here), true);
      } else {
        const int first = place.first(u), last = place.last(u);
        held[u] = make_pack<T, kPack>([&](int k) { return k >= first && k < last ? start[here + k] : T{}; });
      }
    }
  }

  template <typename Place>
  __device__ __forceinline__ void store(const Place& place, void* output) const {
    T* p = static_cast<T*>(output) + place.template offset<&Offsets::output>();
    const int64_t bump = place.template bump<&Offsets::output>();
#pragma unroll
    for (int u = 0; u < kPacks; ++u) {
      p = settled(p);
      if (u < place.packs) {
        if (place.is_whole(u)) {
          store_pack<kAccess>(reinterpret_cast<CellPack*>(p), held[u]);
        } else {
          const int first = place.first(u), last = place.last(u);
#pragma unroll
          for (int k = 0; k < kPack; ++k) {
            if (k >= first && k < last) p[k] = held[u][k];
          }
        }
      }
      p += bump;
    }
  }

  // The k-th element of every pack.
  __device__ __forceinline__ void column(int k, Pack<T, 1> (&elements)[kPacks]) const {
#pragma unroll
    for (int u = 0; u < kPacks; ++u) elements[u] = element_of(held[u], k);
  }
};

template <typename T, bool kBackward, int kPacks, Access kAccess>
struct Loose {
  using X = LooseCells<T, kPacks, kAccess>;
  static constexpr int kPack = X::kPack;
  // What is worked on at a time: one element, or a pair of halves.
  static constexpr int kUnits = X::CellPack::kUnits, kUnit = kPack / kUnits;
  using Few = Pack<T, kUnit>;
  using Result = std::conditional_t<kBackward, Slope<T>, Quotient<T>>;

  X x;
  std::conditional_t<kBackward, X, Empty> g;
  std::conditional_t<kBackward, Empty, Least<T>> least;

  template <typename Place>
  __device__ __forceinline__ void load(const Call& c, const Place& place) {
    if constexpr (kBackward) g.template load<&Offsets::grad>(place, c.grad);
    x.template load<&Offsets::input>(place, c.input);
    if constexpr (!kBackward) note_each<kPacks>(least, x.held);
  }

  // What the thread, or those lanes of its warp that have the same columns, have of each.
  template <typename Place>
  __device__ __forceinline__ void hand_in(const Call& c, const Place& place, double2* parts) const {
    using First = std::conditional_t<kBackward, DotTally<T>, Tally<T>>;
    using Careful = typename First::Careful;
    bool exact = true;
    hand_in_sums<First>(c, place, parts, [&](const First& tally) { exact &= tally.is_exact(least); });
    if constexpr (!std::is_same_v<First, Careful>) {
      if constexpr (kBackward) {
        exact = exact || are_zero_dots([&](auto& zeros) { zeros.template add<kPacks>(g.held, x.held, 0.0); });
      }
      if (__any_sync(0xffffffffu, !exact)) hand_in_sums<Careful>(c, place, parts, [](const Careful&) {});
    }
  }

  // results, sums: of columns, as place.result counts them.
  template <typename Place>
  __device__ __forceinline__ void finish(const Call& c, const Place& place, const Result* results,
                                         const double2* sums) {
    if (!place.exists) return;  // nor have its columns results
    uint64_t unproven = 0;
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit) {
      const Result* const at = results + place.result + unit * kUnit;
      if constexpr (kBackward) {
        const Slope<T>* slopes[kUnit];
#pragma unroll
        for (int k = 0; k < kUnit; ++k) slopes[k] = at + k;
#pragma unroll
        for (int u = 0; u < kPacks; ++u) {
          x.held[u].units[unit] =
              gradients_beside(Few{{g.held[u].units[unit]}}, Few{{x.held[u].units[unit]}}, slopes).units[0];
        }
      } else {
        Quotient<T> quotients[kUnit];
#pragma unroll
        for (int k = 0; k < kUnit; ++k) quotients[k] = at[k];
#pragma unroll
        for (int u = 0; u < kPacks; ++u) {
          Few few;
          if (divide_beside(quotients, Few{{x.held[u].units[unit]}}, few, least)) {
            x.held[u].units[unit] = few.units[0];
          } else {
            unproven |= uint64_t{1} << (unit * kPacks + u);
          }
        }
      }
    }
    x.store(place, c.output);
    if constexpr (!kBackward) {
      // What is not proven was stored as it was read.
      for (; unproven != 0; unproven &= unproven - 1) {
        const int bit = __ffsll(static_cast<long long>(unproven)) - 1, unit = bit / kPacks, u = bit % kPacks;
        if (u >= place.packs) continue;
        T* const to = static_cast<T*>(c.output) + place.template offset<&Offsets::output>() +
                      u * place.template bump<&Offsets::output>();
#pragma unroll
        for (int k = 0; k < kUnit; ++k) {
          const int element = unit * kUnit + k, at = place.result + element;
          if (element < place.first(u) || element >= place.last(u)) continue;
          const double2 sum = sums[at];
          to[element] = divide_again(to[element], results[at], exact_divisor<T>({sum.x, sum.y}, c));
        }
      }
    }
  }

 private:
  template <typename Sums, typename Place, typename See>
  __device__ __forceinline__ void hand_in_sums(const Call& c, const Place& place, double2* parts,
                                               const See& see) const {
    // What is rare takes a loop.
    constexpr bool kFirst = std::is_same_v<Sums, std::conditional_t<kBackward, DotTally<T>, Tally<T>>>;
#pragma unroll(kFirst ? kPack : 1)
    for (int k = 0; k < kPack; ++k) {
      Pack<T, 1> elements[kPacks];
      x.column(k, elements);
      Sums tally;
      Pack<T, 1> grads[kBackward ? kPacks : 1];
      double by = 0.0;
      if constexpr (kBackward) {
        g.column(k, grads);
        const int64_t denominator = place.denominator(k);
        if (denominator >= 0) by = dot_scale_of<T>(c, denominator);
      }
      // Those that enter a sum as one term. Fewer of halves take fewer registers, so that more blocks have room.
      constexpr bool kFewer = sizeof(T) == 2 && (kBackward || kAccess == Access::kOnce);
      constexpr int kGroup = !kFewer ? kPacks : kPacks % 4 == 0 ? 4 : 3;
#pragma unroll
      for (int u = 0; u < kPacks; u += kGroup) {
        if constexpr (kBackward) {
          tally.template add<kGroup>(grads + u, elements + u, by);
        } else if (u == 0) {
          tally.template set<kGroup>(elements);
        } else {
          tally.template add<kGroup>(elements + u);
        }
      }
      see(tally);
      Sum total = tally.sum();
#pragma unroll 1
      for (int bit = place.lanes(); bit < 32; bit *= 2) total = total + shuffled(total, bit);
      if (place.hands_in) parts[place.slot + k] = make_double2(total.hi, total.lo);
    }
  }
};

}  // namespace l1norm::cuda
