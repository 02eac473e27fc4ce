// A thread's packs of rows side by side that begin at any place of a pack, from their read to the write of their
// results: packs lie where memory has them, and their elements are columns that stay from one to the next.
//
// A Place says which they are: how many `packs`, which of them are whole and, of the others, which elements (first() to
// last()) are rows'; offset() of the first one in an operand and bump() to the next; where its sums (`slot`) and
// results (`result`) are, and its columns' denominator().
#pragma once

#include "column_tally.cuh"
#include "loose_cells.cuh"
#include "proof.cuh"
#include "turns.cuh"

namespace l1norm::cuda {

// What columns have of a V each in shared memory, with a gap behind as many as a pack has: lanes whose packs are
// neighbours would meet in the same banks.
template <typename V, typename T>
class Spaced {
 public:
  // Of whole packs.
  static constexpr size_t bytes(int columns) {
    return static_cast<size_t>(ceil_div(columns, kPack)) * (kPack * sizeof(V) + kGap);
  }

  __device__ __forceinline__ explicit Spaced(void* start) : start_(static_cast<char*>(start)) {}

  // What follows so many, from the next whole pack on.
  __device__ __forceinline__ uint4* behind(int columns) const {
    return reinterpret_cast<uint4*>(start_) + (bytes(columns) + sizeof(uint4) - 1) / sizeof(uint4);
  }

  __device__ __forceinline__ V& operator[](int column) const {
    const auto at = static_cast<unsigned>(column);
    return *reinterpret_cast<V*>(start_ + at * static_cast<unsigned>(sizeof(V)) + at / kPack * kGap);
  }

 private:
  static constexpr unsigned kPack = kPackBytes / sizeof(T), kGap = alignof(V);
  char* start_;
};

template <typename T>
using Parts = Spaced<double2, T>;
template <typename T, bool kBackward>
using LooseResult = std::conditional_t<kBackward, Slope<T>, Quotient<T>>;
template <typename T, bool kBackward>
using LooseResults = Spaced<LooseResult<T, kBackward>, T>;

// kShared: x is in shared memory, and a group of its packs at a time in registers; of gradients of floats.
template <typename T, bool kBackward, int kPacks, Access kAccess, bool kShared = false>
struct Loose {
  using Registers = LooseCells<T, kPacks, kAccess>;
  using X = std::conditional_t<kShared, SharedLooseCells<T, kPacks>, Registers>;
  using CellPack = typename X::CellPack;
  static constexpr int kPack = X::kPack;
  // What is worked on at a time: one element, or a pair of halves.
  static constexpr int kUnits = CellPack::kUnits, kUnit = kPack / kUnits;
  using Few = Pack<T, kUnit>;
  using Results = LooseResults<T, kBackward>;

  using First = std::conditional_t<kBackward, DotTally<T>, ColumnTally<T>>;
  using TotalOf = Total<T, kBackward>;
  // Packs that are worked on together, or not at all where a thread has fewer: more take more registers, fewer more
  // branches. Relays have all.
  static constexpr int kOfOthers = kPacks % 4 == 0 ? 4 : 3;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
  static constexpr int kOfHalves = kOfOthers;  // more spill on a T4
#else
  static constexpr int kOfHalves = kPacks % 8 == 0 ? 8 : kPacks;
#endif
  // Without branches halves of packs that begin elsewhere from step to step are 4% faster; others would spill.
  template <typename Place>
  static constexpr int kOfRelays =
      kBackward ? (sizeof(T) == 2 ? kOfOthers : kPacks) : (sizeof(T) == 2 && Place::kSkewed ? kPacks : kPacks / 2);
  template <typename Place>
  static constexpr int kGroup = kAccess != Access::kOnce ? kOfRelays<Place>
                                : sizeof(T) == 2         ? kOfHalves
                                                         : kOfOthers;
  // Those whose quotients are proven together.
  template <typename Place>
  static constexpr int kTogether = proven_together<T>(std::gcd(kGroup<Place>, 2));
  static_assert(kPacks % kOfHalves == 0 && kPacks % kOfOthers == 0 && kPacks <= 16);

  X x;
  std::conditional_t<kBackward, Registers, Empty> g;
  std::conditional_t<kBackward, Empty, Least<T>> least;

  template <typename Place>
  __device__ __forceinline__ void load(const Call& c, const Place& place) {
    if constexpr (kShared) x.template load<&Offsets::input>(place, c.input);
    if constexpr (kBackward) g.template load<&Offsets::grad>(place, c.grad);
    if constexpr (!kShared) x.template load<&Offsets::input>(place, c.input);
  }

