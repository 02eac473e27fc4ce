// Rows side by side whose steps begin at any place of a pack, so that a column is another element of a pack from step
// to step. Steps that begin alike are one warp's, whose columns stay.
#pragma once

#include "loose.cuh"
#include "plan_strided_relay.h"

namespace l1norm::cuda {

template <typename T>
constexpr int kSectorElements = sector_elements(sizeof(T));

// Elements from an operand's first one to past its last one.
inline Offsets extent_of(const Geometry& g) {
  Offsets extent{1, 1, 1, 1};
  for (const Walk* walk : {&g.rows, &g.row}) {
    for (int d = 0; d < walk->dims; ++d) {
      extent.input += (walk->size[d] - 1) * walk->stride[d].input;
      extent.grad += (walk->size[d] - 1) * walk->stride[d].grad;
      extent.output += (walk->size[d] - 1) * walk->stride[d].output;
    }
  }
  return extent;
}

template <typename T, bool kHeld>
struct SkewedTile;

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
constexpr int kSumsAtOnce = 2;  // more spill on a T4
#else
constexpr int kSumsAtOnce = 4;
#endif

// Tiles of `width` columns, whole sectors or packs in the result. Where those begin, in steps that begin elsewhere than
// the tile's first column, they have columns at the end of the tile before, which are divided here.
struct Skewing {
  template <typename T>
  using Tile = SkewedTile<T, false>;

  int64_t inner;   // columns side by side
  unsigned tiles;  // that they are cut in
  Divider by_tiles;
  Offsets extent;     // elements from an operand's first one to past its last one
  int lanes, warps;   // side by side, a power of two; along the steps
  int width;          // columns of a tile
  int part;           // steps of a block
  Turns turns;        // of columns that are added up
  Divider by_stride;  // of a thread from step to step
  int64_t rows;       // fewer than columns where they have several each
  Folds folds;
};

// Tiles whose blocks have no others' sums: they add up those columns of the tile before as well, for which lanes have a
// pack on either side of what they divide.
struct HeldSkewing : Skewing {
  template <typename T>
  using Tile = SkewedTile<T, true>;
};

template <typename T, bool kHeld>
struct SkewedPlace;

// A block's tile and part of the steps.
template <typename T, bool kHeld>
struct SkewedTile {
  using Place = SkewedPlace<T, kHeld>;
  using Shape = std::conditional_t<kHeld, HeldSkewing, Skewing>;
  static constexpr int kPack = kPackBytes / sizeof(T);
  // Columns of the tile before that may be divided here, and one more.
  static constexpr int kBefore = kHeld ? kPack : kSectorElements<T>;

  const Call& c;
  const Shape& s;
  Offsets offsets;     // of the row of columns, at its first step
  int64_t column;      // the tile's first one there
  int64_t begin, end;  // steps

  __device__ __forceinline__ SkewedTile(const Call& c_, const Shape& s_, unsigned tile, unsigned part) : c(c_), s(s_) {
    const unsigned outer = s.by_tiles.quotient(tile);
    // The innermost loop's are a row of columns, but where those are folded.
    const Walk& units = c.geometry.rows;
    offsets = kHeld || !is_folded() ? units.around_small(static_cast<int>(outer)) : offsets_of(units, outer * s.rows);
    column = static_cast<int64_t>(tile - outer * s.tiles) * s.width;
    begin = static_cast<int64_t>(part) * s.part;
    end = min(begin + s.part, c.geometry.row.count);
  }

  // Elements from the start of what is divided to the tile's first column, in the steps of that warp.
  __device__ __forceinline__ int shift(int warp) const {
    return elements_past<T>(c.output, offsets.output + column + (begin + warp) * c.geometry.row.stride[0].output,
                            kBefore);
  }

  // Of a column of the tile, or of one before it; -1 where there is none.
  __device__ __forceinline__ int64_t denominator(int at) const {
    const int64_t to = column + at;
    if (to < 0 || to >= s.inner) return -1;
    const Walk& units = c.geometry.rows;
    if (!is_folded()) return offsets.denominator + to * units.stride[units.dims - 1].denominator;
    return offsets.denominator + s.folds.denominator(units, s.folds.row_of_column(static_cast<int>(to)));
  }

