// Columns of packs that the chip holds several times over: not what memory gives counts there, but how long each block
// takes. Pure and host-only, as the rest of the plan.
#pragma once

#include <algorithm>
#include <cmath>

#include "lattice_shape.h"

namespace l1norm::cuda {

// Bytes of a tensor that is small: of floats more, where plans for small ones are 2% (gradients 6%) faster yet, and of
// columns less than a line fewer, which slabs are as good for (float32 of 3 to 8 MB take 0.95 to 1.4 times as long in
// them, of 14 to 21 MB 0.93 to 0.99 times).
inline int64_t small_columns_bytes(const LatticeShape& s) {
  if (s.inner * s.bytes() < kWideLine) return 8 << 20;
  return s.element_size == 4 ? 32 << 20 : 16 << 20;
}

// What makes plans of the strided kernel take longer, in microseconds: fitted to 5000 plans on an H200 with nothing in
// the cache, of 250 shapes of 1 to 17 MB, of float32, its gradient, float64 and its gradient. Plans chosen by it
// take 1.1%, 2.9%, 3.1% and 5.2% longer than the fastest one in the mean; those chosen by what is lost of a copy's
// speed, as for large tensors, 13.6%, 5.0%, 6.3% and 9.7%, up to 79%.
struct SmallColumnsTime {
  double cluster[4];           // of two blocks, of four, of eight, of sixteen
  double below_64, below_128;  // a MB, of fewer bytes side by side
  double torn;                 // a MB, where sectors are written by two tiles; of 32 bytes side by side, else less
  double fullest;              // a KB of the fullest multiprocessor
  double steps;                // a step of a thread
  double cells;                // 1024 cells of the fullest multiprocessor, of which some hold nothing
  double waves, uneven;        // of blocks after the first; a MB, where the last wave is not a full one
  double beside;               // registers and shared memory in one kernel
};
constexpr SmallColumnsTime kSmallColumnsTimes[] = {
    {{0.645, 0.874, 1.029, 1.594}, 0.126, 0.035, 0.305, 0.017, 0.063, 0.346, 1.472, 0.191, 0.0},
    {{0.723, 0.968, 1.177, 1.513}, 0.112, 0.036, 0.142, 0.004, 0.156, 0.794, 0.765, 0.465, 0.207},
    {{0.519, 0.669, 0.824, 1.3}, 0.123, 0.026, 0.23, 0.0, 0.064, 0.545, 2.424, 0.247, 0.0},
    {{0.743, 0.899, 1.169, 2.159}, 0.131, 0.054, 0.134, 0.001, 0.195, 0.651, 4.38, 0.675, 3.125},
};

inline bool are_small_columns(const LatticeShape& s) {
  return !s.along && s.elements == 1 && s.element_size > 2 && s.units * s.steps * s.bytes() <= small_columns_bytes(s);
}

// As ceil_div(), of 32 bits.
constexpr int round_up_div(int a, int b) { return (a + b - 1) / b; }

// How much longer a plan takes than one that has none of the above; where that is more than `most`, at least something
// more, and where it cannot be launched, kNever. Divisions are of 32 bits: this runs for some dozens of
// plans.
constexpr double kNever = 1e9;
inline double small_columns_time(const LatticeShape& s, bool backward, const Device& device, const StridedPlan& plan,
                                 double most) {
  const SmallColumnsTime& of = kSmallColumnsTimes[(s.element_size == 8 ? 2 : 0) + (backward ? 1 : 0)];
  const int steps = static_cast<int>(s.steps), units = static_cast<int>(s.units);
  const double operands = backward ? 2.0 : 1.0, line = plan.lanes * kPackBytes;
  const double mb = 1e-6 * kPackBytes * steps * units;
  const double narrow = line < 64 ? of.below_64 : line < 128 ? of.below_128 : 0.0;
  double time = of_cluster(of.cluster, plan.cluster) +
                of.steps * round_up_div(steps, plan.cluster * plan.warps * (32 / plan.lanes)) +
                operands * mb * (narrow + (s.is_torn() ? of.torn * 32 / line : 0.0));
  if (plan.packs > 0 && plan.shared_packs > 0) time += of.beside;
  if (time >= most) return time;
  const int at_once = strided_room(s, backward, device, plan, strided_shared_bytes(s, backward, plan));
  if (at_once == 0) return kNever;
  const int grid = static_cast<int>(strided_grid(s, plan)), fullest = round_up_div(grid, device.multiprocessors);
  const double block = 1e-3 * line * steps / plan.cluster;
  const double cells = strided_threads(plan) * (plan.packs + plan.shared_packs) / 1024.0;
  time += fullest * (of.fullest * operands * block + of.cells * cells);
  if (fullest > at_once) time += of.waves * (static_cast<double>(fullest) / at_once - 1.0);
  const double waves = grid / (static_cast<double>(device.multiprocessors) * at_once);
  if (waves > 1.0) time += of.uneven * mb * (std::ceil(waves) / waves - 1.0);
  return time;
}

// False: no plan holds the columns.
inline bool plan_small_columns(const LatticeShape& s, bool backward, const Device& device, StridedPlan& plan) {
  const int steps = static_cast<int>(s.steps), registers = strided_cells(backward, s.bytes(), s.element_size);
  const int batch = shared_batch(backward, s.element_size), most_lanes = 32 / s.columns;
  double least = kNever;
  // Threads that have up to `held` cells each, of which `packs` are in registers.
  const auto consider = [&](int lanes, int cluster, int packs, int held, int least_warps, int most_warps) {
    const int lines = cluster * (32 / lanes), warps = std::max(least_warps, round_up_div(steps, lines * held));
    if (warps > most_warps) return;
    const int each = round_up_div(steps, lines * warps);
    const int shared = each > packs ? round_up_div(each - packs, batch) * batch : 0;
    const StridedPlan candidate{lanes, 1, lanes, warps, packs, cluster, false, shared, false, false};
    const double time = small_columns_time(s, backward, device, candidate, least);
    if (time >= least) return;
    least = time;
    plan = candidate;
  };
  for (int lanes = 2; lanes <= most_lanes; lanes *= 2) {
    for (int cluster = 1; cluster <= device.widest_cluster; cluster *= 2) {
      const int few = cluster == 1 ? 1 : 2;  // a block of a cluster has two warps at least
      // Of doubles forward none has been measured.
      if (backward || s.element_size == 4) {
        for (const int held : {registers, registers * 3 / 4}) consider(lanes, cluster, registers, held, few, 16);
      }
      if (!backward) {
        for (const int held : {8, 16, 24, 32}) consider(lanes, cluster, 0, held, 2, 8);
      } else if (2 * lanes >= most_lanes) {
        // Narrower ones are slower than relays.
        for (const int held : {registers + 4, registers + 8}) consider(lanes, cluster, registers, held, 3, 16);
      }
    }
  }
  return least < kNever;
}

}  // namespace l1norm::cuda
