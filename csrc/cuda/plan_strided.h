// The strided kernel's launch. Pure and host-only, as the rest of the plan.
#pragma once

#include <algorithm>

#include "../lattice.h"
#include "device.h"

namespace l1norm::cuda {

constexpr int kStridedWarps = 4;  // of a block whose warps have a tile each
constexpr int kStridedThreads = 512;
// Cells a thread, of packs or of as many elements one by one, and blocks of the most threads that a multiprocessor has
// registers for. Two operands share them; halves that are read one by one take a register each until they are a pair.
constexpr int strided_cells(bool backward, int64_t bytes, int64_t element_size, bool shared) {
  if (bytes == 2) return backward ? 3 : 4;
  return backward ? 8 : element_size == 8 && !shared ? 12 : 16;
}
constexpr int strided_blocks(bool backward, int packs) { return backward || packs > 8 ? 1 : 2; }
// Where cells are in shared memory: more blocks, of fewer registers.
constexpr int kSharedThreads = 256;
constexpr int kSharedBlocks = 3;
constexpr int strided_threads(bool shared) { return shared ? kSharedThreads : kStridedThreads; }

// Where a thread has whole columns: units of it, so that 64 bytes are under way, and blocks on a multiprocessor.
constexpr int column_units(bool backward, int steps, int64_t bytes) {
  int units = 1;
  while (units < (backward && bytes == 8 ? 2 : 4) && units * steps * bytes < 64) units *= 2;
  return units;
}
constexpr int column_blocks(bool backward, int steps, bool halves) {
  if (backward && halves) return steps <= 4 ? 4 : 3;
  return steps <= 4 ? (backward ? 5 : 6) : steps <= 8 ? (backward || halves ? 4 : 5) : 3;
}
constexpr int longest_whole_column(bool backward) { return backward ? 8 : 16; }

// What a lattice is to the plan. No units: it is none that the kernel takes.
struct LatticeShape {
  int64_t units = 0;
  int64_t steps = 0;
  int64_t inner = 0;   // units side by side
  int columns = 1;     // of a unit
  int elements = 1;    // of a cell that are steps of their own
  bool along = false;  // steps lie closer together than units
  int64_t element_size = 4;
  int fold = 1;         // steps that are whole packs together, of `elements` elements
  bool skewed = false;  // elements in packs that begin elsewhere from step to step

