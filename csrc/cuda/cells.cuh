// A thread's share of a tile, cells of a pack each, from their read to the write of their results.
#pragma once

#include "lattice.cuh"

namespace l1norm::cuda {

// kPacks cells of one operand; kElements: a cell's elements are steps of their own.
template <typename T, int kPacks, bool kElements>
struct Cells {
  static constexpr int kPack = kPackBytes / sizeof(T);
  using CellPack = Pack<T, kPack>;
  // What is worked on at a time: one element, or a pair of halves.
  static constexpr int kUnits = CellPack::kUnits, kUnit = kPack / kUnits;
  using Few = Pack<T, kUnit>;
  CellPack held[kPacks];

  template <int64_t Offsets::* kOf>
  __device__ __forceinline__ void load(const T* start, const Way& way, const Walk& steps) {
    Stroll<kOf, const T> stroll(way, steps, start);
    if constexpr (kElements) {
#pragma unroll
      for (int u = 0; u < kPacks; ++u) {
        held[u] = make_pack<T, kPack>([&](int) {
          const T x = stroll.there() ? *stroll.at() : T{};
          stroll.go_on(way);
          return x;
        });
      }
    } else {
#pragma unroll
      for (int u = 0; u < kPacks; ++u) {
        held[u] = load_pack<Access::kOnce>(reinterpret_cast<const CellPack*>(stroll.at()), stroll.there());
        stroll.go_on(way);
      }
    }
  }

