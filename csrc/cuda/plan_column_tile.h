// The column tile kernel's launch. Pure and host-only, as the rest of the plan.
#pragma once

#include <algorithm>
#include <cstdint>

#include "shape.h"

namespace l1norm::cuda {

constexpr int kMostColumnTileThreads = 128;

// The column tile kernel: a warp takes tiles of `width` columns, a lane a column at a time. A tile is a segment of
// memory a step, which `lanes` lanes copy; `gapless`: it is one segment, of whole groups of columns side by side.
struct ColumnTilePlan {
  int lanes;
  int width;
  int segments;
  int pitch;  // elements of a segment in shared memory, whole packs
  int tile_bytes;
  int threads;
  int64_t tiles;
  bool gapless;
};

// Of tiles in shared memory, for each warp.
constexpr int64_t kColumnTileBytes = 5 << 10;
constexpr int64_t kMostColumnTileBytes = 20 << 10;

inline bool finish_column_tiles(const Shape& shape, const Device& device, ColumnTilePlan& plan) {
  const int64_t size = element_size(shape.dtype);
  // Where steps begin elsewhere in a pack each, segments lie up to a pack further apart.
  const int64_t each = plan.pitch * size + (shape.lattice.columns > 1 ? 0 : kPackBytes);
  plan.tile_bytes = static_cast<int>(ceil_div(plan.segments * each, kLineBytes) * kLineBytes);
  const int bytes = plan.tile_bytes * (shape.backward ? 2 : 1);
  plan.threads = bytes < 3072 || device.threads_per_multiprocessor < 2048 ? 64 : 32;
  return bytes <= kMostColumnTileBytes && bytes * (plan.threads / 32) + kReservedShared <= device.shared_bytes &&
         ceil_div(plan.tiles, plan.threads / 32) <= INT32_MAX;
}

// As many groups as are about the bytes that a tile is to have, and leave few lanes without a column.
inline bool plan_gapless_columns(const Shape& shape, const Device& device, ColumnTilePlan& plan) {
  const int64_t size = element_size(shape.dtype), columns = shape.lattice.beside.columns, pack = kPackBytes / size;
  const int64_t group_bytes = columns * shape.length * size * (shape.backward ? 2 : 1);
  if (group_bytes > kMostColumnTileBytes) return false;
  const int64_t least = std::max<int64_t>(kColumnTileBytes / group_bytes, 1), most = kMostColumnTileBytes / group_bytes;
  int64_t groups = least;
  const auto idle = [&](int64_t n) { return ceil_div(n * columns, 32) * 32 - n * columns; };
  for (int64_t n = least; n <= std::min(2 * least, most); ++n) {
    if (idle(n) * groups < idle(groups) * n) groups = n;
    if (16 * idle(groups) <= groups * columns) break;
  }
  plan.lanes = 32;
  plan.width = static_cast<int>(groups * columns);
  plan.segments = 1;
  plan.pitch = static_cast<int>(ceil_div(plan.width * shape.length + pack - 1, pack) * pack);
  plan.tiles = ceil_div(shape.rows, plan.width);
  plan.gapless = true;
  return finish_column_tiles(shape, device, plan);
}

inline bool plan_column_segments(const Shape& shape, const Device& device, ColumnTilePlan& plan) {
  const int64_t size = element_size(shape.dtype), pack = kPackBytes / size, sector = kSectorBytes / size;
  const int64_t columns = shape.lattice.beside.columns;
  if (columns * size < 64 || shape.length > kMostColumnTileBytes / kLineBytes) return false;
  // Segments that begin anywhere in a pack have room for a sector less.
  const int64_t less = shape.lattice.columns > 1 ? 0 : sector;
  const auto bytes = [&](int lanes) { return shape.length * lanes * kPackBytes * (shape.backward ? 2 : 1); };
  int lanes = 32;
  while (lanes > 8 && (bytes(lanes) > 2 * kColumnTileBytes || lanes / 2 * pack - less >= columns)) lanes /= 2;
  const int64_t room = lanes * pack - less, even = ceil_div(columns, ceil_div(columns, room));
  plan.lanes = lanes;
  plan.width = static_cast<int>(std::min(ceil_div(even, sector) * sector, room));
  plan.segments = static_cast<int>(shape.length);
  plan.pitch = static_cast<int>(lanes * pack);
  plan.tiles = shape.rows / columns * ceil_div(columns, plan.width);
  plan.gapless = false;
  return finish_column_tiles(shape, device, plan);
}

inline bool plan_column_tile(const Shape& shape, const Device& device, ColumnTilePlan& plan) {
  if (shape.lattice.beside.columns == 0 || shape.lattice.beside.jump != 0 || shape.length == 0 || shape.rows == 0)
    return false;
  if (shape.lattice.beside.gapless && plan_gapless_columns(shape, device, plan)) return true;
  return plan_column_segments(shape, device, plan);
}

// Whether `inner` packs side by side are better in tiles than in strided kernels' registers, which so many steps leave
// half empty: 2^26 elements on an H100, 17 x 1024 float32 0.93 (strided 0.62), bfloat16 0.67 (0.23), gradients 0.67
// (0.28); of doubles on an H200, 17 x 30 without a gap 0.72 (0.47); or which read them far apart, 8 x 4 float32 0.77
// (0.47), 9 x 8 bfloat16 0.77 (0.45). in_lanes: lanes have the columns, or share them, which is faster from 13 steps
// on, of gradients and halves from 9 (on an H200 9 to 12 x 104 and more bfloat16 0.82 to 0.87, in tiles 0.68 to 0.73;
// gradients 0.73 to 0.78, 0.58 to 0.66; of float32 0.93, 0.87, but 10 x 1 0.77, 0.86).
constexpr bool are_packs_better_in_tiles(bool backward, int64_t size, int64_t inner, int64_t steps, bool gapless,
                                         bool in_lanes) {
  if (size < 8 && in_lanes && (steps > 12 || (inner > 1 && (backward || size == 2)))) return false;
  if (!backward && inner == 1 && 4 < steps && steps <= longest_whole_column(false)) return true;
  if (size == 2) return (9 <= steps && steps <= 12) || (!backward && 17 <= steps && steps <= 63);
  if (size == 4) return backward ? 9 <= steps && steps <= 14 : 17 <= steps && steps <= 31;
  return backward && gapless && 9 <= steps && steps <= 24;
}

}  // namespace l1norm::cuda
