// A thread's share of a tile, cells of a pack each, from their read to the write of their results.
#pragma once

#include "lattice.cuh"

namespace l1norm::cuda {

// kPacks cells of one operand; kElements: a cell's elements are steps of their own.
template <typename T, int kPacks, bool kElements, Access kAccess = Access::kOnce>
struct Cells {
  static constexpr int kPack = kPackBytes / sizeof(T);
  using CellPack = Pack<T, kPack>;
  // What is worked on at a time: one element, or a pair of halves.
  static constexpr int kUnits = CellPack::kUnits, kUnit = kPack / kUnits;
  using Few = Pack<T, kUnit>;
  CellPack held[kPacks];

  template <int64_t Offsets::* kOf>
  __device__ __forceinline__ void load(const T* start, const Way& way, const Walk& steps) {
    if constexpr (kElements) {
      visit<kOf, kPacks * kPack>(way, steps, start, [&](int i, const T* from, bool there) {
        const T x = load_pack<kAccess>(from, there);
        if constexpr (CellPack::kPairs) {
          unsigned short bits;
          memcpy(&bits, &x, sizeof bits);
          uint32_t& pair = held[i / kPack].units[i % kPack / 2];
          pair = i % 2 == 0 ? bits : pair | static_cast<uint32_t>(bits) << 16;
        } else {
          held[i / kPack].units[i % kPack] = x;
        }
      });
    } else {
      visit<kOf, kPacks>(way, steps, start, [&](int u, const T* from, bool there) {
        held[u] = load_pack<kAccess>(reinterpret_cast<const CellPack*>(from), there);
      });
    }
  }

  __device__ __forceinline__ void store(T* start, const Way& way, const Walk& steps) const {
    if constexpr (kElements) {
      visit<&Offsets::output, kPacks * kPack>(way, steps, start, [&](int i, T* to, bool there) {
        if (there) *to = held[i / kPack][i % kPack];
      });
    } else {
      visit<&Offsets::output, kPacks>(way, steps, start, [&](int u, T* to, bool there) {
        if (there) store_pack<kAccess>(reinterpret_cast<CellPack*>(to), held[u]);
      });
    }
  }

  __device__ __forceinline__ Few few(int cell, int unit) const { return {{held[cell].units[unit]}}; }
  __device__ __forceinline__ void set(int cell, int unit, const Few& few) { held[cell].units[unit] = few.units[0]; }

  // The k-th element of every cell.
  __device__ __forceinline__ void column(int k, Pack<T, 1> (&elements)[kPacks]) const {
#pragma unroll
    for (int u = 0; u < kPacks; ++u) elements[u].units[0] = held[u][k];
  }
};

// Those of one operand in shared memory, in places of the thread's own.
template <typename T, int kPacks>
struct SharedCells {
  uint4* mine;  // threads' places of one number are neighbours

  template <int64_t Offsets::* kOf>
  __device__ __forceinline__ void load(const T* start, const Way& way, const Walk& steps) const {
    visit<kOf, kPacks>(way, steps, start, [&](int u, const T* from, bool there) {
      uint4* const place = mine + u * blockDim.x;
      if (there) {
        copy_async(place, from);
      } else {
        *place = uint4{};
      }
    });
  }

  template <int kBatch>
  __device__ __forceinline__ Cells<T, kBatch, false> batch(int first) const {
    Cells<T, kBatch, false> cells;
#pragma unroll
    for (int u = 0; u < kBatch; ++u) {
      cells.held[u] =
          *reinterpret_cast<const typename Cells<T, kBatch, false>::CellPack*>(mine + (first + u) * blockDim.x);
    }
    return cells;
  }
};

// A thread's cells, from their read to the write of their results. kShared: they are in shared memory, and in registers
// a batch at a time.
template <typename T, bool kBackward, int kPacks, bool kElements, bool kShared, Access kAccess = Access::kOnce>
struct HeldCells {
  static_assert(!kShared || (!kElements && kAccess == Access::kOnce));
  static constexpr int kBatch = !kShared ? kPacks : kBackward || sizeof(T) == 8 ? 4 : 8;
  using X = Cells<T, kBatch, kElements, kAccess>;
  using G = std::conditional_t<kBackward, X, Empty>;
  static constexpr int kPack = X::kPack;
  using Memory = Desk<T, kBackward>;
  static_assert(kPacks % kBatch == 0 && kBatch * X::kUnits <= 64);

  std::conditional_t<kShared, SharedCells<T, kPacks>, X> x;
  std::conditional_t<kBackward, decltype(x), Empty> g;

  HeldCells() = default;
  // places: of a pack a cell, those of x first.
  __device__ __forceinline__ explicit HeldCells(uint4* places) {
    if constexpr (kShared) {
      x.mine = places + threadIdx.x;
      if constexpr (kBackward) g.mine = x.mine + kPacks * blockDim.x;
    }
  }

  __device__ __forceinline__ void load(const Call& c, const Offsets& o, const Way& way) {
    const Walk& steps = c.geometry.row;
    if constexpr (kBackward) {
      g.template load<&Offsets::grad>(static_cast<const T*>(c.grad) + o.grad, way, steps);
    }
    x.template load<&Offsets::input>(static_cast<const T*>(c.input) + o.input, way, steps);
  }