  // Of what a lane reads at a time.
  int64_t bytes() const { return elements > 1 ? element_size : kPackBytes; }
};

inline LatticeShape shape_of(const Lattice& l, int64_t pack) {
  if (!l.walkable) return {};
  const int elements = l.unit == Unit::kElement ? static_cast<int>(pack) : 1;
  return {l.geometry.rows.count,
          l.geometry.row.count,
          l.inner,
          l.columns,
          elements,
          l.along,
          kPackBytes / pack,
          l.fold,
          l.skewed};
}

// The strided kernel: `lanes` lanes of a warp lie side by side over `width` units, the others and `warps` warps of
// `cluster` blocks share the steps, `packs` cells a thread. A block has four tiles where a tile is one warp's. `whole`:
// a thread has all steps of its units, up to `packs`.
struct StridedPlan {
  int lanes;
  int width;
  int warps;
  int packs;
  int cluster;
  bool whole;
  bool shared;
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

// Shared memory of a block that holds its cells there, and of sums and results.
constexpr int64_t strided_shared_bytes(const LatticeShape& s, bool backward, const StridedPlan& plan) {
  const int64_t tiles = strided_tiles_a_block(plan), cells = tiles * plan.warps * 32 * plan.packs * (backward ? 2 : 1);
  const int sums = plan.warps + (plan.cluster > 1 ? plan.cluster : 0);
  return cells * kPackBytes + tiles * s.columns * plan.lanes * (16 * sums + (backward ? 120 : 32));
}

// What tiles of that plan lose of a copy's speed, or backward of torch.add's: fitted to measured ones on an H200. Three
// blocks or more on a multiprocessor hide each other's sums, divisions and barriers: 512 x 3136 float32 run at 0.87
// with two, at 0.97 with three of the same 64 KB, whose cells are in shared memory. Lines of 128 bytes side by side are
// better than those of 64, and clusters wait.
inline double strided_loss(const LatticeShape& s, bool backward, const Device& device, const StridedPlan& plan) {
  const int tiles = strided_tiles_a_block(plan), threads = plan.warps * tiles * 32;
  int64_t blocks = std::min(kStridedThreads * strided_blocks(backward, plan.packs), device.threads_per_multiprocessor);
  if (plan.shared) blocks = kSharedThreads * kSharedBlocks;
  blocks /= threads;
  if (plan.shared) {
    const int64_t bytes = strided_shared_bytes(s, backward, plan);
    if (bytes > device.shared_bytes - 1024) return 1.0;
    blocks = std::min(blocks, device.shared_bytes_per_multiprocessor / (bytes + 1024));
  }
  if (blocks == 0) return 1.0;
  const int64_t tile = ceil_div(s.steps, plan.cluster) * plan.width * s.bytes();
  const double held = static_cast<double>(blocks * tiles * tile * (backward ? 2 : 1));
  double loss = 0.35 * std::max(0.0, 1.0 - held / (112 << 10));
  loss += blocks == 1 ? 0.2 : blocks == 2 ? (backward ? 0.08 : 0.12) : 0.03;
  const double waits = plan.cluster == 1 ? 0.0 : plan.cluster == 2 ? 0.05 : plan.cluster == 4 ? 0.13 : 0.16;
  loss += backward && plan.cluster > 1 ? waits + 0.06 : waits;
  const int64_t line = plan.width * s.bytes();
  if (!s.along && line < 128) loss += line < 64 ? 0.2 : s.elements > 1 ? 0.12 : backward ? 0.04 : 0.06;
  if (plan.warps == 2 || plan.warps == 3) loss += 0.03;
  // Multiprocessors without a block.
  const double grid = static_cast<double>(strided_grid(s.units, plan));
  return loss + 0.3 * std::max(0.0, 1.0 - grid / (2.0 * device.multiprocessors));
}

inline bool plan_strided(const LatticeShape& s, bool backward, const Device& device, StridedPlan& plan) {
  if (s.units == 0 || s.steps == 0) return false;
  const int64_t cells = ceil_div(s.steps, s.elements);
  const auto cells_of = [&](bool shared) { return strided_cells(backward, s.bytes(), s.element_size, shared); };
  if (!s.along && s.steps <= longest_whole_column(backward)) {
    const int held = static_cast<int>(s.elements > 1 ? (s.steps <= 3 ? 3 : longest_whole_column(backward))
                                                     : power_of_two_from(std::max<int64_t>(s.steps, 2)));
    plan = {32, 32 * column_units(backward, held, s.bytes()), 1, held, 1, true, false};
    return strided_grid(s.units, plan) <= INT32_MAX;
  }
  // Half types have more arithmetic than reads from shared memory leave time for.
  const bool shareable = s.elements == 1 && s.element_size > 2;
  double least = 1.0;
  const auto consider = [&](int lanes) {
    for (int cluster = 1; cluster <= device.max_cluster; cluster *= 2) {
      for (const bool shared : {false, true}) {
        const int packs = cells_of(shared);
        const int64_t warps = ceil_div(ceil_div(cells, static_cast<int64_t>(packs) * (32 / lanes)), cluster);
        if (warps * 32 > strided_threads(shared) || (cluster > 1 && warps < 2) || (shared && !shareable)) continue;
        const StridedPlan candidate{lanes, lanes, static_cast<int>(warps), packs, cluster, false, shared};
        const double loss = strided_loss(s, backward, device, candidate);
        if (loss >= least || strided_grid(s.units, candidate) > INT32_MAX) continue;
        least = loss;
        plan = candidate;
      }
    }
  };
  if (s.along) {
    // Neighbours enough for a line, or for the cells of a row that a warp holds.
    const int64_t coalesced = std::min<int64_t>(s.steps, s.elements > 1 ? 32 : 8);
    const int64_t wanted = std::max(ceil_div(cells, cells_of(false)), coalesced);
    consider(32 / power_of_two_from(std::min<int64_t>(wanted, 32)));
  } else {
    // Packs take as many lanes along the steps as they have columns. Where few units lie side by side, a warp that goes
    // over many of them has no line in any (2^16 x 100 x 3 float32: 0.55 with 16 lanes, 0.33 with 32).
    const int most = s.elements == 1 ? 32 / s.columns : s.inner <= 16 ? 16 : 32;
    for (int lanes = most; lanes >= 2 && lanes * s.bytes() >= 32; lanes /= 2) consider(lanes);
  }
  return least < 1.0;
}

}  // namespace l1norm::cuda
