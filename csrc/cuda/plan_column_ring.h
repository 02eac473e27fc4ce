// The column ring's launch. Pure and host-only, as the rest of the plan.
#pragma once

#include <algorithm>
#include <cstdint>

#include "lattice_shape.h"

namespace l1norm::cuda {

// Columns of a window: 256 bytes from a multiple of that on in the output. Bare copies of such pieces side by side of
// 32768 rows of 65535 float32 have 0.90 of a copy's speed on an H200, of pieces from a multiple of 128 bytes on 0.82,
// of 32 bytes 0.77: what counts is that writes are whole.
constexpr int kWindowColumns = 64;
constexpr int kWindowCluster = 8;        // blocks, each of which adds up as many of a window's columns
constexpr int kMostWindowClusters = 16;  // whose sums a warp adds up
// Warps of a block. Those that divide hold some steps each of a window; three of them a quarter of the block's steps.
constexpr int kWindowLoaders = 3;
constexpr int kWindowAdders = 6;
constexpr int kWindowDividers = 14;
constexpr int kWindowHeld = 20;
constexpr int kColumnRingThreads = (kWindowLoaders + kWindowAdders + kWindowDividers + 1) * 32;

constexpr int kWindowSlots = 3;                                  // windows in shared memory
constexpr int kWindowTables = 18688;                             // bytes of shared memory beside them
constexpr int kMostWindowSteps = kWindowDividers * kWindowHeld;  // of a block
constexpr int64_t kWindowStepBytes = int64_t{kWindowSlots} * kWindowColumns * sizeof(float);

// `clusters` clusters of kWindowCluster blocks walk over windows of columns, each block with the same `steps` steps.
struct ColumnRingPlan {
  int clusters;
  int steps;
  int held;  // of a warp that divides
  int64_t windows;
  int64_t scratch_bytes;
};

// Windows of a plane, whose tiles of sums begin at such columns that a window's are known with the one behind it.
constexpr int64_t windows_of(int64_t columns) { return ceil_div(columns + kWindowColumns - 1, kWindowColumns); }

inline bool plan_column_ring(const LatticeShape& s, bool backward, const Device& device, ColumnRingPlan& plan) {
  const int64_t columns = s.beside.columns;
  if (backward || s.element_size != 4 || columns == 0 || s.steps == 0 || device.max_cluster < kWindowCluster) {
    return false;
  }
  const int64_t room = (device.shared_bytes - kWindowTables) / kWindowStepBytes;
  const int64_t most = std::min<int64_t>(room, kMostWindowSteps);
  const int64_t clusters = std::min<int64_t>(clusters_at_once(device, kWindowCluster), kMostWindowClusters);
  if (clusters == 0 || most < 1 || s.steps > clusters * kWindowCluster * most) return false;
  const int64_t planes = s.units * s.columns / columns;
  plan.windows = planes * windows_of(columns);
  if (plan.windows >= INT32_MAX / (16 * kWindowColumns)) return false;
  plan.steps = static_cast<int>(ceil_div(s.steps, clusters * kWindowCluster));
  plan.clusters = static_cast<int>(ceil_div(s.steps, int64_t{plan.steps} * kWindowCluster));
  // A block's steps are found by offsets of 32 bits.
  if (plan.steps * s.apart + kWindowColumns * 4 > INT32_MAX) return false;
  plan.held = static_cast<int>(ceil_div(plan.steps, kWindowDividers));
  plan.scratch_bytes = plan.windows * kWindowColumns * plan.clusters * 2 * static_cast<int64_t>(sizeof(double));
  return true;
}

}  // namespace l1norm::cuda