  // Whether a row has several columns, whose sums are added where they are divided.
  __device__ __forceinline__ bool is_folded() const { return s.rows != s.inner; }
  // Whether a column of the tile is its row's first one.
  __device__ __forceinline__ bool leads(int at) const {
    return at >= 0 && at < s.width && s.folds.is_first_column(static_cast<int>(column + at));
  }

  // Adds sums of columns of the row that one column is of, as the tile counts them: every so many from one on.
  __device__ __forceinline__ Sum await_columns(const double2* totals, int at, int from, int every) const {
    const int k = static_cast<int>(column + at), step = s.folds.apart.columns;
    const int first = s.folds.first_column(s.folds.row_of_column(k)) - static_cast<int>(column);
    return await_all<kSumsAtOnce>(totals + first, from * step, s.folds.columns.columns, every * step);
  }

  __device__ __forceinline__ int width() const { return s.width; }
  // Of the tile's columns and those before it.
  __device__ __forceinline__ int results() const { return s.width + kBefore; }
  __device__ __forceinline__ int column_of(int result) const { return result - kBefore; }
  static __device__ __forceinline__ bool owns(int column) { return column >= 0; }
  // What threads hand in.
  __device__ __forceinline__ int slots() const { return s.warps * s.lanes * kPack; }

  // Calls done(sum's number, sum) for what the block's warps handed in; mine: room for a sum a thread.
  template <typename Done>
  __device__ __forceinline__ void each_sum(const Parts<T>& parts, double2* mine, const Done& done) const {
    const Turns& turns = s.turns;
    const int depth = turns.turn_of(static_cast<int>(blockDim.x)), thread = static_cast<int>(threadIdx.x);
    const int member = turns.turn_of(thread), column = turns.column_of(thread);
    const int first = shift(0), next = static_cast<int>(c.geometry.row.stride[0].output) & (kBefore - 1);
    Sum sum;
    for (int warp = member; member < depth && warp < s.warps; warp += depth) {
      const double2 part = parts[warp * s.lanes * kPack + column + ((first + warp * next) & (kBefore - 1))];
      sum = sum + Sum{part.x, part.y};
    }
    sum = add_members(sum, depth, turns.columns, mine);
    if (member == 0) done(column, sum);
  }

  // The same: a column is a row.
  template <typename Done>
  __device__ __forceinline__ void each_row(const Parts<T>& parts, double2* mine, const Done& done) const {
    each_sum(parts, mine, done);
  }
};

template <typename T, bool kHeld>
struct SkewedPlace {
  static constexpr int kPack = kPackBytes / sizeof(T);
  static constexpr int kBefore = SkewedTile<T, kHeld>::kBefore;
  static constexpr bool kSkewed = true, hands_in = true;

  const SkewedTile<T, kHeld>& tile;
  int at;          // the pack's first column, counted from the tile's
  int head, tail;  // its elements from the one to the other are columns of the row
  int slot, result, packs;
  bool exists;
  int64_t step;  // the thread's first
  int stride;    // from it to the next

  // Of a pack that has columns to add up, or, to divide, of the packs that tiles share out between them.
  __device__ __forceinline__ SkewedPlace(const SkewedTile<T, kHeld>& tile_, bool divides) : tile(tile_) {
    const auto& s = tile.s;
    const int thread = thread_anew(), lane = thread % 32, warp = thread / 32, bits = log2_of(s.lanes);
    const int unit = lane & (s.lanes - 1), step_lane = lane >> bits;
    const int past = (kHeld ? unit - 1 : unit) * kPack;  // from the first one that is divided
    at = past - tile.shift(warp);
    const int64_t column = tile.column + at;
    const bool adds = at < s.width && at + kPack > (kHeld ? -kBefore : 0);
    exists = column + kPack > 0 && column < s.inner && (divides ? past >= 0 && past < s.width : adds);
    head = static_cast<int>(max(-column, int64_t{0}));
    tail = static_cast<int>(min(s.inner - column, int64_t{kPack}));
    stride = s.warps << (5 - bits);
    step = tile.begin + warp + s.warps * step_lane;
    const int left = static_cast<int>(tile.end - step);
    packs = exists && left > 0 ? static_cast<int>(s.by_stride.quotient(static_cast<uint32_t>(left + stride - 1))) : 0;
    slot = (warp * s.lanes + unit) * kPack;
    result = at + kBefore;
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
