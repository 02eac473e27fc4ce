// A thread's share of a tile, from its cells' read to the write of their results.
#pragma once

#include "cells.cuh"
#include "column_tally.cuh"
#include "desk.cuh"
#include "proof.cuh"

namespace l1norm::cuda {

// A thread's cells, from their read to the write of their results: kPacks in registers, and before them, with kShared,
// t.shared in shared memory, which are in registers a batch at a time.
template <typename T, bool kBackward, int kPacks, bool kElements, bool kShared, Access kAccess = Access::kOnce>
struct HeldCells {
  static_assert(!kShared || (!kElements && kAccess == Access::kOnce));
  // To be finished, and to be summed beside those in registers: fewer of halves, of which more columns have sums.
  static constexpr int kLargeBatch = kSharedBatch<kBackward, sizeof(T)>;
  static constexpr int kSmaller = sizeof(T) == 2 && !kBackward ? 4 : 2;
  static constexpr int kBatch = kPacks > 0 ? kLargeBatch / kSmaller : kLargeBatch;
  using X = Cells<T, kPacks, kElements, kAccess>;
  using G = std::conditional_t<kBackward, X, Empty>;
  static constexpr int kPack = X::kPack;
  using Memory = Desk<T, kBackward>;
  using Copied = SharedCells<T, kCopied<kBackward>>;

  X x;
  G g;
  std::conditional_t<kBackward, Empty, Least<T>> least;  // of all its cells, once they are handed in or finished
  std::conditional_t<kShared, Copied, Empty> shared_x;
  std::conditional_t<kShared && kBackward, Copied, Empty> shared_g;

  HeldCells() = default;
  // places: of a pack a cell, those of x first.
  __device__ __forceinline__ HeldCells(const Tiling& t, uint4* places) {
    if constexpr (kShared) {
      shared_x.mine = places + threadIdx.x;
      if constexpr (kBackward) shared_g.mine = shared_x.mine + t.shared * blockDim.x;
    }
  }

  __device__ __forceinline__ void load(const Call& c, const Tiling& t, const Offsets& o, const Way& way) {
    const Walk& steps = c.geometry.row;
    const T* const from = static_cast<const T*>(c.input) + o.input;
    const T* const grads = kBackward ? static_cast<const T*>(c.grad) + o.grad : nullptr;
    const T* const one = kBackward && !kElements ? static_cast<const T*>(c.one_grad) : nullptr;
    if constexpr (kShared) {
      const auto part = [&](int first, int last) {
        if constexpr (kBackward) {
          if (one == nullptr) {
            shared_g.template load<&Offsets::grad, kBatch>(t, grads, way, steps, first, last);
          } else {
            shared_g.fill(*one, first, last);
          }
        }
        shared_x.template load<&Offsets::input, kBatch>(t, from, way, steps, first, last);
        commit_copies();
      };
      part(0, first_half(t));
      if constexpr (kHalves) part(first_half(t), t.shared);
    }
    const Way rest = kShared ? Way(t, way, steps, t.shared * way.step) : way;
    if constexpr (kBackward) {
      if (one == nullptr) {
        g.template load<&Offsets::grad>(grads, rest, steps);
      } else {
        fill_packs(g.held, *one);
      }
    }
    if constexpr (kPacks > 0) x.template load<&Offsets::input>(from, rest, steps);
  }

