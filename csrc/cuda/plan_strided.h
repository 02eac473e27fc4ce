// The strided kernel's launch. Pure and host-only, as the rest of the plan.
#pragma once

#include <algorithm>

#include "../lattice.h"
#include "device.h"

namespace l1norm::cuda {

constexpr int kStridedWarps = 4;  // of a block whose warps have a tile each
// Cells a thread: packs, or as many elements one by one.
constexpr int kFewCells = 4;
// Two operands share the registers; halves that are read one by one take a register each until they are a pair.
constexpr int many_cells(bool backward, bool single_halves) {
  return backward ? (single_halves ? 4 : 8) : (single_halves ? 6 : 16);
}
// Threads of a block, and blocks on a multiprocessor, that registers must do for.
constexpr int strided_threads(int packs) { return packs <= kFewCells ? 256 : 512; }
constexpr int strided_blocks(bool slow, int packs) { return packs > kFewCells ? 1 : slow ? 2 : 3; }

// What a lattice is to the plan. No units: it is none that the kernel takes.
struct LatticeShape {
  int64_t units = 0;
  int64_t steps = 0;
  int64_t inner = 0;   // units side by side
  int columns = 1;     // of a unit
  int elements = 1;    // of a cell that are steps of their own
  bool along = false;  // steps lie closer together than units
};

inline LatticeShape shape_of(const Lattice& l, int64_t pack) {
  if (!l.walkable) return {};
  const int elements = l.unit == Unit::kElement ? static_cast<int>(pack) : 1;
  return {l.geometry.rows.count, l.geometry.row.count, l.inner, l.columns, elements, l.along};
}

// The strided kernel: `lanes` lanes of a warp lie side by side over `width` units, the others and `warps` warps of
// `cluster` blocks share the steps, `packs` cells a thread. A block has four tiles where a tile is one warp's.
struct StridedPlan {
  int lanes;
  int width;
  int warps;
  int packs;
  int cluster;
};

constexpr int strided_tiles_a_block(const StridedPlan& plan) { return plan.warps == 1 ? kStridedWarps : 1; }
constexpr int64_t strided_grid(int64_t units, const StridedPlan& plan) {
  return ceil_div(ceil_div(units, plan.width), strided_tiles_a_block(plan)) * plan.cluster;
}

constexpr int power_of_two_from(int64_t least) {
  int power = 1;
  while (power < least) power *= 2;
  return power;
}

inline bool plan_strided(const LatticeShape& s, bool backward, const Device& device, StridedPlan& plan) {
  if (s.units == 0 || s.steps == 0) return false;
  const int64_t cells = ceil_div(s.steps, s.elements);
  const int many = many_cells(backward, s.elements == 8);
  if (s.along) {
    // Neighbours enough for a line, or for the cells of a row that a warp holds.
    const int64_t coalesced = std::min<int64_t>(s.steps, s.elements > 1 ? 32 : 8);
    const int64_t wanted = std::max(ceil_div(cells, cells <= 32 * kFewCells ? kFewCells : many), coalesced);
    plan.lanes = 32 / power_of_two_from(std::min<int64_t>(wanted, 32));
    plan.width = plan.lanes;
  } else if (s.elements == 1) {
    // A line of 128 bytes, and more where a column takes fewer lanes.
    plan.lanes = cells <= kFewCells ? 32 : cells <= 2 * kFewCells ? 16 : 8;
    plan.width = plan.lanes;
  } else {
    // Few units side by side are a tile of their own, unless a thread holds a column.
    const bool own = s.inner <= 16 && cells > kFewCells;
    plan.lanes = own ? power_of_two_from(s.inner) : 32;
    plan.width = own ? static_cast<int>(s.inner) : 32;
  }
  const auto take = [&] {
    const int64_t tiles = ceil_div(s.units, plan.width);
    const auto warps_of = [&](int packs) { return ceil_div(cells, static_cast<int64_t>(packs) * (32 / plan.lanes)); };
    const bool idle = tiles * warps_of(many) < static_cast<int64_t>(device.multiprocessors) * 8;
    plan.packs = warps_of(kFewCells) <= (idle ? 8 : 1) ? kFewCells : many;
    const int64_t needed = warps_of(plan.packs);
    // Two blocks or more on a multiprocessor, while clusters are large enough for the tile.
    for (const int most : {8, strided_threads(plan.packs) / 32}) {
      for (int cluster = 1; cluster <= device.max_cluster; cluster *= 2) {
        if (ceil_div(needed, cluster) > most) continue;
        plan.warps = static_cast<int>(ceil_div(needed, cluster));
        plan.cluster = cluster;
        return strided_grid(s.units, plan) <= INT32_MAX;
      }
    }
    return false;
  };
  while (!take()) {
    // Columns that are too long for that: fewer of them, down to 32 bytes side by side.
    if (s.along || plan.lanes * (kPackBytes / s.elements) <= 32) return false;
    plan.lanes /= 2;
    plan.width = std::min(plan.width, plan.lanes);
  }
  return true;
}

}  // namespace l1norm::cuda
