// A thread's packs of rows side by side whose steps begin at any place of a pack: packs lie where memory has them, so
// that a column is another element of them from step to step. Steps that begin alike are one warp's, whose columns
// stay.
#pragma once

#include "gradient.cuh"
#include "lattice.cuh"
#include "plan_strided_relay.h"

namespace l1norm::cuda {

// Tiles of `width` columns: whole sectors, and one less than a warp's lanes read, so that packs of any place hold them.
struct Skewing {
  int64_t inner;     // columns side by side
  unsigned tiles;    // that they are cut in
  Offsets extent;    // elements from an operand's first one to past its last one
  int lanes, warps;  // side by side; along the steps
  int width;         // columns of a tile
  int part;          // steps of a block
};

template <typename T>
constexpr int kSectorElements = sector_elements(sizeof(T));

// A block's tile and part of the steps.
template <typename T>
struct SkewedTile {
  Offsets offsets;     // of the row of columns, at its first step
  int64_t column;      // the tile's first one there
  int64_t begin, end;  // steps

  __device__ __forceinline__ SkewedTile(const Call& c, const Skewing& s, unsigned tile, unsigned part) {
    const unsigned outer = tile / s.tiles;
    offsets = offsets_of(c.geometry.rows, outer * s.inner);
    column = static_cast<int64_t>(tile - outer * s.tiles) * s.width;
    begin = static_cast<int64_t>(part) * s.part;
    end = min(begin + s.part, c.geometry.row.count);
  }

  // Elements from a sector's start in the result to the tile's first column, in the steps of that warp.
  __device__ __forceinline__ int shift(const Call& c, int warp) const {
    const int64_t at = static_cast<int64_t>(reinterpret_cast<uintptr_t>(c.output) / sizeof(T)) + offsets.output +
                       column + (begin + warp) * c.geometry.row.stride[0].output;
    return static_cast<int>(at) & (kSectorElements<T> - 1);
  }

  // Of a column of the tile, or of the one before it; -1 where there is none.
  __device__ __forceinline__ int64_t denominator(const Call& c, const Skewing& s, int at) const {
    const int64_t to = column + at;
    if (to < 0 || to >= s.inner) return -1;
    const Walk& units = c.geometry.rows;
    return offsets.denominator + to * units.stride[units.dims - 1].denominator;
  }
};

template <typename T>
struct SkewedPlace {
  static constexpr int kPack = kPackBytes / sizeof(T);

  int unit, step_lane, warp;
  int at;           // the pack's first column, counted from the tile's
  int first, last;  // of its elements that are columns of the row, and past the last one
  bool exists;
  int64_t step;       // the thread's first
  int steps, stride;  // how many packs it has, and how many steps lie between them

  // Of a pack that has columns of the tile, or, to divide, of the packs that tiles share out between them.
  __device__ __forceinline__ SkewedPlace(const Call& c, const Skewing& s, const SkewedTile<T>& tile, bool divides) {
    const int thread = thread_anew(), lane = thread % 32, step_lanes = 32 / s.lanes;
    warp = thread / 32;
    unit = lane % s.lanes;
    step_lane = lane / s.lanes;
    at = unit * kPack - tile.shift(c, warp);
    const int64_t column = tile.column + at;
    exists =
        column + kPack > 0 && column < s.inner && (divides ? unit * kPack < s.width : at < s.width && at + kPack > 0);
    first = static_cast<int>(max(-column, int64_t{0}));
    last = static_cast<int>(min(s.inner - column, int64_t{kPack}));
    stride = s.warps * step_lanes;
    step = tile.begin + warp + s.warps * step_lane;
    const int64_t left = tile.end - step;
    steps = exists && left > 0 ? static_cast<int>((left + stride - 1) / stride) : 0;
  }

  __device__ __forceinline__ bool is_whole() const { return first == 0 && last == kPack; }

  template <int64_t Offsets::* kOf>
  __device__ __forceinline__ int64_t offset(const Call& c, const SkewedTile<T>& tile) const {
    return tile.offsets.*kOf + tile.column + at + step * c.geometry.row.stride[0].*kOf;
  }
};

template <typename T, int kPacks, Access kAccess>
struct SkewedCells {
  static constexpr int kPack = kPackBytes / sizeof(T);
  using CellPack = Pack<T, kPack>;
  CellPack held[kPacks];

  template <int64_t Offsets::* kOf>
  __device__ __forceinline__ void load(const Call& c, const Skewing& s, const SkewedTile<T>& tile,
                                       const SkewedPlace<T>& place, const void* operand) {
    const T* const start = static_cast<const T*>(operand);
    const int64_t at = place.template offset<kOf>(c, tile), bump = place.stride * c.geometry.row.stride[0].*kOf;
    const int whole = place.is_whole() ? place.steps : 0;
    const T* p = settled(start + at);
#pragma unroll
    for (int u = 0; u < kPacks; ++u) {
      held[u] = load_pack<kAccess>(reinterpret_cast<const CellPack*>(p), u < whole);
      p = settled(p + bump);
    }
    if (whole == place.steps) return;
    // At the ends of rows packs hold neighbours of others, but for the operand's ends.
#pragma unroll
    for (int u = 0; u < kPacks; ++u) {
      const int64_t here = at + u * bump;
      if (u >= place.steps) break;
      if (here >= 0 && here + kPack <= s.extent.*kOf) {
        held[u] = load_pack<kAccess>(reinterpret_cast<const CellPack*>(start + here), true);
      } else {
        held[u] =
            make_pack<T, kPack>([&](int k) { return k >= place.first && k < place.last ? start[here + k] : T{}; });
      }
    }
  }