  __device__ __forceinline__ void store(T* start, const Way& way, const Walk& steps) const {
    Stroll<&Offsets::output, T> stroll(way, steps, start);
    if constexpr (kElements) {
#pragma unroll
      for (int u = 0; u < kPacks; ++u) {
        if (!stroll.there()) break;
#pragma unroll
        for (int k = 0; k < kPack; ++k) {
          if (stroll.there()) *stroll.at() = held[u][k];
          stroll.go_on(way);
        }
      }
    } else {
#pragma unroll
      for (int u = 0; u < kPacks; ++u) {
        if (stroll.there()) *reinterpret_cast<CellPack*>(stroll.at()) = held[u];
        stroll.go_on(way);
      }
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

// A thread's cells, from their read to the write of their results. Results take the cells' place one by one.
template <typename T, bool kBackward, int kPacks, bool kElements>
struct HeldCells {
  using X = Cells<T, kPacks, kElements>;
  static constexpr int kPack = X::kPack;
  using Memory = Desk<T, kBackward>;
  static_assert(kPacks <= 16 && kPacks * X::kUnits <= 64);

  X x;
  std::conditional_t<kBackward, X, Empty> g;

  __device__ __forceinline__ void load(const Call& c, const Offsets& o, const Way& way) {
    const Walk& steps = c.geometry.row;
    if constexpr (kBackward) {
      g.template load<&Offsets::grad>(static_cast<const T*>(c.grad) + o.grad, way, steps);
    }
    x.template load<&Offsets::input>(static_cast<const T*>(c.input) + o.input, way, steps);
  }

  // The sum of the unit, if it is of one row.
  __device__ __forceinline__ Sum sum(const Call& c, int64_t denominator, bool exists) const {
    constexpr int kGroup = kGroupOf<kPacks, kPack>;
    if constexpr (kBackward) {
      DotTally<T> tally;
      const double by = exists ? dot_scale_of<T>(c, denominator) : 0.0;
#pragma unroll
      for (int u = 0; u < kPacks; u += kGroup) tally.template add<kGroup>(g.held + u, x.held + u, by);
      return tally.sum();
    } else {
      Tally<T> tally;
      add_packs(tally, x.held);
      return tally.sum();
    }
  }

  // The sum of one of its columns.
  __device__ __forceinline__ Sum sum(const Call& c, int64_t denominator, bool exists, int k) const {
    Pack<T, 1> elements[kPacks];
    x.column(k, elements);
    if constexpr (kBackward) {
      Pack<T, 1> grads[kPacks];
      g.column(k, grads);
      DotTally<T> tally;
      tally.template add<kPacks>(grads, elements, exists ? dot_scale_of<T>(c, denominator) : 0.0);
      return tally.sum();
    } else {
      Tally<T> tally;
      tally.template set<kPacks>(elements);
      return tally.sum();
    }
  }

  // What the warp has of each of its columns, into the desk's parts.
  __device__ __forceinline__ void hand_in(const Call& c, const Tiling& t, const Place& place,
                                          const Memory& desk) const {
    const int64_t denominator = place.offsets(c.geometry.rows).denominator;
    const int columns = t.columns * t.lanes;
    const auto hand = [&](int k, Sum sum) {
      const int end = t.along ? 32 / t.lanes : 32;
#pragma unroll 1
      for (int bit = t.along ? 1 : t.lanes; bit < end; bit *= 2) sum = sum + shuffled(sum, bit);
      if (place.step_lane == 0) {
        desk.parts[place.warp() * columns + k * t.lanes + place.unit] = make_double2(sum.hi, sum.lo);
      }
    };
    if (kElements || t.columns == 1) {
      hand(0, sum(c, denominator, place.exists));
    } else if constexpr (!kElements) {
#pragma unroll
      for (int k = 0; k < kPack; ++k) hand(k, sum(c, denominator + k * t.denominator_step, place.exists, k));
    }
  }

  // place(): the thread's, worked out anew.
  template <typename MakePlace>
  __device__ __forceinline__ void finish(const Call& c, const Tiling& t, const Cluster& cluster,
                                         const MakePlace& make_place) {
    const Place place = make_place();
    const Memory desk(place, t, cluster.size);
    const auto column = [&](int k) { return !kElements && t.columns > 1 ? k * t.lanes + place.unit : place.unit; };
    uint64_t unproven = 0;
#pragma unroll
    for (int unit = 0; unit < X::kUnits; ++unit) {
      typename Memory::Result results[X::kUnit];
#pragma unroll
      for (int k = 0; k < X::kUnit; ++k) results[k] = desk.results[column(unit * X::kUnit + k)];
      if constexpr (kBackward) {
        Gradient d[X::kUnit];
#pragma unroll
        for (int k = 0; k < X::kUnit; ++k) d[k] = Memory::gradient(results[k]);
#pragma unroll
        for (int u = 0; u < kPacks; ++u) x.set(u, unit, input_gradients(g.few(u, unit), x.few(u, unit), d));
      } else {
#pragma unroll
        for (int u = 0; u < kPacks; ++u) {
          typename X::Few quotients;
          if (divide_beside(results, x.few(u, unit), quotients)) {
            x.set(u, unit, quotients);
          } else {
            unproven |= uint64_t{1} << (unit * kPacks + u);
          }
        }
      }
    }
    T* const start = static_cast<T*>(c.output) + place.offsets(c.geometry.rows).output;
    x.store(start, place.way(t, c.geometry.row, cluster.rank), c.geometry.row);
    if constexpr (!kBackward) {
      // What is not proven was stored as it was read.
      if (unproven == 0) return;
      const Way way = place.way(t, c.geometry.row, cluster.rank);
      for (; unproven != 0; unproven &= unproven - 1) {
        const int bit = __ffsll(static_cast<long long>(unproven)) - 1, unit = bit / kPacks, u = bit % kPacks;
        const int cell = kElements ? u * kPack : u;
#pragma unroll
        for (int k = 0; k < X::kUnit; ++k) {
          const int element = unit * X::kUnit + k, at = column(element);
          const int ahead = (kElements ? cell + element : cell) * way.step;
          if (ahead >= way.left) continue;
          const Divisor m = exact_divisor<T>({desk.parts[at].x, desk.parts[at].y}, c);
          T* const to = start + c.geometry.row.at_small(way.first + ahead).output + (kElements ? 0 : element);
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
  const int columns = t.columns * t.lanes;
  // As many threads a column as share its parts evenly, neighbours in a warp.
  const int group = t.warps >= 16 ? 16 : t.warps >= 8 ? 8 : t.warps >= 4 ? 4 : t.warps >= 2 ? 2 : 1;
  const int threads = t.warps * 32, lane = place.thread % 32;
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