  // What lanes of the warp that have the same columns have of each.
  template <typename Place>
  __device__ __forceinline__ void hand_in(const Call& c, const Place& place, const Parts<T>& parts) {
    using Careful = typename First::Careful;
    Losses<First> losses;
    TotalOf sums[kPack];
    const auto note_sum = [&](int k, const First& tally) {
      losses.note(tally, least);
      sums[k] = as_total<TotalOf>(tally.sum());
    };
    if constexpr (kShared) {
      x.held.wait();
      First tallies[kPack];
      each_group(place, [&](auto first) {
        CellPack packs[kGroup<Place>];
        x.held.get(first, packs);
#pragma unroll
        for (int k = 0; k < kPack; ++k) {
          Pack<T, 1> elements[kGroup<Place>];
#pragma unroll
          for (int u = 0; u < kGroup<Place>; ++u) elements[u] = element_of(packs[u], k);
          add<first>(tallies[k], k, elements, 1.0);
        }
      });
#pragma unroll
      for (int k = 0; k < kPack; ++k) note_sum(k, tallies[k]);
    } else {
      note(place);
#pragma unroll
      for (int k = 0; k < kPack; ++k) note_sum(k, tally_of<First>(c, place, k));
    }
    if constexpr (!std::is_same_v<First, Careful>) {
      const bool lost = losses.any([&](auto& seer) {
        if constexpr (kBackward) seer.template add<kPacks>(g.held, x.held, 0.0);
      });
      if (__any_sync(0xffffffffu, lost)) {
#pragma unroll 1
        for (int k = 0; k < kPack; ++k) {
          TotalOf sum = as_total<TotalOf>(tally_of<Careful>(c, place, k).sum());
#pragma unroll 1
          for (int bit = place.lanes(); bit < 32; bit *= 2) sum = sum + shuffled(sum, bit);
          const bool first = static_cast<int>(threadIdx.x % 32) < place.lanes();
          if (first && place.hands_in) parts[place.slot + k] = both_words(sum);
        }
        return;
      }
    }
    hand_in_columns<kPack>(place, sums, place.lanes(), place.slot, parts);
  }

  // results, sums: of columns, as place.result counts them.
  template <typename Place>
  __device__ __forceinline__ void finish(const Call& c, const Place& place, const Results& results,
                                         const double2* sums) {
    if (!place.exists) return;  // nor have its columns results
    if constexpr (kAccess == Access::kLast) note(place);
    static_assert(kPacks / kTogether<Place> * kUnits <= 64);
    uint64_t unproven = 0;
    if constexpr (kShared) {
      T* to = static_cast<T*>(c.output) + place.template offset<&Offsets::output>();
      const int64_t bump = place.template bump<&Offsets::output>();
      each_group(place, [&](auto first) {
        CellPack packs[kGroup<Place>];
        x.held.get(first, packs);
#pragma unroll
        for (int unit = 0; unit < kUnits; ++unit) differentiate<first, Place>(results, place.result, unit, packs);
        store_loose<kAccess>(place, first, packs, to, bump);
      });
      return;
    } else {
#pragma unroll
      for (int unit = 0; unit < kUnits; ++unit) {
        if constexpr (kBackward) {
          each_group(place,
                     [&](auto first) { differentiate<first, Place>(results, place.result, unit, x.held + first); });
        } else {
          Quotient<T> quotients[kUnit];
#pragma unroll
          for (int k = 0; k < kUnit; ++k) quotients[k] = results[place.result + unit * kUnit + k];
          each_group(place, [&](auto first) {
#pragma unroll
            for (int u = first; u < first + kGroup<Place>; u += kTogether<Place>) {
              Few few[kTogether<Place>];
              const auto held = [&](int i) { return Few{{x.held[u + i].units[unit]}}; };
              if (!divide_together<(kTogether<Place> > 1)>(quotients, held, least, few)) {
                unproven |= uint64_t{1} << ((unit * kPacks + u) / kTogether<Place>);
              }
#pragma unroll
              for (int i = 0; i < kTogether<Place>; ++i) x.held[u + i].units[unit] = few[i].units[0];
            }
          });
        }
      }
      x.store(place, c.output);
    }
    if constexpr (!kBackward) {
      // What is not proven was stored as it was read.
      for (; unproven != 0; unproven &= unproven - 1) {
        const int number = (__ffsll(static_cast<long long>(unproven)) - 1) * kTogether<Place>;
        const int first = number % kPacks, element = number / kPacks * kUnit, at = place.result + element;
        Quotient<T> quotients[kUnit];
#pragma unroll
        for (int k = 0; k < kUnit; ++k) quotients[k] = results[at + k];
        divide_stored_again<kTogether<Place> * kUnit>(
            quotients,
            [&](int k) -> T* {
              const int u = first + k / kUnit, mine = element + k % kUnit;
              T* const pack = static_cast<T*>(c.output) + place.template offset<&Offsets::output>() +
                              u * place.template bump<&Offsets::output>();
              return u < place.packs && mine >= place.first(u) && mine < place.last(u) ? pack + mine : nullptr;
            },
            [&](int k) {
              const double2 sum = sums[at + k];
              return Sum{sum.x, sum.y};
            },
            c);
      }
    }
  }