  // What the warp has of each of its columns, into the desk's parts. make_place(): the thread's place, worked out anew.
  template <typename MakePlace>
  __device__ __forceinline__ void hand_in(const Call& c, const Tiling& t, const Place& before, int cluster,
                                          const MakePlace& make_place) {
    const int64_t denominator = before.offsets(t, c.geometry.rows).denominator;
    const auto scale = [&](int k) {
      return kBackward && before.exists ? dot_scale_of<T>(c, denominator + k * t.denominator_step) : 0.0;
    };
    const int end = t.along ? t.step_lanes() : 32;
    int bit = t.along ? 1 : t.lanes;
    if (!kElements && t.columns > 1) bit *= kPack;
    const int first = bit;
    TotalOf total{};
    if (kElements || t.columns == 1) {
      total = as_total<TotalOf>(sum(t, scale(0)));
    } else if constexpr (kPlaced) {
      ColumnTally<T> tallies[kPack];
      each_batch<kBatch>(t, [&](int, const auto& batch, const auto&) {
        note_each<kBatch>(least, batch.held);
#pragma unroll
        for (int k = 0; k < kPack; ++k) extend_column(tallies[k], batch, k);
      });
      note_held();
      double placed = folded<kPack>(t, before, [&](int k) {
        extend_column(tallies[k], x, k);
        return tallies[k].placed();
      });
      least.join_warp();
#pragma unroll 1
      for (; bit < end; bit *= 2) placed = placed + shuffled(placed, bit);
      const ColumnTally<T> tally(placed);
      total = tally.sum();
      if (__any_sync(0xffffffffu, !tally.is_exact(least))) {
        total = carefully_folded(t, before, scale);
        bit = first;
      }
    } else if constexpr (!kElements && !kShared) {
      note_held();
      Losses<TallyOf> losses;
      total = folded<kPack>(t, before, [&](int k) {
        TallyOf tally;
        add_column<true>(tally, x, g, k, scale(k));
        losses.note(tally, least);
        return as_total<TotalOf>(tally.sum());
      });
      if constexpr (!std::is_same_v<TallyOf, typename TallyOf::Careful>) {
        const bool lost = losses.any([&](auto& seer) {
          if constexpr (kBackward) seer.template add<kPacks>(g.held, x.held, 0.0);
        });
        if (__any_sync(0xffffffffu, lost)) total = carefully_folded(t, before, scale);
      }
    } else if constexpr (!kElements) {
      Sum sums[kPack];
      sum_each<TallyOf>(
          least,
          [&](auto& tallies) {
            // While the others are on their way.
            each_batch<kBatch>(t, [&](int, const auto& batch, const auto& grads) {
              note_first<kBatch>(tallies[0], least, batch.held);
#pragma unroll
              for (int k = 0; k < kPack; ++k) add_column<false>(tallies[k], batch, grads, k, scale(k));
            });
            if constexpr (kPacks > 0) {
              note_first<kPacks>(tallies[0], least, x.held);
#pragma unroll
              for (int k = 0; k < kPack; ++k) add_column<false>(tallies[k], x, g, k, scale(k));
            }
          },
          sums);
      total = folded<kPack>(t, before, [&](int k) { return as_total<TotalOf>(sums[k]); });
    }
    // Anew, as a kernel of floats would spill on compute capability 12.0; gradients run 3% slower so.
    const Place place = kBackward ? before : make_place();
    double2* const parts = Memory(place, t, cluster).parts + place.step_warp * t.count();
    const int column = !kElements && t.columns > 1 ? column_of(place) : 0;
#pragma unroll 1
    for (; bit < end; bit *= 2) total = total + shuffled(total, bit);
    const int rank = t.along ? place.step_lane : place.thread % 32 >> log2_of(first);
    if (rank == 0) parts[column * t.side() + place.unit] = both_words(total);
  }

  // place(): the thread's, worked out anew.
  template <typename MakePlace>
  __device__ __forceinline__ void finish(const Call& c, const Tiling& t, const Cluster& cluster,
                                         const MakePlace& make_place) {
    if constexpr (kAccess == Access::kLast) note_held();
    if constexpr (kPacks > 0) finish_batch(c, t, cluster, make_place(), kShared ? t.shared : 0, x, g);
    each_batch<kLargeBatch>(t, [&](int first, auto& batch, const auto& grads) {
      finish_batch(c, t, cluster, make_place(), first, batch, grads);
    });
  }

 private:
  using TallyOf = std::conditional_t<kBackward, DotTally<T>, Tally<T>>;
  using TotalOf = Total<T, kBackward>;
  // Whether a warp adds up columns in doubles, in which those of float16 lose nothing, and of bfloat16 seldom.
  static constexpr bool kPlaced = !kBackward && !kElements && sizeof(T) == 2;
  static_assert(!kPlaced || (kPacks + (kShared ? kMostShared : 0)) * 32 < 1 << 13);

  __device__ __forceinline__ void note_held() {
    if constexpr (!kBackward && kPacks > 0) note_each<kPacks>(least, x.held);
  }

  // Whether a tile may own whole sectors: gradients gain nothing by it.
  static constexpr bool kOwns = !kBackward && !kElements && kAccess == Access::kOnce;
  // Cells in shared memory that are asked for, and waited for, before the others, where registers have cells as well:
  // 3% more for float32, none for float64.
  static constexpr bool kHalves = kShared && kPacks > 0 && sizeof(T) < 8;
  static __device__ __forceinline__ int first_half(const Tiling& t) {
    return kHalves ? (t.shared / kLargeBatch + 1) / 2 * kLargeBatch : t.shared;
  }

  // Calls see(number of its first cell, x, g) for what is in shared memory.
  template <int kCells, typename See>
  __device__ __forceinline__ void each_batch(const Tiling& t, const See& see) const {
    if constexpr (kShared) {
      wait_for_copies<kHalves ? 1 : 0>();
#pragma unroll 1
      for (int first = 0; first < t.shared; first += kCells) {
        if (kHalves && first == first_half(t)) wait_for_copies<0>();
        auto batch = shared_x.template batch<kCells>(first);
        std::conditional_t<kBackward, decltype(batch), Empty> grads;
        if constexpr (kBackward) grads = shared_g.template batch<kCells>(first);
        see(first, batch, grads);
      }
    }
  }

