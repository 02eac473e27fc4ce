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
// row, each of `chunk_bytes` of an operand, and room for `stages` chunks, those of rows to come among them; `on_way` of
// them are loaded at once.
struct RingPlan {
  int blocks_a_row;
  int groups;
  int chunks;
  int chunk_bytes;
  int stages;
  int on_way;
  int columns = 1;  // rows that take turns in a run, which is what groups go from one to the next of
};

// Warps of a block that sum, and as many that divide; those that load; and two, which add up and wait for sums.
constexpr int kRingWarps = 8;
constexpr int kRingLoaders = 2;
constexpr int kRingThreads = (2 * kRingWarps + kRingLoaders + 2) * 32;
// Blocks that may share a row.
constexpr int kRingBlocks = 160;
// Rows that a block may be at, and chunks.
constexpr int kRingRows = 32;
constexpr int ring_rows(int columns) { return columns == 1 ? kRingRows : kRingRows / 2; }
// Rows that may take turns.
constexpr int kRingColumns = 4;
constexpr int kRingStages = 64;
constexpr int kRingLine = 128;
// Lines of a chunk, at the most: 56 chunks fill the memory of a block; of gradients of doubles, whose arithmetic takes
// longest, 48, which are two packs twice for each lane of a warp (on an H200 150001 0.785, 0.75 in lines fewer by one,
// 0.66 in 18).
inline int ring_chunk_lines(const Shape& shape) {
  return !shape.backward ? 31 : element_size(shape.dtype) == 8 ? 16 : 15;
}
// Of gradients of float32 that take longer ones, of which 48 fill it.
constexpr int kRingLongChunk = 18;
// Shared memory beside the chunks: what warps tell each other.
constexpr int ring_other_shared(int columns) { return (columns == 1 ? 9 : 14) << 10; }

// Chunks of a block's part of a row. Gradients of floats take longer ones where they leave 3.5% less empty (200001:
// 0.911 with 13 of 15 lines, 0.902 with 11 of 18; 2^20: 0.874 with 17, 0.861 with 14; 450001, in 15 or 12: 0.898 and
// 0.917); those of halves never do (440001 bfloat16: 0.86 in 14, 0.79 in 12; 1200001: 0.84 in 19). Of bfloat16 two for
// each warp are too few (1000001 on an H100: 0.77, with one more 0.94; on an H200 0.59, float16 0.83).
inline int64_t ring_chunks(const Shape& shape, int64_t lines) {
  const int64_t chunks = ceil_div(lines, ring_chunk_lines(shape)), fewer = ceil_div(lines, kRingLongChunk);
  const auto room = [&](int64_t of) { return of * ceil_div(lines, of); };
  const bool longer = shape.backward && shape.dtype == DType::kFloat && 1035 * room(fewer) < 1000 * room(chunks);
  if (longer) return fewer;
  return shape.backward && shape.dtype == DType::kBFloat16 && chunks == 2 * kRingWarps ? chunks + 1 : chunks;
}

// Lines of each of so many chunks. Of three rows that take turns, all chunks begin with the same one.
constexpr int64_t ring_lines(int64_t lines, int64_t chunks, int columns) {
  const int64_t whole = columns == 3 ? 3 : 1;
  return ceil_div(ceil_div(lines, chunks), whole) * whole;
}

// Of rows that take turns, of which warps work on several packs a lane at a time: those that leave least of these, and
// of memory, empty.
inline int64_t ring_chunks_of_turns(const Shape& shape, int64_t lines, int columns) {
  const int64_t batch = (columns == 3 ? 3 : 4) * 32 * kPackBytes / kRingLine;
  const auto room = [&](int64_t chunks) {
    const int64_t each = ring_lines(lines, chunks, columns);
    return chunks * (each + ceil_div(each, batch) * batch);
  };
  const int64_t least = ceil_div(lines, ring_chunk_lines(shape));
  int64_t best = least;
  for (int64_t chunks = least + 1; chunks <= least + 6; ++chunks) {
    if (room(chunks) < room(best)) best = chunks;
  }
  return best;
}

// Chunks that a block has on their way at once: what memory reads in some 2500 cycles. More are no sooner there, and
// what blocks tell each other waits behind them (32 x 2^20 float32: 0.865, with no bound 0.835). Gradients gain
// nothing.
inline int64_t chunks_on_way(const Shape& shape, const Device& device, int64_t bytes, int64_t stages) {
  const double wanted = 2500.0 * device.bytes_per_cycle / device.multiprocessors / static_cast<double>(bytes);
  if (shape.backward || !(wanted > 0.0)) return stages;
  return std::min(stages, std::max<int64_t>(static_cast<int64_t>(wanted + 0.5), 2 * kRingLoaders));
}