  // What the warp has of each of its columns, into the desk's parts.
  __device__ __forceinline__ void hand_in(const Call& c, const Tiling& t, const Place& place,
                                          const Memory& desk) const {
    const int64_t denominator = place.offsets(c.geometry.rows).denominator;
    double2* const parts = desk.parts + place.step_warp * t.count();
    const int end = t.along ? 32 / t.lanes : 32;
    int bit = t.along ? 1 : t.lanes, column = 0;
    const auto scale = [&](int k) {
      return kBackward && place.exists ? dot_scale_of<T>(c, denominator + k * t.denominator_step) : 0.0;
    };
    Sum total;
    if (kElements || t.columns == 1) {
      total = sum(scale(0));
    } else if constexpr (!kElements && !kShared) {
      total = folded<kPack>(t, place, [&](int k) {
        TallyOf tally;
        add_column(tally, x, g, k, scale(k));
        return tally.sum();
      });
    } else if constexpr (!kElements) {
      TallyOf tallies[kPack];
      wait_for_copies();
#pragma unroll 1
      for (int first = 0; first < kPacks; first += kBatch) {
        const X batch = x.template batch<kBatch>(first);
        G grads;
        if constexpr (kBackward) grads = g.template batch<kBatch>(first);
#pragma unroll
        for (int k = 0; k < kPack; ++k) add_column(tallies[k], batch, grads, k, scale(k));
      }
      total = folded<kPack>(t, place, [&](int k) { return tallies[k].sum(); });
    }
    if (!kElements && t.columns > 1) {
      constexpr int kBits = kPack == 8 ? 3 : kPack == 4 ? 2 : 1;
      column = static_cast<int>(__brev(static_cast<unsigned>(place.step_lane)) >> (32 - kBits));
      bit *= kPack;
    }
    const int first = bit;
#pragma unroll 1
    for (; bit < end; bit *= 2) total = total + shuffled(total, bit);
    const int rank = t.along ? place.step_lane : place.thread % 32 / first;
    if (rank == 0) parts[column * t.side() + place.unit] = make_double2(total.hi, total.lo);
  }

  // place(): the thread's, worked out anew.
  template <typename MakePlace>
  __device__ __forceinline__ void finish(const Call& c, const Tiling& t, const Cluster& cluster,
                                         const MakePlace& make_place) {
    if constexpr (!kShared) {
      finish_batch(c, t, cluster, make_place(), 0, x, g);
    } else {
#pragma unroll 1
      for (int first = 0; first < kPacks; first += kBatch) {
        X batch = x.template batch<kBatch>(first);
        G grads;
        if constexpr (kBackward) grads = g.template batch<kBatch>(first);
        finish_batch(c, t, cluster, make_place(), first, batch, grads);
      }
    }
  }

 private:
  using TallyOf = std::conditional_t<kBackward, DotTally<T>, Tally<T>>;

  // The k-th element of every cell.
  static __device__ __forceinline__ void add_column(TallyOf& tally, const X& x, const G& g, int k, double by) {
    Pack<T, 1> elements[kBatch];
    x.column(k, elements);
    if constexpr (kBackward) {
      Pack<T, 1> grads[kBatch];
      g.column(k, grads);
      tally.template add<kBatch>(grads, elements, by);
    } else if constexpr (kShared) {
      tally.template add<kBatch>(elements);
    } else {
      tally.template set<kBatch>(elements);
    }
  }

  static __device__ __forceinline__ void add_all(TallyOf& tally, const X& x, const G& g, double by) {
    if constexpr (kBackward) {
      constexpr int kGroup = kGroupOf<kBatch, kPack>;
#pragma unroll
      for (int u = 0; u < kBatch; u += kGroup) tally.template add<kGroup>(g.held + u, x.held + u, by);
    } else {
      add_packs(tally, x.held);
    }
  }

  // The sum of the unit, if it is of one row.
  __device__ __forceinline__ Sum sum(double by) const {
    TallyOf tally;
    if constexpr (!kShared) {
      add_all(tally, x, g, by);
    } else {
      wait_for_copies();
#pragma unroll 1
      for (int first = 0; first < kPacks; first += kBatch) {
        G grads;
        if constexpr (kBackward) grads = g.template batch<kBatch>(first);
        add_all(tally, x.template batch<kBatch>(first), grads, by);
      }
    }
    return tally.sum();
  }

  // The sum of one of kCount columns, over as many lanes: of those along the steps each keeps a half of the columns and
  // hands the other one on, so that every sum is shuffled once. Columns of a pack have as many lanes at least.
  template <int kCount, typename SumOf>
  __device__ __forceinline__ Sum folded(const Tiling& t, const Place& place, const SumOf& sum_of, int first = 0) const {
    if constexpr (kCount == 1) {
      return sum_of(first);
    } else {
      const Sum lower = folded<kCount / 2>(t, place, sum_of, first);
      const Sum upper = folded<kCount / 2>(t, place, sum_of, first + kCount / 2);
      const int bit = t.lanes * (kPack / kCount);
      const bool takes_upper = (place.thread & bit) != 0;
      const Sum mine{takes_upper ? upper.hi : lower.hi, takes_upper ? upper.lo : lower.lo};
      const Sum other{takes_upper ? lower.hi : upper.hi, takes_upper ? lower.lo : upper.lo};
      return mine + shuffled(other, bit);
    }
  }