  // The k-th element of every cell; kFirst: as the first ones.
  template <bool kFirst, typename Sums, int kCells, bool kSingle, Access kHow, typename Grads>
  static __device__ __forceinline__ void add_column(Sums& tally, const Cells<T, kCells, kSingle, kHow>& cells,
                                                    const Grads& grads, int k, double by) {
    Pack<T, 1> elements[kCells];
    cells.column(k, elements);
    if constexpr (kBackward) {
      Pack<T, 1> products[kCells];
      grads.column(k, products);
      if constexpr (kFirst) {
        tally.template set<kCells>(products, elements, by);
      } else if constexpr (sizeof(T) == 2) {
        tally.template extend<kCells>(products, elements, by);
      } else {
        tally.template add<kCells>(products, elements, by);
      }
    } else if constexpr (kFirst) {
      tally.template set<kCells>(elements);
    } else {
      tally.template add<kCells>(elements);
    }
  }

  // Those of a column, as more of one term.
  template <int kCells, Access kHow>
  static __device__ __forceinline__ void extend_column(ColumnTally<T>& tally,
                                                       const Cells<T, kCells, false, kHow>& cells, int k) {
    // Not by column(), whose element_of() shifts what a conversion takes from where it is.
    Pack<T, 1> elements[kCells];
#pragma unroll
    for (int u = 0; u < kCells; ++u) elements[u].units[0] = cells.held[u][k];
    tally.template extend<kCells>(elements);
  }

  template <typename Sums, int kCells, bool kSingle, Access kHow, typename Grads>
  static __device__ __forceinline__ void add_all(Sums& tally, const Cells<T, kCells, kSingle, kHow>& cells,
                                                 const Grads& grads, double by) {
    if constexpr (kBackward) {
      constexpr int kGroup = kGroupOf<kCells, kPack>;
#pragma unroll
      for (int u = 0; u < kCells; u += kGroup) tally.template add<kGroup>(grads.held + u, cells.held + u, by);
    } else {
      add_packs(tally, cells.held);
    }
  }

  // The sum of the unit, if it is of one row.
  __device__ __forceinline__ Sum sum(const Tiling& t, double by) {
    const auto add = [&](auto& tally) {
      each_batch<kBatch>(t, [&](int, const auto& batch, const auto& grads) {
        note_first<kBatch>(tally, least, batch.held);
        add_all(tally, batch, grads, by);
      });
      if constexpr (kPacks > 0) {
        note_first<kPacks>(tally, least, x.held);
        add_all(tally, x, g, by);
      }
    };
    if constexpr (kBackward) {
      return dot_of<T>(add);
    } else {
      return sum_of<Tally<T>>(least, add);
    }
  }

  // The sum of one of kCount columns, over as many lanes: of those along the steps each keeps a half of the columns and
  // hands the other one on, so that every sum is shuffled once. Columns of a pack have as many lanes at least.
  template <int kCount, typename SumOf>
  static __device__ __forceinline__ auto folded(const Tiling& t, const Place& place, const SumOf& sum_of,
                                                int first = 0) {
    if constexpr (kCount == 1) {
      return sum_of(first);
    } else {
      const auto lower = folded<kCount / 2>(t, place, sum_of, first);
      const auto upper = folded<kCount / 2>(t, place, sum_of, first + kCount / 2);
      const int bit = t.lanes * (kPack / kCount);
      const bool takes_upper = (place.thread & bit) != 0;
      const auto mine = takes_upper ? upper : lower, other = takes_upper ? lower : upper;
      return mine + shuffled(other, bit);
    }
  }

  // The column whose sum folded() leaves to a lane.
  static __device__ __forceinline__ int column_of(const Place& place) {
    constexpr int kBits = kPack == 8 ? 3 : kPack == 4 ? 2 : 1;
    return static_cast<int>(__brev(static_cast<unsigned>(place.step_lane)) >> (32 - kBits));
  }

  // As folded(), where sums would lose bits.
  template <typename Scale>
  __device__ __forceinline__ TotalOf carefully_folded(const Tiling& t, const Place& place, const Scale& scale) const {
    TotalOf mine{};
#pragma unroll 1
    for (int k = 0; k < kPack; ++k) {
      typename TallyOf::Careful tally;
      add_column<true>(tally, x, g, k, scale(k));
      each_batch<kBatch>(
          t, [&](int, const auto& batch, const auto& grads) { add_column<false>(tally, batch, grads, k, scale(k)); });
      TotalOf sum = as_total<TotalOf>(tally.sum());
#pragma unroll 1
      for (int bit = t.lanes; bit < t.lanes * kPack; bit *= 2) sum = sum + shuffled(sum, bit);
      if (k == column_of(place)) mine = sum;
    }
    return mine;
  }