// In groups of so many blocks. False where a block has no room for its part of a row and a chunk more.
inline bool ring_of(const Shape& shape, const Device& device, int blocks, int columns, RingPlan& plan) {
  // Wherever a row begins.
  const int64_t lines = ceil_div(ceil_div(shape.row_bytes(), kRingLine) + 1, blocks);
  const int64_t chunks = columns == 1 ? ring_chunks(shape, lines) : ring_chunks_of_turns(shape, lines, columns);
  const int64_t bytes = ring_lines(lines, chunks, columns) * kRingLine, operands = shape.backward ? 2 : 1;
  // A block is at no more rows than twice those that fill its stages, as one of its loaders may be a turn ahead.
  const int64_t room = (device.shared_bytes - ring_other_shared(columns)) / (bytes * operands);
  const int64_t most = std::min<int64_t>({room, kRingStages, chunks * (ring_rows(columns) / 2 - 2)});
  // Whole turns of the warps: a warp that waits for a stage has waited for what was there before.
  const int64_t stages = most / kRingWarps * kRingWarps;
  if (chunks >= stages) return false;
  const int64_t groups = std::min<int64_t>(device.multiprocessors / blocks, shape.rows);
  plan = {blocks,
          static_cast<int>(groups),
          static_cast<int>(chunks),
          static_cast<int>(bytes),
          static_cast<int>(stages),
          static_cast<int>(chunks_on_way(shape, device, bytes, stages)),
          columns};
  return true;
}

// The least part of a row that a block takes: in smaller ones blocks wait for sums, and of the groups that larger ones
// leave room for fewer are faster (450001 float32: 0.925 in 44 parts of 41 KB, 0.917 in 33; 600001: 0.926 in 44 of 55
// KB, 0.912 in 66; 370001: 0.922 in 44 of 34 KB, but 500001 in 66 of 30 KB 0.78; 1400001 bfloat16: 0.97 in 66 of 42 KB,
// 0.955 in 44). Both rows of gradients have more arithmetic (200001 float32: 0.965 in 33 of 48 KB, 0.87 in 44), of
// halves most (600001 bfloat16: 0.82 in 33 of 73 KB, 0.79 in 44; 800001: 0.825 in 44 of 73 KB, 0.79 in 66), as of
// doubles (100001: 0.82 in 26 of 62 KB, 0.76 in 33).
constexpr int64_t least_ring_part(bool backward, int64_t element_size) {
  return (!backward ? 37 : element_size == 2 ? 56 : element_size == 4 ? 46 : 58) << 10;
}

// Whether a block is at two rows and a half, or at three and more; else smaller parts, of more blocks, are faster.
inline bool has_rows_ahead(const Shape& shape, const RingPlan& plan) {
  return 10 * plan.stages >= (shape.backward ? 25 : 32) * plan.chunks;
}

// columns: rows that take turns in each of the shape's.
inline bool plan_ring(const Shape& shape, const Device& device, RingPlan& plan, int columns = 1) {
  if (!shape.held || !shape.aligned || shape.rows == 0 || shape.rows > INT32_MAX || device.max_cluster == 1) {
    return false;
  }
  const int64_t most = std::min(device.multiprocessors, kRingBlocks);
  const int64_t bytes = shape.row_bytes() * (shape.backward ? 2 : 1);
  const int64_t least = least_ring_part(shape.backward, element_size(shape.dtype));
  const auto in_parts_of = [&](int64_t part) {
    const int64_t groups = ceil_div(most, std::max<int64_t>(bytes / part, 1));
    return ring_of(shape, device, static_cast<int>(std::max<int64_t>(most / groups, 2)), columns, plan);
  };
  // A tenth less where a block has too few rows ahead else (gradients of 700001 float32: 0.91 in 132 parts of 42 KB).
  return (in_parts_of(least) && has_rows_ahead(shape, plan)) || in_parts_of(least * 9 / 10);
}

// Whether clusters are better for such gradients: as long as they hold both rows, but for those of six or seven blocks
// of a multiprocessor each (200001: 0.85, in a ring 0.89; 230001 in eight: 0.89 and 0.87), for halves, whose arithmetic
// needs two blocks on a multiprocessor (262143 bfloat16: 0.91 and 0.75, 280001: 0.67 and 0.75), and on an H200 for
// doubles of more than 1 MB (60001: 0.89 and 0.805; 70001: 0.705 and 0.80; 100001: 0.67 and 0.82).
inline bool are_gradients_better_in_clusters(const Shape& shape, const Device& device) {
  if (shape.dtype == DType::kDouble && is_memory_fast(device)) return shape.row_bytes() <= 512 << 10;
  const auto held_by = [&](int64_t blocks, int64_t a_thread) {
    return shape.packs() <= blocks * a_thread * (shape.is_half() ? 256 : 512);
  };
  return held_by(kMaxCluster, kPairPacksBesideShared) &&
         (shape.is_half() || held_by(kMaxCluster, kPairPacks) || !held_by(kMaxCluster - 1, kPairPacksBesideShared));
}