  // Of cells from the thread's cell `skipped` on; results take their place one by one.
  __device__ __forceinline__ void finish_batch(const Call& c, const Tiling& t, const Cluster& cluster,
                                               const Place& place, int skipped, X& x, const G& g) {
    const Memory desk(place, t, cluster.size);
    const Walk& steps = c.geometry.row;
    const auto make_way = [&] {
      const Way way = place.way(t, steps, cluster.rank);
      return kShared ? Way(way, steps, skipped * way.step) : way;
    };
    const auto column = [&](int k) { return !kElements && t.columns > 1 ? k * t.side() + place.unit : place.unit; };
    uint64_t unproven = 0;
#pragma unroll
    for (int unit = 0; unit < X::kUnits; ++unit) {
      if constexpr (kBackward) {
        const Slope<T>* slopes[X::kUnit];
#pragma unroll
        for (int k = 0; k < X::kUnit; ++k) slopes[k] = &desk.results[column(unit * X::kUnit + k)];
#pragma unroll
        for (int u = 0; u < kBatch; ++u) x.set(u, unit, gradients_beside(g.few(u, unit), x.few(u, unit), slopes));
      } else {
        Quotient<T> results[X::kUnit];
#pragma unroll
        for (int k = 0; k < X::kUnit; ++k) results[k] = desk.results[column(unit * X::kUnit + k)];
#pragma unroll
        for (int u = 0; u < kBatch; ++u) {
          typename X::Few quotients;
          if (divide_beside(results, x.few(u, unit), quotients)) {
            x.set(u, unit, quotients);
          } else {
            unproven |= uint64_t{1} << (unit * kBatch + u);
          }
        }
      }
    }
    T* const start = static_cast<T*>(c.output) + place.offsets(c.geometry.rows).output;
    x.store(start, make_way(), steps);
    if constexpr (!kBackward) {
      // What is not proven was stored as it was read.
      if (unproven == 0) return;
      const Way way = make_way();
      for (; unproven != 0; unproven &= unproven - 1) {
        const int bit = __ffsll(static_cast<long long>(unproven)) - 1, unit = bit / kBatch, u = bit % kBatch;
        const int cell = kElements ? u * kPack : u;
#pragma unroll
        for (int k = 0; k < X::kUnit; ++k) {
          const int element = unit * X::kUnit + k, at = column(element);
          const int ahead = (kElements ? cell + element : cell) * way.step;
          if (ahead >= way.left) continue;
          const Divisor m = exact_divisor<T>({desk.parts[at].x, desk.parts[at].y}, c);
          T* const to = start + steps.at_small(way.first + ahead).output + (kElements ? 0 : element);
          *to = divide_again(*to, desk.results[at], m);
        }
      }
    }
  }
};

// Adds what the tile's warps handed in; done(column, sum) is called for each column, once a block.
template <typename T, bool kBackward, typename Done>
__device__ __forceinline__ void add_up(const Tiling& t, const Place& place, const Desk<T, kBackward>& desk,
                                       const Cluster& cluster, const Done& done) {
  const int columns = t.count();
  // As many threads a column as share its parts evenly, neighbours in a warp.
  const int group = t.warps >= 16 ? 16 : t.warps >= 8 ? 8 : t.warps >= 4 ? 4 : t.warps >= 2 ? 2 : 1;
  const int threads = t.tile_threads(), lane = place.thread % 32;
  const double2* from = desk.parts;
  int sources = t.warps;
  sync_tile(t);
  // First the block's warps, then the cluster's blocks, where there is more than this one.
#pragma unroll 1
  for (bool last = cluster.size == 1;; last = true) {
    if (!last) cluster.wait();
#pragma unroll 1
    for (int base = place.thread - lane; base < columns * group; base += threads) {
      const int column = (base + lane) / group, member = (base + lane) % group;
      Sum total;
      if (column < columns) {
#pragma unroll 1
        for (int k = member; k < sources; k += group) {
          const double2 part = from[k * columns + column];
          total = total + Sum{part.x, part.y};
        }
      }
#pragma unroll 1
      for (int bit = group / 2; bit > 0; bit /= 2) total = total + shuffled(total, bit);
      if (column >= columns) continue;
      if (!last) {
        for (int k = member; k < cluster.size; k += group) {
          cluster.store(&desk.ranks[cluster.rank * columns + column], k, make_double2(total.hi, total.lo));
        }
      } else if (member == 0) {
        done(column, total);
      }
    }
    if (last) break;
    cluster.exchange();
    from = desk.ranks;
    sources = cluster.size;
  }
  sync_tile(t);
}

}  // namespace l1norm::cuda