  // Of cells from the thread's cell `skipped` on; results take their place one by one.
  template <int kCells, Access kHow, typename Grads>
  __device__ __forceinline__ void finish_batch(const Call& c, const Tiling& t, const Cluster& cluster,
                                               const Place& place, int skipped,
                                               Cells<T, kCells, kElements, kHow>& cells, const Grads& grads) {
    // Else slopes of what is no column would send their warp the rare way (gradients of 138 x 19406 x 24 bfloat16 in a
    // relay on an H100 0.43 of an addition's speed, with this 0.56).
    if (kBackward && !place.exists) return;
    const Memory desk(place, t, cluster.size);
    const Walk& steps = c.geometry.row;
    const auto make_way = [&] {
      const Way way = place.way(t, steps, cluster.rank);
      return kShared ? Way(t, way, steps, skipped * way.step) : way;
    };
    const auto column = [&](int k) { return !kElements && t.columns > 1 ? k * t.side() + place.unit : place.unit; };
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
    constexpr int kMost = kCells < 16 && sizeof(T) != 4 ? 2 : 1;  // more spill
#else
    constexpr int kMost = 2;
#endif
    constexpr int kFew = std::gcd(kCells, kMost);
    // Floats too, for less code: a launch's first blocks wait for every line of it. (64, 128, 128, 64) over dims (0, 2)
    // is at 0.768 of a copy's speed on an H200 behind a kernel that left none in the multiprocessors' caches, one by
    // one at 0.753; else at 0.830 and 0.826.
    constexpr int kTogether = sizeof(T) == 4 ? kFew : proven_together<T>(kFew);
    static_assert(kCells / kTogether * X::kUnits <= 64);
    uint64_t unproven = 0;
#pragma unroll
    for (int unit = 0; unit < X::kUnits; ++unit) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
      // Else the next quotients are read ahead, into registers that a kernel of bfloat16 has not.
      if constexpr (!kBackward && X::kUnit == 2) __syncwarp();
#endif
      if constexpr (kBackward) {
        const Slope<T>* slopes[X::kUnit];
#pragma unroll
        for (int k = 0; k < X::kUnit; ++k) slopes[k] = &desk.results[column(unit * X::kUnit + k)];
        differentiate_beside<kCells>(slopes, grads.held, cells.held, unit);
      } else {
        Quotient<T> results[X::kUnit];
#pragma unroll
        for (int k = 0; k < X::kUnit; ++k) results[k] = desk.results[column(unit * X::kUnit + k)];
#pragma unroll
        for (int first = 0; first < kCells; first += kTogether) {
          typename X::Few quotients[kTogether];
          const auto few = [&](int u) { return cells.few(first + u, unit); };
          if (!divide_together<(kTogether > 1 && kCells < 16)>(results, few, least, quotients)) {
            unproven |= uint64_t{1} << ((unit * kCells + first) / kTogether);
          }
#pragma unroll
          for (int u = 0; u < kTogether; ++u) cells.set(first + u, unit, quotients[u]);
        }
      }
    }
    T* const start = static_cast<T*>(c.output) + place.offsets(t, c.geometry.rows).output;
    const Ownership owns = kOwns ? place.ownership(t, c.geometry.rows) : Ownership{};
    cells.store(start, make_way(), steps, owns);
    if constexpr (!kBackward) {
      // What is not proven was stored as it was read.
      if (unproven == 0) return;
      const Way way = make_way();
      for (; unproven != 0; unproven &= unproven - 1) {
        const int number = (__ffsll(static_cast<long long>(unproven)) - 1) * kTogether;
        const int unit = number / kCells, first = number % kCells;
        Quotient<T> results[X::kUnit];
#pragma unroll
        for (int k = 0; k < X::kUnit; ++k) results[k] = desk.results[column(unit * X::kUnit + k)];
        divide_stored_again<kTogether * X::kUnit>(
            results,
            [&](int k) -> T* {
              const int u = first + k / X::kUnit, element = unit * X::kUnit + k % X::kUnit;
              const int ahead = (kElements ? u * kPack + element : u) * way.step;
              T* const cell = start + steps.at_small(way.first + ahead).output;
              return ahead < way.left && owns(cell) ? cell + (kElements ? 0 : element) : nullptr;
            },
            [&](int k) {
              const double2 sum = desk.parts[column(unit * X::kUnit + k)];
              return Sum{sum.x, sum.y};
            },
            c);
      }
    }
  }
};

}  // namespace l1norm::cuda
