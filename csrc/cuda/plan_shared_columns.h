// Columns of halves that lanes of a warp share. Pure and host-only, as the rest of the plan.
#pragma once

#include <algorithm>

#include "lattice_shape.h"

namespace l1norm::cuda {

constexpr int kFewSteps = 4;  // that a lane always has
// Lanes that share columns, at the most, and steps of each, from `least` to `most` by `by`.
constexpr int kMostSharers = 8;
struct SharedSteps {
  int least, by, most;
};
constexpr SharedSteps shared_steps(bool backward) { return backward ? SharedSteps{5, 1, 8} : SharedSteps{6, 2, 12}; }

// Columns of packs of halves that a lane has, or a few share: by way of shared memory sums of eight columns a pack take
// longer than all else (on an H100, of a copy's speed or torch.add's, in tiles or clusters behind it: 20 steps 0.90,
// 0.63; 32 0.90, 0.70; 64 0.87, 0.74; gradients of 16 0.85, 0.63; of 32 0.81, 0.63). As few lanes as hold them, so that
// few cells are empty, in blocks enough for all multiprocessors.
inline bool plan_shared_columns(const LatticeShape& s, bool backward, const Device& device, StridedPlan& plan) {
  if (s.element_size != 2 || s.elements > 1 || s.along || s.steps <= kFewSteps) return false;
  const SharedSteps steps = shared_steps(backward);
  for (int sharers = 1; sharers <= kMostSharers; sharers *= 2) {
    if (s.steps > int64_t{sharers} * steps.most) continue;
    const int lanes = 32 / sharers, each = static_cast<int>(ceil_div(s.steps, sharers));
    const int packs = std::max(steps.least, static_cast<int>(ceil_div(each, steps.by)) * steps.by);
    plan = {lanes, 1, lanes, 1, packs, 1, true, 0, false, false};
    const int64_t blocks = strided_grid(s, plan);
    if (blocks >= device.multiprocessors) return blocks <= INT32_MAX;
    // Of few blocks more lanes are the faster ones, as long as more than a half of their cells hold something; forward,
    // of many steps, a block for some of them.
    if (sharers < (backward ? kMostSharers : 2) && s.steps > int64_t{sharers} * steps.least) continue;
    return backward || s.steps <= longest_whole_column(backward);
  }
  return false;
}

}  // namespace l1norm::cuda
