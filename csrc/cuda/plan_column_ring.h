// The column ring's launch. Pure and host-only, as the rest of the plan.
#pragma once

#include <algorithm>
#include <cstdint>

#include "lattice_shape.h"

namespace l1norm::cuda {

// A window's bytes: 256 from a multiple of that on in the output, or 128. Bare copies of pieces of 256 bytes side by
// side of 32768 rows of 65535 float32 have 0.90 of a copy's speed on an H200, of 128 bytes 0.82, from a multiple of 32
// bytes on 0.77: what counts is that writes are whole. Columns of so many steps that three windows do not fit go on in
// narrower ones.
constexpr int kWideWindow = 256;
constexpr int kNarrowWindow = 128;
constexpr int kNarrowestWindow = 64;
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

// What depends on a window's bytes and elements, on whether there are gradients beside them, on whether there are more
// than kFewWindowSlots windows at a time, which are shorter then, and on whether all are whole: of the same columns in
// each step, all of which exist. Those of halves are.
struct WindowSize {
  int bytes;
  int64_t element_size;
  bool backward;
  bool many;
  bool whole;

  // Few wide windows of halves would leave too few registers; whole ones are wide enough wherever they are.
  constexpr bool has_kernel() const {
    return whole ? bytes == kNarrowWindow || (bytes == kWideWindow && (many || element_size == 4)) : element_size == 4;
  }
  constexpr int columns() const { return bytes / static_cast<int>(element_size); }
  constexpr int operands() const { return backward ? 2 : 1; }
  constexpr int most_slots() const { return !many ? kFewWindowSlots : is_light() ? kMostWholeSlots : kMostWindowSlots; }
  // Windows whose sums are there, of a power of two: those in slots, and one for each team.
  constexpr int tiles() const { return !many ? 4 : is_light() ? 16 : 8; }
  // Parts of a block's steps, which are awaited and given up apart.
  constexpr int parts() const { return many ? 1 : 4; }
  // Warps that tell each other sums, each of them those of every such tile.
  constexpr int exchangers() const { return many ? 4 : 1; }
  constexpr int threads() const { return (kWindowLoaders + kWindowAdders + kWindowDividers + exchangers()) * 32; }
  // Steps of a window that a warp divides, of which a lane holds up to 40 words.
  constexpr int held() const {
    const int few = backward || (bytes != kNarrowestWindow && element_size == 4) ? 20 : 18,
              some = backward && bytes != kWideWindow ? 16 : 14;
    const int pairs = many ? some : few;
    return pairs / operands() * (kWideWindow / bytes);
  }
  constexpr int most_steps() const { return kWindowDividers * held(); }  // of a block
  // Teams of warps that divide, each of them every such window: one or two.
  constexpr int teams(int64_t steps) const { return many && 2 * steps <= most_steps() ? 2 : 1; }
  // Shared memory of a window's step, and beside all windows.
  constexpr int step_bytes() const { return bytes * operands(); }
  constexpr int tables_bytes() const {
    const int a_result = !whole ? 32 : backward && element_size == 4 ? 16 : 24;
    const int results = tiles() * columns() * a_result, sums = (kWindowAdders + tiles()) * columns() * 16;
    return (results + sums + (most_slots() * parts() * 2 + tiles() * 2 + 2) * 8 + 127) / 128 * 128;
  }

 private:
  // Whether what is known of many windows leaves room for their elements.
  constexpr bool is_light() const { return whole && element_size == 4; }
};

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

  WindowSize size(int64_t element_size, bool backward) const {
    return {columns * static_cast<int>(element_size), element_size, backward, slots > kFewWindowSlots, whole};
  }
};

// Windows of a plane, whose tiles of sums begin at such columns that a window's are known with the one behind it.
constexpr int64_t windows_of(int64_t columns, int a_window, bool whole) {
  return whole ? columns / a_window : ceil_div(columns + a_window - 1, a_window);
}

inline bool plan_column_ring(const LatticeShape& s, bool backward, const Device& device, ColumnRingPlan& plan) {
  const int64_t columns = s.beside.columns;
  const bool halves = s.element_size == 2, runs = s.beside.jump != 0;
  if (s.element_size > 4 || columns == 0 || s.steps == 0 || device.max_cluster < kWindowCluster) return false;
  const int64_t clusters = std::min<int64_t>(clusters_at_once(device, kWindowCluster), kMostWindowClusters);
  if (clusters == 0 || (runs && s.run < kShortestWindowRun)) return false;
  const int64_t steps = ceil_div(s.steps, clusters * kWindowCluster);
  WindowSize size{};
  const auto takes = [&](int slots) {
    size.many = slots > kFewWindowSlots;
    if (!size.has_kernel()) return false;
    return steps <= size.most_steps() && size.tables_bytes() + slots * steps * size.step_bytes() <= device.shared_bytes;
  };
  plan.slots = 0;
  for (const int bytes : {kWideWindow, kNarrowWindow, kNarrowestWindow}) {
    const bool whole = s.beside.multiple * s.element_size % (halves ? bytes : kWideWindow) == 0;
    size = {bytes, s.element_size, backward, true, whole && bytes != kNarrowestWindow};
    if ((halves || runs) && !size.whole) continue;
    // The most of them: of narrow windows, more than three are faster by a tenth or two (36000 x 20001 0.62 to 0.75,
    // 45000 x 65536 0.71 to 0.75; gradients of 40000 x 65535 0.56 to 0.70).
    plan.slots = size.most_slots();
    while (plan.slots >= kFewWindowSlots && !takes(plan.slots)) --plan.slots;
    if (plan.slots >= kFewWindowSlots) break;
  }
  if (plan.slots < kFewWindowSlots) return false;
  plan.whole = size.whole;
  plan.columns = size.columns();
  const int64_t planes = s.units * s.columns / columns;
  plan.windows = planes * windows_of(columns, plan.columns, plan.whole);
  if (plan.windows >= INT32_MAX / (16 * plan.columns)) return false;
  plan.steps = static_cast<int>(steps);
  plan.clusters = static_cast<int>(ceil_div(s.steps, int64_t{plan.steps} * kWindowCluster));
  // A block's steps are found by offsets of 32 bits.
  const int64_t jumps = runs ? ceil_div(steps, s.run) : 0;
  if (steps * s.apart + jumps * s.beside.jump * s.element_size + size.bytes > INT32_MAX) return false;
  plan.teams = size.teams(steps);
  plan.held = static_cast<int>(ceil_div(steps, kWindowDividers / plan.teams));
  plan.scratch_bytes = plan.windows * plan.columns * plan.clusters * 2 * static_cast<int64_t>(sizeof(double));
  return true;
}

}  // namespace l1norm::cuda
