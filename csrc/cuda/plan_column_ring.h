// The column ring's launch. Pure and host-only, as the rest of the plan.
#pragma once

#include <algorithm>
#include <cstdint>

#include "lattice_shape.h"

namespace l1norm::cuda {

// Columns of a window: 256 bytes from a multiple of that on in the output, or 128. Bare copies of pieces of 256 bytes
// side by side of 32768 rows of 65535 float32 have 0.90 of a copy's speed on an H200, of 128 bytes 0.82, from a
// multiple of 32 bytes on 0.77: what counts is that writes are whole. Columns of so many steps that three windows do
// not fit go on in narrower ones.
constexpr int kWideWindow = 64;
constexpr int kNarrowWindow = 32;
constexpr int kNarrowestWindow = 16;
constexpr int kWindowCluster = 8;        // blocks, each of which adds up as many of a window's columns
constexpr int kMostWindowClusters = 16;  // whose sums a warp adds up
constexpr int kShortestWindowRun = 32;   // steps; warps go on by fewer, so that one run at most ends in between
// Warps of a block, and some that tell each other sums. Those that divide hold some steps each of a window.
constexpr int kWindowLoaders = 3;
constexpr int kWindowAdders = 6;
constexpr int kWindowDividers = 14;

constexpr int kFewWindowSlots = 3;  // windows in shared memory, at the least
constexpr int kMostWindowSlots = 6;
constexpr int kMostWholeSlots = 12;

// What depends on a window's columns, on whether there are gradients beside them, on whether there are more than
// kFewWindowSlots windows at a time, which are shorter then, and on whether all are whole: of the same columns in each
// step, all of which exist.
struct WindowSize {
  int columns;
  bool backward;
  bool many;
  bool whole;

  constexpr int operands() const { return backward ? 2 : 1; }
  constexpr int most_slots() const { return !many ? kFewWindowSlots : whole ? kMostWholeSlots : kMostWindowSlots; }
  // Windows whose sums are there, of a power of two: those in slots, and one for each team.
  constexpr int tiles() const { return !many ? 4 : whole ? 16 : 8; }
  // Parts of a block's steps, which are awaited and given up apart.
  constexpr int parts() const { return many ? 1 : 4; }
  // Warps that tell each other sums, each of them those of every such tile.
  constexpr int exchangers() const { return many ? 4 : 1; }
  constexpr int threads() const { return (kWindowLoaders + kWindowAdders + kWindowDividers + exchangers()) * 32; }
  // Steps of a window that a warp divides, of which a lane holds up to 40 floats.
  constexpr int held() const {
    const int few = backward || columns != kNarrowestWindow ? 20 : 18,
              some = backward && columns != kWideWindow ? 16 : 14;
    const int pairs = many ? some : few;
    return pairs / operands() * (kWideWindow / columns);
  }
  constexpr int most_steps() const { return kWindowDividers * held(); }  // of a block
  // Teams of warps that divide, each of them every such window: one or two.
  constexpr int teams(int64_t steps) const { return many && 2 * steps <= most_steps() ? 2 : 1; }
  // Shared memory of a window's step, and beside all windows.
  constexpr int step_bytes() const { return columns * 4 * operands(); }
  constexpr int tables_bytes() const {
    const int a_result = whole ? (backward ? 16 : 24) : 32;
    const int results = tiles() * columns * a_result, sums = (kWindowAdders + tiles()) * columns * 16;
    return (results + sums + (most_slots() * parts() * 2 + tiles() * 2) * 8 + 127) / 128 * 128;
  }
};
constexpr WindowSize window_size(int columns, bool backward, int slots, bool whole) {
  return {columns, backward, slots > kFewWindowSlots, whole};
}

// `clusters` clusters of kWindowCluster blocks walk over windows of columns, each block with the same `steps` steps.
struct ColumnRingPlan {
  bool whole;   // windows
  int columns;  // of a window
  int slots;
  int clusters;
  int steps;
  int teams;  // of warps that divide
  int held;   // steps of each of them
  int64_t windows;
  int64_t scratch_bytes;
};

// Windows of a plane, whose tiles of sums begin at such columns that a window's are known with the one behind it.
constexpr int64_t windows_of(int64_t columns, int a_window, bool whole) {
  return whole ? columns / a_window : ceil_div(columns + a_window - 1, a_window);
}

inline bool plan_column_ring(const LatticeShape& s, bool backward, const Device& device, ColumnRingPlan& plan) {
  const int64_t columns = s.beside.columns;
  if (s.element_size != 4 || columns == 0 || s.steps == 0 || device.max_cluster < kWindowCluster) return false;
  const int64_t clusters = std::min<int64_t>(clusters_at_once(device, kWindowCluster), kMostWindowClusters);
  if (clusters == 0) return false;
  const bool whole = s.beside.multiple % kWideWindow == 0, runs = s.beside.jump != 0;
  if (runs && (!whole || s.run < kShortestWindowRun)) return false;
  const int64_t steps = ceil_div(s.steps, clusters * kWindowCluster);
  // The most of them: of narrow windows, more than three are faster by a tenth or two (36000 x 20001 0.62 to 0.75,
  // 45000 x 65536 0.71 to 0.75; gradients of 40000 x 65535 0.56 to 0.70).
  const auto slots_of = [&](int columns) {
    for (int slots = WindowSize{columns, backward, true, plan.whole}.most_slots(); slots >= kFewWindowSlots; --slots) {
      const WindowSize size = window_size(columns, backward, slots, plan.whole);
      if (steps > size.most_steps()) continue;
      if (size.tables_bytes() + slots * steps * size.step_bytes() <= device.shared_bytes) return slots;
    }
    return 0;
  };
  for (const int columns : {kWideWindow, kNarrowWindow, kNarrowestWindow}) {
    plan.columns = columns;
    plan.whole = whole && columns != kNarrowestWindow;  // for which there is no kernel
    plan.slots = slots_of(columns);
    if (plan.slots > 0) break;
  }
  if (plan.slots == 0 || (runs && !plan.whole)) return false;
  const int64_t planes = s.units * s.columns / columns;
  plan.windows = planes * windows_of(columns, plan.columns, plan.whole);
  if (plan.windows >= INT32_MAX / (16 * plan.columns)) return false;
  plan.steps = static_cast<int>(steps);
  plan.clusters = static_cast<int>(ceil_div(s.steps, int64_t{plan.steps} * kWindowCluster));
  // A block's steps are found by offsets of 32 bits.
  const int64_t jumps = runs ? ceil_div(steps, s.run) : 0;
  if (steps * s.apart + jumps * s.beside.jump * s.element_size + plan.columns * 4 > INT32_MAX) return false;
  plan.teams = window_size(plan.columns, backward, plan.slots, plan.whole).teams(steps);
  plan.held = static_cast<int>(ceil_div(steps, kWindowDividers / plan.teams));
  plan.scratch_bytes = plan.windows * plan.columns * plan.clusters * 2 * static_cast<int64_t>(sizeof(double));
  return true;
}

}  // namespace l1norm::cuda
