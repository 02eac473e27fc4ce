// The gather kernel's launch. Pure and host-only, as the rest of the plan.
#pragma once

#include <algorithm>
#include <cstdint>

#include "shape.h"

namespace l1norm::cuda {

constexpr int kMostGatherThreads = 128;

// The gather kernel: a warp takes tiles of `width` rows, `lanes` lanes a row at a time.
struct GatherPlan {
  int lanes;
  int width;
  int pitch;       // elements from row to row in shared memory
  int warp_bytes;  // of shared memory: rows, and where they begin in memory
  int threads;
  int64_t tiles;

  int shared_bytes() const { return threads / 32 * warp_bytes; }
};

// Of a warp.
constexpr int64_t kGatherBytes = 5 << 10;
constexpr int64_t kMostGatherBytes = 22 << 10;

// As many elements, or pairs of halves, as are an odd multiple of the lanes that share a row: all hit different banks.
constexpr int64_t gather_pitch(int64_t length, int64_t size, int64_t lanes) {
  const int64_t unit = size == 2 ? 2 : 1;
  return unit * lanes * (ceil_div(ceil_div(length, unit), lanes) | 1);
}

inline bool plan_gather(const Shape& shape, const Device& device, GatherPlan& plan) {
  if (shape.lattice.units == 0 && !shape.held) return false;
  const int64_t size = element_size(shape.dtype), operands = shape.backward ? 2 : 1;
  if (shape.rows == 0 || shape.length == 0 || shape.length * size > kMostGatherBytes) return false;
  // With where a row, and its divisor, lie in all operands.
  const auto row_bytes = [&](int64_t lanes) {
    return operands * gather_pitch(shape.length, size, lanes) * size + (operands + 2) * 8;
  };
  int64_t lanes = 1;
  while (lanes < 32 && 32 / lanes * row_bytes(lanes) > kGatherBytes) lanes *= 2;
  const int64_t at_a_time = 32 / lanes;
  const int64_t width = std::clamp<int64_t>(kGatherBytes / (row_bytes(lanes) * at_a_time), 1, 8) * at_a_time;
  plan.lanes = static_cast<int>(lanes);
  plan.width = static_cast<int>(width);
  plan.pitch = static_cast<int>(gather_pitch(shape.length, size, lanes));
  plan.warp_bytes = static_cast<int>(ceil_div(width * row_bytes(lanes), 16) * 16);
  plan.threads = kMostGatherThreads;
  while (plan.threads > 32 && plan.shared_bytes() + kReservedShared > device.shared_bytes) plan.threads /= 2;
  plan.tiles = ceil_div(shape.rows, width);
  return plan.warp_bytes <= kMostGatherBytes && plan.shared_bytes() + kReservedShared <= device.shared_bytes &&
         ceil_div(plan.tiles, plan.threads / 32) <= INT32_MAX;
}

// Up to how many bytes rows of neighbours that other elements lie between are better gathered, which in warps'
// registers fill too few of them (on an H100, of a copy's speed: 3 of 4 float32 0.62, in a warp's lanes 0.14; 8 of 12
// 0.94, 0.39; 18 of 22 0.88, 0.81; 22 of 26 0.80, 0.96; 10 of 14 bfloat16 0.72, 0.17; gradients of 16 of 20 float32
// 0.78, 0.505).
inline int64_t longest_gathered_row(const Shape& shape) {
  if (shape.is_half()) return shape.backward ? 64 : 104;
  if (shape.dtype == DType::kDouble) return shape.backward ? 96 : 112;
  return shape.backward ? 80 : 72;
}

// Up to how many steps of all rows that lie side by side in a warp of the strided kernel, whose speed is that of what
// few of its tiles have under way (2 x 705882 x 17 float32 over the first and the last dim 0.70, there 0.02; 8 x 600000
// x 5 0.42, 0.10; 16 x 30612 x 49 0.42, 0.47; 2 x 187500 x 64, in packs, 0.78, 0.52; bfloat16 of 8 x 61224 x 49 0.31,
// 0.22; 16 x 30612 x 49 0.28, 0.43).
inline int64_t most_gathered_steps(const Shape& shape) {
  if (shape.lattice.elements == 1) return shape.backward ? (shape.is_half() ? 32 : 64) : shape.is_half() ? 96 : 160;
  if (shape.is_half()) return shape.backward ? 340 : 420;
  if (shape.dtype == DType::kDouble) return shape.backward ? 190 : 260;
  return shape.backward ? 340 : 540;
}

// Whether columns that become rows are: not the longer ones, nor those of few elements (on an H100, of a copy's speed,
// in the strided kernel: 73 x 2603 columns of 9 float32 0.76, 0.52; 19278 x 49 of 48 0.40, 0.23; 114 x 4125 of 76
// float16 0.32, 0.17; but 4452 x 6358 of 2 float32 0.52, 0.98; 10837 x 9 of 5 0.65, 1.05; 255 of 82 0.28, 0.31).
inline bool are_columns_better_gathered(const Shape& shape) { return shape.length > 5 && shape.row_bytes() <= 256; }

// Whether tiles are not too few. Of rows in one piece, which strided kernels have few at a time of, fewer do (2441 x 10
// of 27 float32, every other one, 0.66, 0.12; 14993 of 16 0.79, 0.27; 2533 of 88 float64 0.78, 0.61).
inline bool are_enough_gathered(const Shape& shape, const Device& device, int64_t tiles) {
  if (shape.held) return are_enough_tiles(tiles, device);
  return shape.row_bytes() <= 128 ? 4 * tiles >= device.multiprocessors : tiles >= 2 * int64_t{device.multiprocessors};
}

// Whether rows in many pieces are better held in slabs than gathered (on an H200, of a copy's speed or torch.add's,
// gathered behind it: dims 1 and 3 of 4799 x 30 x 19 x 9 float32 0.57, 0.27; gradients of 4584 x 13 x 73 x 6 0.59,
// 0.17; 6228 x 17 x 162 x 3 float16 0.33, 0.22; but 25606 x 8 x 8 x 7 float32 0.31, 0.44). Of floats columns that come
// round more rarely as well, where there are pieces enough (2672 x 21 x 40 x 18 0.64, 0.32; 515 x 26 x 147 x 9 0.47,
// 0.34; gradients of 3286 x 16 x 180 x 5 0.61, 0.175; but 1484 x 15 x 241 x 7 0.46, 0.50), but no slabs of less than 3
// KiB (57979 x 16 x 2 x 18 0.36, 0.46; gradients of 71999 x 10 x 17 x 3 bfloat16 0.25, 0.35).
constexpr int64_t kMostPeriodOfFloats = 1400;
constexpr int64_t kLeastSlabOfPieces = 3 << 10;
inline bool are_pieces_better_in_slabs(const Shape& shape) {
  const Rounds& rounds = shape.lattice.rounds;
  const int64_t pieces = shape.backward ? (shape.is_half() ? 10 : 8) : shape.is_half() ? 16 : 10;
  const bool rarely = shape.dtype == DType::kFloat && (shape.backward || rounds.repeats >= 14);
  return shape.lattice.is_folded_slab() && rounds.period < (rarely ? kMostPeriodOfFloats : kMostPeriod) &&
         rounds.repeats >= pieces && rounds.elements() * shape.lattice.element_size >= kLeastSlabOfPieces;
}

// Asked before there is a plan, as most calls end here.
inline bool is_better_gathered(const Shape& shape) {
  if (shape.held) return !shape.dense && shape.row_bytes() <= longest_gathered_row(shape);
  const Turned turned = shape.lattice.turned;
  if (turned == Turned::kToColumns) return false;
  if (turned == Turned::kToRows && !shape.backward) return are_columns_better_gathered(shape);
  return shape.lattice.along && shape.lattice.steps * shape.lattice.lanes_beside_runs() <= most_gathered_steps(shape);
}

}  // namespace l1norm::cuda