// Whether that is better than other ways for such rows, which the device does not hold all at once. Forward, clusters
// are faster up to some length (on an H200 400001 float32: 0.96, here 0.95; 450001: 0.957 and 0.973; 180001 float64:
// 0.984 and 0.979; 240001: 0.956 and 0.98; 610001 bfloat16: 0.99 and 0.96; 640001: 0.895 and 0.97), and chunks that
// wait in the L2 cache are not (3145728 float32: 0.82 and 0.86; 7050001, which leave room for little more: 0.72 and
// 0.75). Of gradients those are where a block has no room for two rows (1700001: 0.74 and 0.78, 1900001: 0.77 and 0.73;
// 3500001 bfloat16: 0.67 and 0.78; but float64 on an H200 450001: 0.655 and 0.81, 1200001: 0.645 and 0.68) or of few (6
// x 300001: 0.53 and 0.51; 12: 0.56 and 0.62), which else clusters of eight hold (12 x 229379: 0.67 and 0.59; 20: 0.60
// and 0.63).
inline bool is_better_ringed(const Shape& shape, const Device& device, RingPlan& plan) {
  if (!shape.backward) {
    return shape.row_bytes() >= (shape.is_half() ? 1280000 : 1700000) && plan_ring(shape, device, plan);
  }
  if (are_gradients_better_in_clusters(shape, device) || !plan_ring(shape, device, plan)) return false;
  const bool always = shape.dtype == DType::kDouble && is_memory_fast(device);
  return (always || plan.stages >= 2 * plan.chunks) && shape.rows >= std::min(4 * plan.groups, 16);
}

// Rows that take turns in dense runs, which are to a ring what rows are.
inline bool plan_ring_of_turns(const Shape& shape, const Device& device, RingPlan& plan) {
  const LatticeShape& s = shape.lattice;
  const Rounds slab = s.slab();
  if (s.element_size == 8 || slab.period < 2 || slab.period > kRingColumns || slab.fold > 1 || slab.runs > 1) {
    return false;
  }
  Shape runs = shape;
  runs.rows = s.slabs();
  runs.length = slab.elements();
  runs.held = runs.aligned = true;
  return plan_ring(runs, device, plan, static_cast<int>(slab.period));
}

// Whether that is better than chunks of runs that wait in the L2 cache. Gradients are where groups have some runs each
// (on an H200, of torch.add's speed: of 800 KB of float32 for both operands two a group 0.40 and 0.415, five 0.55 and
// 0.49; of 3 MB three 0.47 both, seven 0.66 and 0.57; of 25 MB two 0.62 and 0.59; of 12 MB of bfloat16 two 0.435 and
// 0.45, three 0.515 and 0.45), but on an H100 not those of columns that are a pack (447 x 37501 x 4 float32 0.86 and
// 0.90; on an H200 0.80 and 0.76).
inline bool are_turns_better_ringed(const Shape& shape, const Device& device, const RingPlan& plan) {
  if (!shape.backward) return true;
  if (shape.is_half()) return shape.lattice.slabs() >= 3 * int64_t{plan.groups};
  return shape.lattice.slabs() >= 2 * int64_t{plan.groups} && (shape.lattice.elements > 1 || is_memory_fast(device));
}

// Bytes of a run, of both operands, from which that is better than a slab, too. On an H100 slabs are as long as two
// blocks fit a multiprocessor (600 KB of float32 0.975 and 0.905, 1.2 MB 0.83 and 0.92). On an H200, in slabs and
// rings, on average of 19 to 218 shapes each: of float32 from 330 to 450 KB 0.86 and 0.81, to 600 KB 0.825 and 0.835,
// above 0.77 and 0.82; gradients 0.84 and 0.77, 0.73 and 0.76, 0.70 and 0.775; halves from 75 to 110 KB 0.74 and 0.735,
// to 450 KB 0.73 and 0.74, above 0.65 and 0.755; gradients of two columns from 110 to 160 KB 0.745 and 0.725, to 450 KB
// 0.705 and 0.73, of three and four to 450 KB 0.72 and 0.705, above 0.64 and 0.685.
inline int64_t longest_slab_of_turns(const Shape& shape, const Device& device, int columns) {
  if (!is_memory_fast(device)) return 800 << 10;
  if (!shape.is_half()) return 450 << 10;
  return (!shape.backward ? 110 : columns == 2 ? 160 : 450) << 10;
}

// Gradients are where groups have five runs each (800 KB of float32: of three 0.45 and 0.48, of five 0.55 and 0.465).
inline bool are_turns_too_long_for_slabs(const Shape& shape, const Device& device, const RingPlan& plan) {
  const int64_t run = shape.lattice.slab().elements() * shape.lattice.element_size * (shape.backward ? 2 : 1);
  return run >= longest_slab_of_turns(shape, device, plan.columns) &&
         shape.lattice.slabs() >= (shape.backward ? 5 : 1) * int64_t{plan.groups};
}

}  // namespace l1norm::cuda
