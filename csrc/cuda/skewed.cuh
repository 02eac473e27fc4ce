// Rows side by side whose steps begin at any place of a pack, so that a column is another element of a pack from step
// to step. Steps that begin alike are one warp's, whose columns stay.
#pragma once

#include "loose.cuh"
#include "plan_strided_relay.h"

namespace l1norm::cuda {

template <typename T>
constexpr int kSectorElements = sector_elements(sizeof(T));

template <typename T>
struct SkewedTile;

// Tiles of `width` columns: whole sectors, and one less than a warp's lanes read, so that packs of any place hold them.
struct Skewing {
  template <typename T>
  using Tile = SkewedTile<T>;

  int64_t inner;   // columns side by side
  unsigned tiles;  // that they are cut in
  Divider by_tiles;
  Offsets extent;    // elements from an operand's first one to past its last one
  int lanes, warps;  // side by side; along the steps; powers of two
  int width;         // columns of a tile
  int part;          // steps of a block
};

template <typename T>
struct SkewedPlace;

// A block's tile and part of the steps.
template <typename T>
struct SkewedTile {
  using Place = SkewedPlace<T>;
  static constexpr int kPack = kPackBytes / sizeof(T);

  const Call& c;
  const Skewing& s;
  Offsets offsets;     // of the row of columns, at its first step
  int64_t column;      // the tile's first one there
  int64_t begin, end;  // steps

  __device__ __forceinline__ SkewedTile(const Call& c_, const Skewing& s_, unsigned tile, unsigned part)
      : c(c_), s(s_) {
    const unsigned outer = s.by_tiles.quotient(tile);
    offsets = offsets_of(c.geometry.rows, outer * s.inner);
    column = static_cast<int64_t>(tile - outer * s.tiles) * s.width;
    begin = static_cast<int64_t>(part) * s.part;
    end = min(begin + s.part, c.geometry.row.count);
  }

  // Elements from a sector's start in the result to the tile's first column, in the steps of that warp.
  __device__ __forceinline__ int shift(int warp) const {
    return elements_past<T>(c.output, offsets.output + column + (begin + warp) * c.geometry.row.stride[0].output,
                            kSectorElements<T>);
  }

  // Of a column of the tile, or of the one before it; -1 where there is none.
  __device__ __forceinline__ int64_t denominator(int at) const {
    const int64_t to = column + at;
    if (to < 0 || to >= s.inner) return -1;
    const Walk& units = c.geometry.rows;
    return offsets.denominator + to * units.stride[units.dims - 1].denominator;
  }

  __device__ __forceinline__ int width() const { return s.width; }
  // Results are of this tile's columns, and of those at the end of the tile before, which are divided here in some
  // steps.
  __device__ __forceinline__ int results() const { return s.width + kSectorElements<T>; }
  __device__ __forceinline__ int column_of(int result) const { return result - kSectorElements<T>; }

  // Calls done(column, sum) for what the block's warps handed in.
  template <typename Done>
  __device__ __forceinline__ void each_sum(double2* parts, const Done& done) const {
    for (int k = static_cast<int>(threadIdx.x); k < s.width; k += static_cast<int>(blockDim.x)) {
      Sum sum;
      for (int warp = 0; warp < s.warps; ++warp) {
        const double2 part = parts[warp * s.lanes * kPack + k + shift(warp)];
        sum = sum + Sum{part.x, part.y};
      }
      done(k, sum);
    }
  }
};

template <typename T>
struct SkewedPlace {
  static constexpr int kPack = kPackBytes / sizeof(T);

  const SkewedTile<T>& tile;
  int at;          // the pack's first column, counted from the tile's
  int head, tail;  // its elements from the one to the other are columns of the row
  int slot, result, packs;
  bool exists, hands_in;
  int64_t step;  // the thread's first
  int stride;    // from it to the next

  // Of a pack that has columns of the tile, or, to divide, of the packs that tiles share out between them.
  __device__ __forceinline__ SkewedPlace(const SkewedTile<T>& tile_, bool divides) : tile(tile_) {
    const Skewing& s = tile.s;
    const int thread = thread_anew(), lane = thread % 32, warp = thread / 32, bits = log2_of(s.lanes);
    const int unit = lane & (s.lanes - 1), step_lane = lane >> bits;
    at = unit * kPack - tile.shift(warp);
    const int64_t column = tile.column + at;
    exists =
        column + kPack > 0 && column < s.inner && (divides ? unit * kPack < s.width : at < s.width && at + kPack > 0);
    head = static_cast<int>(max(-column, int64_t{0}));
    tail = static_cast<int>(min(s.inner - column, int64_t{kPack}));
    stride = s.warps << (5 - bits);
    step = tile.begin + warp + s.warps * step_lane;
    const int left = static_cast<int>(tile.end - step);
    packs = exists && left > 0 ? (left + stride - 1) >> log2_of(stride) : 0;
    hands_in = step_lane == 0;
    slot = (warp * s.lanes + unit) * kPack;
    result = at + kSectorElements<T>;
  }

  __device__ __forceinline__ int lanes() const { return tile.s.lanes; }
  __device__ __forceinline__ bool all_whole() const { return (head == 0 && tail == kPack) || packs == 0; }
  __device__ __forceinline__ bool is_whole(int u) const { return u < (all_whole() ? packs : 0); }
  __device__ __forceinline__ int first(int) const { return head; }
  __device__ __forceinline__ int last(int) const { return tail; }
  __device__ __forceinline__ int64_t denominator(int k) const { return exists ? tile.denominator(at + k) : -1; }

  template <int64_t Offsets::* kOf>
  __device__ __forceinline__ int64_t offset() const {
    return tile.offsets.*kOf + tile.column + at + step * tile.c.geometry.row.stride[0].*kOf;
  }
  template <int64_t Offsets::* kOf>
  __device__ __forceinline__ int64_t bump() const {
    return stride * tile.c.geometry.row.stride[0].*kOf;
  }
  template <int64_t Offsets::* kOf>
  __device__ __forceinline__ int64_t extent() const {
    return tile.s.extent.*kOf;
  }
};

}  // namespace l1norm::cuda