  __device__ __forceinline__ void store(const Call& c, const SkewedTile<T>& tile, const SkewedPlace<T>& place) const {
    T* p = static_cast<T*>(c.output) + place.template offset<&Offsets::output>(c, tile);
    const int64_t bump = place.stride * c.geometry.row.stride[0].output;
    const bool whole = place.is_whole();
#pragma unroll
    for (int u = 0; u < kPacks; ++u) {
      p = settled(p);
      if (u < place.steps) {
        if (whole) {
          store_pack<kAccess>(reinterpret_cast<CellPack*>(p), held[u]);
        } else {
#pragma unroll
          for (int k = 0; k < kPack; ++k) {
            if (k >= place.first && k < place.last) p[k] = held[u][k];
          }
        }
      }
      p += bump;
    }
  }

  // The k-th element of every pack.
  __device__ __forceinline__ void column(int k, Pack<T, 1> (&elements)[kPacks]) const {
#pragma unroll
    for (int u = 0; u < kPacks; ++u) elements[u].units[0] = held[u][k];
  }
};

// A thread's packs, from their read to the write of their results.
template <typename T, bool kBackward, int kPacks, Access kAccess>
struct Skewed {
  using X = SkewedCells<T, kPacks, kAccess>;
  static constexpr int kPack = X::kPack;
  // What is worked on at a time: one element, or a pair of halves.
  static constexpr int kUnits = X::CellPack::kUnits, kUnit = kPack / kUnits;
  using Few = Pack<T, kUnit>;
  using Result = std::conditional_t<kBackward, Slope<T>, Quotient<T>>;

  X x;
  std::conditional_t<kBackward, X, Empty> g;

  __device__ __forceinline__ void load(const Call& c, const Skewing& s, const SkewedTile<T>& tile,
                                       const SkewedPlace<T>& place) {
    if constexpr (kBackward) g.template load<&Offsets::grad>(c, s, tile, place, c.grad);
    x.template load<&Offsets::input>(c, s, tile, place, c.input);
  }

  // What the warp has of each column, numbered as its packs' elements are.
  __device__ __forceinline__ void hand_in(const Call& c, const Skewing& s, const SkewedTile<T>& tile,
                                          const SkewedPlace<T>& place, double2* parts) const {
#pragma unroll
    for (int k = 0; k < kPack; ++k) {
      Pack<T, 1> elements[kPacks];
      x.column(k, elements);
      Sum total;
      if constexpr (kBackward) {
        Pack<T, 1> grads[kPacks];
        g.column(k, grads);
        const int64_t denominator = place.exists ? tile.denominator(c, s, place.at + k) : -1;
        DotTally<T> tally;
        tally.template add<kPacks>(grads, elements, denominator >= 0 ? dot_scale_of<T>(c, denominator) : 0.0);
        total = tally.sum();
      } else {
        Tally<T> tally;
        tally.template set<kPacks>(elements);
        total = tally.sum();
      }
#pragma unroll 1
      for (int bit = s.lanes; bit < 32; bit *= 2) total = total + shuffled(total, bit);
      if (place.step_lane == 0)
        parts[(place.warp * s.lanes + place.unit) * kPack + k] = make_double2(total.hi, total.lo);
    }
  }

  // results, sums: of the columns from a sector's elements before the tile's first one on.
  __device__ __forceinline__ void finish(const Call& c, const SkewedTile<T>& tile, const SkewedPlace<T>& place,
                                         const Result* results, const double2* sums) {
    if (!place.exists) return;  // nor have its columns results
    const int base = place.at + kSectorElements<T>;
    uint64_t unproven = 0;
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit) {
      const Result* const at = results + base + unit * kUnit;
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
          if (divide_beside(quotients, Few{{x.held[u].units[unit]}}, few)) {
            x.held[u].units[unit] = few.units[0];
          } else {
            unproven |= uint64_t{1} << (unit * kPacks + u);
          }
        }
      }
    }
    x.store(c, tile, place);
    if constexpr (!kBackward) {
      // What is not proven was stored as it was read.
      for (; unproven != 0; unproven &= unproven - 1) {
        const int bit = __ffsll(static_cast<long long>(unproven)) - 1, unit = bit / kPacks, u = bit % kPacks;
        if (u >= place.steps) continue;
        T* const to = static_cast<T*>(c.output) + place.template offset<&Offsets::output>(c, tile) +
                      u * (place.stride * c.geometry.row.stride[0].output);
#pragma unroll
        for (int k = 0; k < kUnit; ++k) {
          const int element = unit * kUnit + k;
          if (element < place.first || element >= place.last) continue;
          const double2 sum = sums[base + element];
          to[element] = divide_again(to[element], results[base + element], exact_divisor<T>({sum.x, sum.y}, c));
        }
      }
    }
  }
};

}  // namespace l1norm::cuda
