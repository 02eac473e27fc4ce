// What kernels that go across rows cost, for the choice between them. Pure and host-only, as the rest of the plan.
//
// In times of a copy of as many elements, or backward of torch.add. Fitted to 14000 shapes (outer, steps, inner) of 2
// to 500 MB on an H200, each of which all kernels ran that take it; those near the fastest one count most. What is
// chosen is 1.0% slower than the fastest one in the mean, and by more than 15% in 2 of 100; of 1500 others likewise. On
// an H100 1.8%, and 4 of 100; of packs, of which few were among those shapes, 2.9%, and 5.
#pragma once

#include <algorithm>

#include "plan_column_tile.h"
#include "plan_strided.h"
#include "plan_strided_relay.h"
#include "shape.h"

namespace l1norm::cuda {

constexpr double kMostCost = 100.0;
constexpr double cost_of(double loss) { return loss < 1.0 - 1.0 / kMostCost ? 1.0 / (1.0 - loss) : kMostCost; }

// Of two bytes an element, of four, of eight; backward of each.
template <typename Costs>
constexpr const Costs& costs_of(const Costs (&all)[6], bool backward, int64_t element_size) {
  return all[(backward ? 3 : 0) + (element_size == 2 ? 0 : element_size == 4 ? 1 : 2)];
}

// How small a tensor is: 1 where a copy of it takes about as long as a launch, and no more than four times that.
inline double smallness(const Shape& shape) { return 10e6 / std::max(shape.bytes(), 2.5e6); }

// Elements one by one.
struct ElementsCost {
  double always, small;
  double cluster[3];
  double line[3];         // of 32 bytes side by side, of 64, of 128
  double apart;           // a cluster of eight, whose steps lie 4 KiB or more from each other
  double empty, squared;  // of cells that hold nothing
  double alone, two;      // blocks a multiprocessor
  double threads;         // of a multiprocessor that are not there
  double few;             // blocks that multiprocessors have room for and that are not there
};
constexpr ElementsCost kElementsCosts[] = {
    {1.819, -0.454, {0.121, 0.258, 0.163}, {0.252, 0.0, 0.0}, 0.577, 0.679, 1.447, 0.0, 0.27, 0.852, 1.294},
    {1.345, -0.087, {0.116, 0.191, 0.213}, {0.454, 0.203, 0.124}, 0.028, 0.0, 0.629, 0.42, 0.082, 0.21, 0.0},
    {1.227, -0.081, {0.12, 0.162, 0.097}, {0.459, 0.32, 0.118}, 0.192, 0.0, 0.28, 0.325, 0.027, 0.632, 0.0},
    {2.193, -0.214, {0.158, 0.0, 0.311}, {0.192, 0.0, 0.0}, 0.171, 0.66, 2.165, 0.417, 0.069, 0.0, 0.774},
    {1.272, 0.037, {0.161, 0.292, 0.361}, {0.444, 0.173, 0.024}, 0.073, 0.0, 1.306, 0.27, 0.047, 0.741, 0.0},
    {1.445, 0.236, {0.077, 0.209, 0.296}, {0.498, 0.226, 0.0}, 0.025, 0.877, 0.306, 0.334, 0.129, 0.931, 0.0},
};

// Packs, whose plans are compared by what they lose. Gradients of halves: fitted to 50 shapes, most of them torn, of
// which each kernel ran on an H200 (what is chosen is 0.01 slower than the fastest one in the mean).
struct PacksCost {
  double always, small;
  double empty;  // a cell that holds something: cells that hold nothing
  double of_loss;
  double torn;    // beyond what their loss has of it
  double narrow;  // of 128 bytes side by side that are not there
};
constexpr PacksCost kPacksCosts[] = {
    {1.523, -0.052, 0.137, 0.045, 0.0, 0.0}, {0.626, -0.046, 0.0, 0.6, 0.09, 0.0},
    {0.516, -0.055, 0.0, 0.64, 0.09, 0.0},   {0.77, 0.059, 0.0, 0.47, 0.0, 0.1},
    {0.359, 0.104, 0.359, 0.676, 0.0, 0.0},  {1.485, 0.195, 0.465, 0.178, 0.0, 0.0},
};

// Whole columns in threads, of elements one by one.
struct WholeCost {
  double always, small;
  double empty;   // of cells that hold nothing
  double three;   // where there are so many
  double narrow;  // of 48 bytes side by side that are not there, of more than four steps
};
constexpr WholeCost kWholeCosts[] = {
    {1.985, -0.282, 1.015, 0.561, 0.298}, {1.113, -0.11, 0.596, 0.348, 0.31}, {1.088, -0.092, 0.506, 0.156, 0.805},
    {2.138, -0.207, 2.099, 0.475, 0.022}, {1.084, 0.03, 0.726, 0.258, 0.057}, {1.284, -0.007, 1.029, 0.329, 0.168},
};

// Columns of halves and of wider types that lanes share, then those of their gradients.
struct SharedColumnsCost {
  double always, small;
  double empty;        // of cells that hold nothing
  double four, eight;  // lanes
  double narrow;       // of 48 bytes side by side that are not there
};
constexpr SharedColumnsCost kSharedColumnsCosts[] = {
    {1.091, 0.142, 0.363, 0.003, 0.012, 0.013},
    {1.025, 0.067, 0.0, 0.021, 0.073, 0.077},
    {1.187, 0.142, 0.433, 0.038, 0.089, 0.043},
    {1.017, 0.287, 0.172, 0.002, 0.042, 0.051},
};

// Rows that take turns.
struct TurnsCost {
  double always, small;
  double cluster[3];
  double empty, alone, two, few;
};
constexpr TurnsCost kTurnsCosts[] = {
    {1.394, -0.172, {0.02, 0.121, 0.15}, 1.056, 0.362, 0.114, 0.279},
    {1.213, -0.029, {0.053, 0.116, 0.207}, 0.046, 0.153, 0.086, 0.083},
    {1.024, -0.022, {0.07, 0.097, 0.174}, 0.355, 0.39, 0.144, 0.0},
    {1.982, -0.134, {0.078, 0.176, 0.16}, 1.699, 0.36, 0.095, 0.0},
    {1.474, -0.013, {0.086, 0.206, 0.206}, 0.0, 0.209, 0.152, 0.0},
    {1.963, -0.172, {0.0, 0.419, 0.187}, 2.332, 0.2, 0.0, 0.234},
};

// Tiles without a gap.
struct GaplessCost {
  double always, small;
  double idle;      // lanes without a column
  double warps;     // of 32 in a multiprocessor that are not there
  double elements;  // one by one
  double short_of;  // four steps
  double column;    // that has one element, and a part of that where it has several
};
constexpr GaplessCost kGaplessCosts[] = {
    {1.437, 0.019, 2.726, 0.809, 0.033, 0.297, 0.0}, {1.102, 0.049, 1.402, 0.463, 0.007, 0.12, 0.0},
    {1.001, 0.037, 0.777, 0.474, 0.033, 0.065, 0.0}, {1.681, 0.048, 2.432, 0.648, 0.053, 0.474, 0.0},
    {1.027, 0.15, 1.744, 0.34, 0.113, 0.12, 0.0},    {1.257, 0.122, 1.529, 0.812, 0.025, 0.0, 2.267},
};

// Tiles of a segment a step.
struct SegmentsCost {
  double always, small, idle, warps, elements, short_of, column;
  double over;               // columns that are not there, in the last one side by side
  double lanes_8, lanes_16;  // a segment
};
constexpr SegmentsCost kSegmentsCosts[] = {
    {1.688, -0.159, 2.907, 1.964, 0.146, 0.137, 0.0, 0.419, 0.387, 0.36},
    {1.21, -0.07, 3.019, 1.543, 0.022, 0.154, 0.105, 0.321, 0.0, 0.248},
    {1.207, -0.059, 1.255, 0.594, 0.055, 0.031, 0.0, 0.969, 0.0, 0.076},
    {1.292, -0.074, 0.627, 1.121, 0.358, 0.0, 2.674, 2.449, 1.259, 0.68},
    {1.001, 0.049, 1.092, 0.708, 0.128, 0.0, 1.362, 1.585, 0.782, 0.493},
    {1.744, 0.04, 1.495, 0.794, 0.087, 0.0, 0.874, 1.073, 0.16, 0.0},
};

// Of rows in short pieces, which cost a walk along them more than its losses say (70 x 206 x 1093 x 2 float32 over all
// but the third 0.43, relayed 0.64; 2 x 270 x 6559 x 25 0.44, 0.59; 248 x 22 x 1063 x 11 float16 0.33, 0.48; but 39 x
// 2018 x 65 x 10 over dims 1 and 3 0.45, 0.40).
constexpr double kOfPieces = 0.75;

// Relays of packs that begin elsewhere from step to step.
struct SkewedRelayCost {
  double always, small;
  double few;     // with one part, whose blocks wait for each other
  double beside;  // of what is loaded: columns of others, and none
  double narrow;  // with a thousand columns side by side
  double blocks;  // that multiprocessors have room for and that are not there
};
constexpr SkewedRelayCost kSkewedRelayCosts[] = {
    {2.076, 0.171, 1.36, 0.602, 0.487, 0.777}, {1.491, 0.238, 0.696, 1.14, 0.235, 0.0},
    {1.715, -0.118, 0.546, 1.262, 0.052, 0.0}, {2.352, 0.378, 1.882, 2.321, 0.266, 0.0},
    {1.438, 0.218, 0.854, 1.968, 0.174, 0.0},  {2.418, -0.038, 1.597, 0.0, 0.181, 0.0},
};

constexpr double kEmptyParts = 0.5;  // of what a relay of several runs costs, for each cell that holds nothing

// Relays of rows that take turns.
struct TurnsRelayCost {
  double always, small, few;
  double idle;       // threads
  double columns;    // 500 of them
  double short_run;  // of 512 KiB that a run lacks
  double blocks;
};
constexpr TurnsRelayCost kTurnsRelayCosts[] = {
    {1.679, -0.011, 0.534, 1.004, 0.64, 0.198, 0.079}, {1.438, 0.061, 0.0, 1.136, 0.494, 0.203, 0.109},
    {1.485, 0.015, 0.0, 1.057, 0.415, 0.073, 0.0},     {2.096, 0.084, 0.276, 1.486, 0.7, 0.251, 0.0},
    {1.485, 0.2, 0.73, 1.534, 0.61, 0.0, 0.0},         {2.02, 0.139, 1.1, 2.247, 0.911, 0.021, 0.0},
};

inline double elements_cost(const Shape& shape, const Device& device, const StridedPlan& plan) {
  const LatticeShape& s = shape.lattice;
  const ElementsCost& of = costs_of(kElementsCosts, shape.backward, s.element_size);
  const int most = strided_most_resident(shape.lattice, shape.backward, device, plan), threads = strided_threads(plan);
  const int at_once = strided_at_once(shape.lattice, shape.backward, device, plan, 0);
  const int64_t line = plan.width * s.element_size;
  const double cells = plan.warps * (32.0 / plan.lanes) * plan.packs * plan.cluster * s.elements;
  const double empty = missing(static_cast<double>(s.steps), cells),
               blocks = static_cast<double>(strided_grid(s, plan));
  return of.always + of.small * smallness(shape) + of_cluster(of.cluster, plan.cluster) +
         (line <= 32    ? of.line[0]
          : line <= 64  ? of.line[1]
          : line <= 128 ? of.line[2]
                        : 0.0) +
         (plan.cluster >= 8 && s.apart >= 4096 ? of.apart : 0.0) + empty * (of.empty + empty * of.squared) +
         of_blocks(of.alone, of.two, at_once) + of.threads * missing(at_once * threads, most) +
         of.few * missing(blocks, device.multiprocessors * at_once);
}

// of_loss: what its loss alone would cost.
inline double packs_cost(const Shape& shape, double empty, double of_loss) {
  const LatticeShape& s = shape.lattice;
  const PacksCost& of = costs_of(kPacksCosts, shape.backward, s.element_size);
  return of.always + of.small * smallness(shape) + of.empty * std::min(empty, 8.0) +
         of.of_loss * std::min(of_loss, 20.0) + (s.is_torn() ? of.torn : 0.0) +
         (s.along ? 0.0 : of.narrow * missing(static_cast<double>(s.inner * s.bytes()), kLineBytes));
}
// What a plan loses as costs are fitted to: those of packs of halves to losses so much larger.
inline double fitted_loss(const LatticeShape& s, bool backward, const Device& device, const StridedPlan& plan) {
  const bool halves = s.elements == 1 && s.element_size == 2;
  return strided_loss(s, backward, device, plan) + (!halves ? 0.0 : backward ? 0.11 : 0.13);
}

inline double packs_cost(const Shape& shape, const Device& device, const StridedPlan& plan) {
  const LatticeShape& s = shape.lattice;
  const double cells = plan.warps * (32.0 / plan.lanes) * (plan.packs + plan.shared_packs) * plan.cluster;
  return packs_cost(shape, std::max(cells / static_cast<double>(s.steps) - 1.0, 0.0),
                    cost_of(fitted_loss(s, shape.backward, device, plan)));
}

inline double whole_cost(const Shape& shape, const StridedPlan& plan) {
  const LatticeShape& s = shape.lattice;
  const WholeCost& of = costs_of(kWholeCosts, shape.backward, s.element_size);
  return of.always + of.small * smallness(shape) + of.empty * missing(static_cast<double>(s.steps), plan.packs) +
         (plan.packs == 3 ? of.three : 0.0) +
         (s.steps > 4 ? of.narrow * missing(static_cast<double>(s.inner * s.bytes()), 48) : 0.0);
}

inline double shared_columns_cost(const Shape& shape, const StridedPlan& plan) {
  const LatticeShape& s = shape.lattice;
  const SharedColumnsCost& of = kSharedColumnsCosts[(shape.backward ? 2 : 0) + (s.element_size > 2 ? 1 : 0)];
  const int sharers = 32 / plan.lanes;
  return of.always + of.small * smallness(shape) +
         of.empty * missing(static_cast<double>(s.steps), sharers * plan.packs) +
         (sharers == 4   ? of.four
          : sharers == 8 ? of.eight
                         : 0.0) +
         of.narrow * missing(static_cast<double>(s.inner * s.bytes()), 48);
}

inline double turns_cost(const Shape& shape, const Device& device, const StridedPlan& plan) {
  const LatticeShape& s = shape.lattice;
  const TurnsCost& of = costs_of(kTurnsCosts, shape.backward, s.element_size);
  const int threads = strided_threads(plan);
  const int at_once = strided_at_once(shape.lattice, shape.backward, device, plan, 0);
  const double cells = static_cast<double>(threads) * plan.packs * plan.cluster * (kPackBytes / s.element_size);
  return of.always + of.small * smallness(shape) + of_cluster(of.cluster, plan.cluster) +
         of.empty * missing(static_cast<double>(s.steps * s.inner), cells) + of_blocks(of.alone, of.two, at_once) +
         of.few * missing(static_cast<double>(strided_grid(s, plan)), device.multiprocessors * at_once);
}

// Of elements one by one in wide clusters whose steps lie in several runs, which costs more than their losses say (104
// x 29 x 96 x 299 float32 over dims 0 and 2 0.30, relayed 0.56; 100 x 28 x 141 x 58 0.35, 0.61; gradients of 78 x 25 x
// 100 x 42 0.46, 0.55; but of 49 x 4 x 45 x 281 0.65, 0.43).
constexpr double kOfRuns = 1.15;

// Walks along rows have been measured by what they lose alone.
inline double strided_cost(const Shape& shape, const Device& device, const StridedPlan& plan) {
  const LatticeShape& s = shape.lattice;
  if (plan.is_shared()) return shared_columns_cost(shape, plan);
  if (plan.whole) return whole_cost(shape, plan);
  if (plan.skewed || s.along) return cost_of(fitted_loss(s, shape.backward, device, plan));
  if (plan.interleaved) return turns_cost(shape, device, plan);
  if (s.elements == 1) return packs_cost(shape, device, plan);
  return (s.rounds.runs > 1 && plan.cluster >= 8 ? kOfRuns : 1.0) * elements_cost(shape, device, plan);
}

inline double column_tile_cost(const Shape& shape, const Device& device, const ColumnTilePlan& plan) {
  const LatticeShape& s = shape.lattice;
  const int bytes = plan.tile_bytes * (shape.backward ? 2 : 1);
  const double idle = missing(plan.width, static_cast<double>(ceil_div(plan.width, 32) * 32));
  const double warps = missing(device.shared_bytes / bytes, 32);
  const auto either = [&](const auto& of) {
    return of.always + of.small * smallness(shape) + of.idle * idle + of.warps * warps +
           (s.elements > 1 ? of.elements : 0.0) + (shape.length < 4 ? of.short_of : 0.0) +
           of.column / static_cast<double>(shape.length);
  };
  if (plan.gapless) return either(costs_of(kGaplessCosts, shape.backward, s.element_size));
  const SegmentsCost& of = costs_of(kSegmentsCosts, shape.backward, s.element_size);
  const int64_t columns = s.beside.columns, tiles = ceil_div(columns, plan.width);
  return either(of) + of.over * missing(static_cast<double>(columns), static_cast<double>(tiles * plan.width)) +
         (plan.lanes == 8    ? of.lanes_8
          : plan.lanes == 16 ? of.lanes_16
                             : 0.0);
}

// Whether clusters of eight blocks or more hold rows of packs that the cache holds as well, which is the faster one (71
// x 49 x 32 x 88 float32 over all dims but the second 0.87, in clusters 0.65; 7 x 7 x 16 x 7028 over all but the third
// 0.84, 0.64; 67 x 40 x 128 x 33 float16 0.81, 0.64).
inline bool is_held_by_many(const Shape& shape, const Device& device, const StridedPlan& held) {
  const LatticeShape& s = shape.lattice;
  return s.along && s.elements == 1 && s.element_size < 8 && !shape.backward && held.cluster >= 8 &&
         shape.bytes() >= device.l2_bytes / 4.0 && shape.bytes() < static_cast<double>(device.l2_bytes);
}
constexpr double kOutOfCache = 0.9;

// held: the strided kernel's plan, where that holds columns.
inline double relay_cost(const Shape& shape, const Device& device, const StridedRelayPlan& plan,
                         const StridedPlan* held) {
  const LatticeShape& s = shape.lattice;
  const double small = smallness(shape), few = 1.0 / plan.parts;
  const double pack = kPackBytes / static_cast<double>(s.element_size);
  const int threads = plan.warps * plan.across * 32;
  const double blocks = missing(static_cast<double>(plan.parts) * plan.tiles,
                                static_cast<double>(device.multiprocessors) * (kStridedRelayThreads / threads));
  if (plan.interleaved) {
    // A run of one part is held by a block of another kernel.
    if (plan.parts == 1) return kMostCost;
    const TurnsRelayCost& of = costs_of(kTurnsRelayCosts, shape.backward, s.element_size);
    const double period = static_cast<double>(s.rounds.period), elements = static_cast<double>(s.rounds.elements());
    const double units = static_cast<double>(interleaved_units(s.rounds.period, kPackBytes / s.element_size, threads));
    const double cost = of.always + of.small * small + of.few * few + of.idle * missing(units, threads) +
                        of.columns * period / 500.0 + of.blocks * blocks +
                        of.short_run * missing(static_cast<double>(s.steps * plan.width * s.element_size), 512 << 10);
    if (s.rounds.runs == 1) return cost;
    const double cells = units * pack * loose_packs(shape.backward, s.element_size) * plan.parts;
    return cost * (1.0 + kEmptyParts * (cells / (elements * static_cast<double>(s.rounds.runs)) - 1.0));
  }
  if (plan.skewed) {
    const SkewedRelayCost& of = costs_of(kSkewedRelayCosts, shape.backward, s.element_size);
    const LatticeShape columns = is_folded_in_steps(s) ? unfolded(s) : s;
    const double loaded = static_cast<double>(plan.tiles) * plan.lanes * pack;
    const double cost = of.always + of.small * small + of.few * few +
                        of.beside * missing(static_cast<double>(columns.units), loaded) +
                        of.narrow * 1000.0 / static_cast<double>(columns.inner) + of.blocks * blocks;
    const bool pieces = s.along && plan.parts > 2 && shape.bytes() > 2.0 * static_cast<double>(device.l2_bytes);
    return pieces && !shape.backward ? kOfPieces * cost : cost;
  }
  // Others are for tensors that the cache does not hold. A tile of one part is held by a block of either kernel, which
  // has nobody to wait for in one.
  const double bytes = static_cast<double>(s.units) * static_cast<double>(s.steps * s.bytes());
  if (plan.parts == 1) return kMostCost;
  if (held != nullptr && is_held_by_many(shape, device, *held)) return kOutOfCache * strided_cost(shape, device, *held);
  if (held != nullptr && bytes < device.l2_bytes / (s.elements > 1 ? 4.0 : 1.0)) return kMostCost;
  const double loss = strided_relay_loss(s, shape.backward, plan);
  if (s.elements > 1) return cost_of(loss);
  const bool loses = held != nullptr && (held->whole || strided_loss(s, shape.backward, device, *held) <= loss);
  return loses ? kMostCost : packs_cost(shape, 0.0, cost_of(loss));
}

}  // namespace l1norm::cuda
