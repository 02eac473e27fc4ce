// The ring kernel's launch.
//
// Figures are fractions of a copy's speed, or of torch.add's, measured on an H200 over 2 GiB of input.
#pragma once

#include <algorithm>
#include <cstdint>

#include "plan_resident.h"
#include "shape.h"

namespace l1norm::cuda {

// The ring kernel: `groups` groups of `blocks_a_row` blocks each go from row to row. A block has `chunks` chunks of a
// row, each of `chunk_bytes` of an operand, and room for `stages` chunks, those of rows to come among them.
struct RingPlan {
  int blocks_a_row;
  int groups;
  int chunks;
  int chunk_bytes;
  int stages;
};

// Warps of a block that sum, and as many that divide; those that load; and two, which add up and wait for sums.
constexpr int kRingWarps = 8;
constexpr int kRingLoaders = 2;
constexpr int kRingThreads = (2 * kRingWarps + kRingLoaders + 2) * 32;
// Blocks that may share a row.
constexpr int kRingBlocks = 160;
// Rows that a block may be at, and chunks.
constexpr int kRingRows = 32;
constexpr int kRingStages = 64;
constexpr int kRingLine = 128;
// Lines of a chunk, at the most: 56 chunks fill the memory of a block, or backward 48.
constexpr int ring_chunk_lines(bool backward) { return backward ? 18 : 31; }
// Shared memory beside the chunks: what warps tell each other.
constexpr int kRingOtherShared = 8 << 10;

// In groups of so many blocks. False where a block has no room for its part of a row and a chunk more.
inline bool ring_of(const Shape& shape, const Device& device, int blocks, RingPlan& plan) {
  // Wherever a row begins.
  const int64_t lines = ceil_div(ceil_div(shape.row_bytes(), kRingLine) + 1, blocks);
  const int64_t chunks = ceil_div(lines, ring_chunk_lines(shape.backward));
  const int64_t bytes = ceil_div(lines, chunks) * kRingLine, operands = shape.backward ? 2 : 1;
  // A block is at no more rows than twice those that fill its stages, as one of its loaders may be a turn ahead.
  const int64_t room = (device.shared_bytes - kRingOtherShared) / (bytes * operands);
  const int64_t most = std::min<int64_t>({room, kRingStages, chunks * (kRingRows / 2 - 2)});
  // Whole turns of the warps: a warp that waits for a stage has waited for what was there before.
  const int64_t stages = most / kRingWarps * kRingWarps;
  if (chunks >= stages) return false;
  const int64_t groups = std::min<int64_t>(device.multiprocessors / blocks, shape.rows);
  plan = {blocks, static_cast<int>(groups), static_cast<int>(chunks), static_cast<int>(bytes),
          static_cast<int>(stages)};
  return true;
}

// Parts of a row that are fastest: with smaller ones blocks wait for sums, with larger ones they have too few rows
// ahead (1048576 float32: 0.89 with 64 KB, 0.85 with 32; 700001: 0.92 with 42 KB, 0.90 with 64).
constexpr int64_t kRingPart = 50 << 10;

inline bool plan_ring(const Shape& shape, const Device& device, RingPlan& plan) {
  if (!shape.held || !shape.aligned || shape.rows == 0 || shape.rows > INT32_MAX || device.max_cluster == 1) {
    return false;
  }
  const int64_t most = std::min(device.multiprocessors, kRingBlocks);
  const int64_t parts = std::max<int64_t>(shape.row_bytes() * (shape.backward ? 2 : 1) / kRingPart, 1);
  // Of the groups that fill the device, those whose number of blocks is nearest to that of the parts.
  const int64_t groups = std::max<int64_t>(most / parts, 1);
  const int64_t fewer = std::max<int64_t>(most / (groups + 1), 2), more = most / groups;
  return ring_of(shape, device, static_cast<int>(parts * parts < fewer * more ? fewer : more), plan);
}

// Whether that is better than other ways for such rows. Forward, clusters are faster up to some length (350001 float32:
// 0.93, here 0.92; 450001: 0.90 and 0.92; 700001: 0.85 and 0.93; their blocks have a multiprocessor each from 360000
// on), and backward as long as they hold both rows, but for clusters of six or seven blocks of a multiprocessor each
// (200001: 0.82 and 0.88, 230001 in eight: 0.89 and 0.86; 400001 bfloat16: 0.73 and 0.77); then chunks that wait in the
// L2 cache are (1048576: 0.86 and 0.89, 2375001: 0.83 and 0.76; backward 450001: 0.77 and 0.89, 1048576: 0.78 and
// 0.84). Backward, doubles have too much arithmetic for one block's warps (225001: 0.65 and 0.63).
inline bool is_better_ringed(const Shape& shape, const Device& device, RingPlan& plan) {
  const int64_t packs = shape.packs(), least = shape.dtype == DType::kFloat ? 1450000 : 1400000;
  const auto held_by = [](int64_t blocks, int64_t a_thread) { return blocks * a_thread * 512; };
  const bool clusters_do =
      packs <= held_by(kMaxCluster, kPairPacks) || (packs > held_by(kMaxCluster - 1, kPairPacksBesideShared) &&
                                                    packs <= held_by(kMaxCluster, kPairPacksBesideShared));
  const bool is_long = shape.backward ? element_size(shape.dtype) < 8 && !clusters_do : shape.row_bytes() >= least;
  if (!is_long || !plan_ring(shape, device, plan)) return false;
  // Groups take as many rows, but for one; a block is at two rows and a half, or three and more.
  return shape.rows >= int64_t{16} * plan.groups && 10 * plan.stages >= (shape.backward ? 26 : 32) * plan.chunks;
}

}  // namespace l1norm::cuda
