// Columns of packs that lanes of a warp share. Pure and host-only, as the rest of the plan.
#pragma once

#include <algorithm>

#include "lattice_shape.h"

namespace l1norm::cuda {

// Lanes that share columns, at the most, and steps of each, from `least` to `most` by `by`.
constexpr int kMostSharers = 8;
struct SharedSteps {
  int least, by, most;
};
// Of doubles none forward, as other kernels are as fast as a copy.
constexpr bool has_shared_steps(bool backward, int64_t element_size) { return element_size < 8 || backward; }
constexpr SharedSteps shared_steps(bool backward, int64_t element_size) {
  if (element_size > 2) return backward ? SharedSteps{6, 2, 8} : SharedSteps{12, 4, 16};
  return backward ? SharedSteps{5, 1, 8} : SharedSteps{6, 2, 12};
}

// Steps that a lane has alone in all cases.
constexpr int few_steps(bool backward, int64_t element_size) {
  return element_size == 2 ? 4 : longest_whole_column(backward);
}

// sharers: lanes that share each column.
constexpr StridedPlan shared_columns_of(int64_t steps, int sharers, const SharedSteps& of) {
  const int lanes = 32 / sharers, each = static_cast<int>(ceil_div(steps, sharers));
  const int packs = std::max(of.least, static_cast<int>(ceil_div(each, of.by)) * of.by);
  return {lanes, 1, lanes, 1, packs, 1, true, 0, false, false};
}

// Columns of packs of halves that a lane has, or a few share: by way of shared memory sums of eight columns a pack take
// longer than all else (on an H100, of a copy's speed or torch.add's, in tiles or clusters behind it: 20 steps 0.90,
// 0.63; 32 0.90, 0.70; 64 0.87, 0.74; gradients of 16 0.85, 0.63; of 32 0.81, 0.63). As few lanes as hold them, so that
// few cells are empty, in blocks enough for all multiprocessors.
inline bool plan_shared_halves(const LatticeShape& s, bool backward, const Device& device, StridedPlan& plan) {
  const SharedSteps steps = shared_steps(backward, s.element_size);
  for (int sharers = 1; sharers <= kMostSharers; sharers *= 2) {
    if (s.steps > int64_t{sharers} * steps.most) continue;
    plan = shared_columns_of(s.steps, sharers, steps);
    const int64_t blocks = strided_grid(s, plan);
    if (blocks >= device.multiprocessors) return blocks <= INT32_MAX;
    // Of few blocks more lanes are the faster ones, as long as more than a half of their cells hold something; forward,
    // of many steps, a block for some of them.
    if (sharers < (backward ? kMostSharers : 2) && s.steps > int64_t{sharers} * steps.least) continue;
    return backward || s.steps <= longest_whole_column(backward);
  }
  return false;
}

// No more have been held against other kernels (on an H200, of torch.add's speed, in tiles behind it: 9 steps 0.60,
// 0.54; 17 0.56, 0.40; 21 0.64, 0.41).
constexpr int64_t kMostSharedDoubles = 24;

// Columns of packs of floats or doubles that two lanes share, or more: tiles in shared memory, and warps that share the
// steps, have half of their cells empty, or wait for each other (on an H200, of a copy's speed or torch.add's, and the
// best of those: 17 to 32 steps 0.99, 0.71; 33 to 40 0.98, 0.75; 65 to 72 0.92, 0.78; gradients of 13 to 16 0.94, 0.61;
// of 17 to 24 0.92, 0.74; of 33 to 40 0.88, 0.69; but 49 to 64 0.93, 0.95). Of more than two forward as many as hold
// twelve steps each, where two of three cells hold something.
inline bool plan_shared_wide(const LatticeShape& s, bool backward, const Device& device, StridedPlan& plan) {
  if (s.element_size == 8 && s.steps > kMostSharedDoubles) return false;
  const SharedSteps steps = shared_steps(backward, s.element_size);
  for (int sharers = 2; sharers <= kMostSharers; sharers *= 2) {
    if (s.steps > int64_t{sharers} * (backward || sharers == 2 ? steps.most : steps.least)) continue;
    plan = shared_columns_of(s.steps, sharers, steps);
    const int64_t blocks = strided_grid(s, plan);
    return 3 * s.steps > int64_t{2} * sharers * plan.packs && blocks >= device.multiprocessors && blocks <= INT32_MAX;
  }
  return false;
}

inline bool plan_shared_columns(const LatticeShape& s, bool backward, const Device& device, StridedPlan& plan) {
  if (!has_shared_steps(backward, s.element_size) || s.elements > 1 || s.along) return false;
  if (s.steps <= few_steps(backward, s.element_size)) return false;
  return s.element_size == 2 ? plan_shared_halves(s, backward, device, plan)
                             : plan_shared_wide(s, backward, device, plan);
}

}  // namespace l1norm::cuda