 private:
  // Makes one unit of a group of packs of x its gradients; result: the place's.
  template <int kFirst, typename Place>
  __device__ __forceinline__ void differentiate(const Results& results, int result, int unit, CellPack* packs) const {
    const Slope<T>* slopes[kUnit];
#pragma unroll
    for (int k = 0; k < kUnit; ++k) slopes[k] = &results[result + unit * kUnit + k];
    differentiate_beside<kGroup<Place>>(slopes, g.held + kFirst, packs, unit);
  }

  // Adds what a group of packs has of a column.
  template <int kFirst, typename Sums, int N>
  __device__ __forceinline__ void add(Sums& tally, int k, const Pack<T, 1> (&elements)[N], double by) const {
    if constexpr (kBackward) {
      Pack<T, 1> grads[N];
      g.template column<kFirst>(k, grads);
      if constexpr (kFirst == 0) {
        tally.template set<N>(grads, elements, by);
      } else {
        tally.template extend<N>(grads, elements, by);
      }
    } else if constexpr (kFirst == 0) {
      tally.template set<N>(elements);
    } else {
      tally.template extend<N>(elements);
    }
  }

  // Not as soon as packs are asked for: a relay asks for its divisors beside them.
  template <typename Place>
  __device__ __forceinline__ void note(const Place& place) {
    if constexpr (!kBackward) {
      each_group(place, [&](auto u) { note_each<kGroup<Place>>(least, x.held + u); });
    }
  }

  // Calls see(first) for each group of packs of which the thread has any.
  template <int kFirst = 0, typename Place, typename See>
  static __device__ __forceinline__ void each_group(const Place& place, const See& see) {
    if constexpr (kFirst < kPacks) {
      if (kFirst > 0 && kFirst >= place.packs) return;
      see(std::integral_constant<int, kFirst>{});
      each_group<kFirst + kGroup<Place>>(place, see);
    }
  }

  // A column's, of the thread's packs.
  template <typename Sums, typename Place>
  __device__ __forceinline__ Sums tally_of(const Call& c, const Place& place, int k) const {
    Sums tally;
    double by = 0.0;
    if constexpr (kBackward) {
      const int64_t denominator = place.denominator(k);
      if (denominator >= 0) by = dot_scale_of<T>(c, denominator);
    }
    each_group(place, [&](auto first) {
      Pack<T, 1> elements[kGroup<Place>];
      x.template column<first>(k, elements);
      add<first>(tally, k, elements, by);
    });
    return tally;
  }

  // Adds up what lanes of the same columns have, `bit` and more apart: each goes on with a half of their columns, and
  // hands in those that are left.
  template <int kColumns, typename Place>
  static __device__ __forceinline__ void hand_in_columns(const Place& place, TotalOf (&sums)[kPack], int bit, int slot,
                                                         const Parts<T>& parts) {
    if constexpr (kColumns == 1) {
#pragma unroll 1
      for (; bit < 32; bit *= 2) sums[0] = sums[0] + shuffled(sums[0], bit);
    }
    if (bit >= 32) {
#pragma unroll
      for (int k = 0; k < kColumns; ++k) {
        if (place.hands_in) parts[slot + k] = both_words(sums[k]);
      }
    } else if constexpr (kColumns > 1) {
      constexpr int kHalf = kColumns / 2;
      const bool upper = (threadIdx.x & bit) != 0;
#pragma unroll
      for (int k = 0; k < kHalf; ++k) {
        const TotalOf mine = upper ? sums[k + kHalf] : sums[k], others = upper ? sums[k] : sums[k + kHalf];
        sums[k] = mine + shuffled(others, bit);
      }
      hand_in_columns<kHalf>(place, sums, 2 * bit, upper ? slot + kHalf : slot, parts);
    }
  }
};

}  // namespace l1norm::cuda
