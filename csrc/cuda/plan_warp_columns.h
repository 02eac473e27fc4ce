// The warp columns kernel's launch. Pure and host-only, as the rest of the plan.
//
// Figures are fractions of a copy's speed, or of torch.add's, measured on an H200 over 40 to 160 MB.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>

#include "shape.h"

namespace l1norm::cuda {

constexpr int kWarpColumnsThreads = 64;
// Columns that come round in a run.
constexpr int kMostWarpColumns = kWarpColumnsThreads;

// Packs of a lane that there are kernels for.
constexpr int kWarpColumnPacks[] = {4, 6, 8, 10, 12, 16};
constexpr int most_warp_column_packs(bool backward) { return backward ? 8 : 16; }

// The warp columns kernel: `warps` warps, or a team of `team` lanes, hold a run. `lanes` lanes of each have up to
// `packs` packs, a multiple of those that columns come round in apart. A team is a warp's, unless there are more
// columns than a warp has lanes: then it is a block.
struct WarpColumnsPlan {
  int packs;
  int team;
  int lanes;
  int warps;
};

constexpr int64_t warp_columns_blocks(int64_t runs, const WarpColumnsPlan& plan) {
  return ceil_div(runs, kWarpColumnsThreads / (plan.team * plan.warps));
}

// Packs that a lane of a team may have before larger teams are faster: the narrower they are the sooner, as each pack
// of theirs is read by fewer neighbours (of 12300 random shapes the launch chosen so is within 0.4% of the fastest one
// in the mean).
constexpr int most_packs_of_a_team(bool backward, int team) {
  if (team == 8) return backward ? 6 : 8;
  return team == 16 && !backward ? 14 : most_warp_column_packs(backward);
}

// Lanes of a team that have packs, of so many columns: whole turns of packs.
constexpr int team_lanes(int64_t columns, int team, int64_t element_size) {
  const int turn = static_cast<int>(columns / std::gcd(columns, kPackBytes / element_size));
  return team / turn * turn;
}

inline bool plan_warp_columns(const Shape& shape, const Device& device, WarpColumnsPlan& plan) {
  const LatticeShape& s = shape.lattice;
  // Not measured without clusters.
  if (device.max_cluster < 2 || s.units == 0 || s.steps == 0 || s.element_size == 8) return false;
  const Rounds run = s.slab();
  if (run.period < 2 || run.period > kMostWarpColumns || run.fold > 1 || run.runs > 1) return false;
  const int64_t pack = kPackBytes / s.element_size;
  // Wherever in a pack it begins.
  const int64_t packs = ceil_div(run.elements() + pack - 1, pack);
  const int most_lanes = run.period > 32 ? kWarpColumnsThreads : 32;
  for (int lanes = 8; lanes <= kWarpColumnsThreads; lanes *= 2) {
    const int team = std::min(lanes, most_lanes), warps = lanes / team;
    if (run.period > team) continue;
    plan = {0, team, team_lanes(run.period, team, s.element_size), warps};
    const int64_t each = ceil_div(packs, int64_t{plan.lanes} * warps);
    if (each > most_packs_of_a_team(shape.backward, team)) continue;
    for (const int most : kWarpColumnPacks) {
      plan.packs = most;
      if (most >= each) return true;
    }
  }
  return false;
}

// Bytes of a run from which that is better than other kernels, and up to which, where it is not as long as lanes hold
// it. columns: up to 2, 4, 8, 16, 32 and 64 of them; packed: of those that are whole packs, which others are faster
// with.
struct WarpColumnsRange {
  int least[6], least_packed[6];
  int most, most_of_many, most_packed;  // of_many: of more than eight columns
};
constexpr int kNoBytes = INT32_MAX;
constexpr WarpColumnsRange kWarpColumnsRanges[2][2] = {
    {{{310, 340, 340, 620, 1050, 2700}, {1250, 1250, 1250, 1250, 2500, 8000}, kNoBytes, kNoBytes, kNoBytes},
     {{250, 270, 300, 520, 1000, 1900}, {850, 850, 850, 1000, 2200, 4500}, 8000, 8000, 7500}},
    {{{500, 700, 900, 1050, 2700, kNoBytes}, {1300, 1300, 3400, 4000, 6000, kNoBytes}, 14000, 12500, 14000},
     {{240, 240, 290, 520, 1000, 2500}, {350, 350, 1000, 1900, 1400, 5000}, kNoBytes, kNoBytes, 7000}},
};

// Whether that is better than other kernels across rows. Of 12000 random shapes of up to 32 columns for which it is so,
// quotients of halves have 0.715 in the mean, by the others 0.52, of floats 0.775 and 0.635; gradients 0.69 and 0.50,
// and 0.82 and 0.69. Of more columns 4 to 8 KB of halves have 0.69 and 0.48, gradients 0.75 and 0.51, of floats 0.87
// and 0.71, but where three lanes of ten have no packs 0.70 and 0.75.
inline bool are_columns_better_in_warps(const Shape& shape) {
  const LatticeShape& s = shape.lattice;
  const Rounds run = s.slab();
  const bool half = s.element_size == 2, packed = run.period * s.element_size % kPackBytes == 0;
  const int lanes = run.period > 32 ? team_lanes(run.period, kWarpColumnsThreads, s.element_size) : kWarpColumnsThreads;
  if (!half && 10 * lanes < 7 * kWarpColumnsThreads) return false;
  const WarpColumnsRange& of = kWarpColumnsRanges[half ? 0 : 1][shape.backward ? 1 : 0];
  int k = 0;
  while (k < 5 && run.period > 2 << k) ++k;
  const int most = packed ? of.most_packed : run.period > 8 ? of.most_of_many : of.most;
  const int64_t bytes = run.elements() * s.element_size;
  return bytes >= (packed ? of.least_packed : of.least)[k] && bytes <= most;
}

}  // namespace l1norm::cuda
