// What slabs cost, for the choice between kernels that go across rows. Pure and host-only, as the rest of the plan.
//
// In times of a copy, or of torch.add, as plan_cost.h, and fitted to the same shapes where no others are named.
#pragma once

#include <algorithm>

#include "plan_cost.h"
#include "plan_slab.h"
#include "shape.h"

namespace l1norm::cuda {

struct SlabCost {
  double always, small;
  double cluster[3];
  double columns;  // a hundred elements, more of them where blocks exchange their sums
  double tiny;     // a thousandth of the elements that a multiprocessor has at a time
  double held;     // of 200 KiB in a multiprocessor's shared memory that are not there
  double alone, two;
  double threads;  // of 512 in a multiprocessor that are not there
  double few, squared;
};
constexpr SlabCost kSlabCosts[] = {
    {1.229, -0.307, {0.052, 0.131, 0.115}, 0.113, 13.494, 0.49, 0.378, 0.115, 0.222, 0.188, 1.425},
    {1.032, -0.147, {0.079, 0.153, 0.134}, 0.024, 4.866, 0.421, 0.385, 0.117, 0.061, 0.0, 1.046},
    {1.123, -0.114, {0.056, 0.039, 0.08}, 0.029, 0.108, 0.517, 0.221, 0.074, 0.344, 0.026, 0.795},
    {1.233, 0.004, {0.036, 0.149, 0.172}, 0.088, 18.183, 0.456, 0.464, 0.11, 0.502, 0.349, 0.616},
    {1.091, 0.197, {0.022, 0.044, 0.122}, 0.017, 3.871, 0.293, 0.291, 0.049, 0.178, 0.041, 0.0},
    {},
};

// Of columns that are some a row's, as other kernels of those cost more than their losses say (on an H200 650
// random shapes of floats have 0.58 of a copy's speed or torch.add's without slabs, 690 of halves 0.40; with those that
// cost less than the others 0.60 and 0.43, less than 1.18 times as much 0.61 and 0.45). Gradients of halves most of all
// (56 random shapes over dims 1 and 3 0.47 at 0.85, 0.577 at 0.6).
constexpr double kOfFolds = 0.85, kOfFoldedHalves = 0.6;
constexpr double of_folds(const Shape& shape) {
  if (!shape.lattice.is_folded_slab()) return 1.0;
  return shape.backward && shape.lattice.element_size == 2 ? kOfFoldedHalves : kOfFolds;
}

// Gradients of packs of halves cost less than those of elements one by one, which slabs' costs are fitted to (of 65 to
// 137 steps on an H200, in blocks of which a multiprocessor has several, 0.72 of an addition's speed, by those 0.53; of
// 113 shapes of 65 to 7435 steps, what is chosen has 0.673, without this and as narrow as they were 0.641).
constexpr double kOfHalvesInPacks = 0.35;

// Those of floats in one pack or two, which walks across are slow in, where columns are some hundred steps long
// (gradients on an H200, as slabs and in other blocks: of one pack 300 steps 0.755 and 0.715, 500 0.96 and 0.70, 2000
// 0.91 and 0.58, 8000 0.82 and 0.51; of two 300 steps 0.955 and 0.87, 500 0.95 and 0.84, 2000 0.855 and 0.79; but 200
// of one 0.58 and 0.65, 150 of two 0.77 and 0.87; of four 0.81 and 0.88).
constexpr double kOfFloatsInPacks = 0.28;

inline double saved_in_packs(const Shape& shape) {
  const LatticeShape& s = shape.lattice;
  if (!shape.backward || s.elements != 1) return 0.0;
  if (s.element_size == 2) return kOfHalvesInPacks;
  return s.element_size == 4 && s.inner * s.bytes() <= 2 * kPackBytes && s.steps >= 256 ? kOfFloatsInPacks : 0.0;
}

// Forward, what blocks of slabs of less than so many KiB take besides, beside fast memory: their instructions (on an
// H200 other kernels are chosen for 27, 7 and 29 of some 600 random shapes of floats, doubles and halves, and have
// 0.70, 0.79 and 0.53 of a copy's speed, slabs 0.51, 0.51 and 0.45). Gradients lose by it, and columns of a few.
constexpr double kShortSlab = 12.0;
constexpr double kOfShortSlabs = 1.0;
constexpr int64_t kShortSlabColumns = 4;

// Columns that no slab is better for then, whatever their costs, which the idle lanes of others are too much of: short
// ones of three packs and more (53066 x 116 x 12 float32 0.98, in slabs 0.56; 9246 x 164 x 12 1.27, 1.07; 14544 x 163 x
// 32 bfloat16 0.84, 0.76), and long ones of doubles, of which many lie side by side (715 x 618 x 64 0.997, 0.62; 1693 x
// 114 x 72 0.95, 0.765; 2545 x 124 x 29 0.87, 0.795 but 1570 x 350 x 37 0.79, 1.12; 5774 x 92 x 10 0.72, 0.78).
inline bool are_lanes_better(const LatticeShape& s, double kib) {
  if (s.element_size == 8) return s.slab().period >= 72 || (s.elements == 1 && s.inner >= 12 && kib >= kShortSlab);
  return s.elements == 1 && s.inner >= 3 && kib < kShortSlab - 1.0;
}

inline double more_beside_fast_memory(const Shape& shape, const Device& device) {
  const LatticeShape& s = shape.lattice;
  const bool spared = shape.backward || s.is_folded_slab() || s.slab().period < kShortSlabColumns;
  if (spared || !is_memory_fast(device)) return 0.0;
  const double kib = static_cast<double>(s.slab().elements() * s.element_size) / 1024.0;
  return are_lanes_better(s, kib) ? kMostCost : kOfShortSlabs * std::max(1.0 / kib - 1.0 / kShortSlab, 0.0);
}

// As little as a slab may cost, whatever its plan.
inline double least_slab_cost(const Shape& shape, const Device& device) {
  const LatticeShape& s = shape.lattice;
  const SlabCost& of = costs_of(kSlabCosts, shape.backward, s.element_size);
  return of_folds(shape) * (of.always - saved_in_packs(shape) + of.small * smallness(shape)) +
         more_beside_fast_memory(shape, device);
}

inline double slab_cost(const Shape& shape, const Device& device, const SlabPlan& plan) {
  const LatticeShape& s = shape.lattice;
  const SlabCost& of = costs_of(kSlabCosts, shape.backward, s.element_size);
  const int at_once = std::clamp(device.threads_per_multiprocessor / plan.threads, 1, plan.at_once);
  const double bytes = static_cast<double>(plan.packs) * kPackBytes, elements = bytes / s.element_size;
  const double columns = static_cast<double>(s.slab().period) * (plan.cluster > 1 ? 1.0 + plan.cluster / 6.0 : 1.0);
  const double few = missing(static_cast<double>(s.slabs() * plan.cluster), device.multiprocessors * at_once);
  const double more = of_cluster(of.cluster, plan.cluster) + of.columns * 100.0 * columns / elements +
                      of.tiny * 1000.0 / (elements * at_once) +
                      of.held * missing(at_once * bytes * (shape.backward ? 2 : 1), 200 << 10) +
                      of_blocks(of.alone, of.two, at_once) + of.threads * missing(at_once * plan.threads, 512) +
                      few * (of.few + few * of.squared);
  return least_slab_cost(shape, device) + of_folds(shape) * more;
}

}  // namespace l1norm::cuda
