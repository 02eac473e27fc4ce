// The runs kernel's launch. Pure and host-only, as the rest of the plan.
#pragma once

#include <algorithm>
#include <cstdint>

#include "plan_relay.h"
#include "shape.h"

namespace l1norm::cuda {

constexpr int kRunsThreads = 512;
constexpr int kRunsRelayThreads = 256;
// Of a piece, a lane, and of both operands each.
constexpr int kRunsPacks = 4;
constexpr int kLeastRunPacks = 8;              // of a run
constexpr int64_t kRunsChunkBytes = 32 << 10;  // about, of both operands

// The runs kernel: runs of neighbours are cut in pieces of `packs` packs, which `lanes` lanes take together. Either a
// cluster of blocks holds a row, a piece a lane, or rows are relayed: in chunks, of which lanes take `each` pieces.
struct RunsPlan {
  int lanes;
  int cuts;  // pieces of a run
  int packs;
  int64_t pieces;  // of a row
  int threads;
  int cluster;  // 0: rows are relayed
  int each;
  RelayPlan relay;

  int at_once() const { return threads / lanes; }  // pieces of a block
  int64_t blocks(int64_t rows) const { return rows * (cluster > 0 ? cluster : 2 * (int64_t{relay.chunks} + 1)); }
};

// A run's whole packs, if it begins with one.
inline int64_t run_packs(const Shape& shape) { return shape.run * element_size(shape.dtype) / kPackBytes; }

// Not of doubles: with two operands lanes would have too many registers for few packs (gradients of 64 x 1893 x 99 over
// dims 0 and 2 0.57, by the strided kernel 0.71).
inline bool plan_runs(const Shape& shape, const Device& device, RunsPlan& plan) {
  const int64_t packs = run_packs(shape);
  if (shape.rows == 0 || packs < kLeastRunPacks || element_size(shape.dtype) == 8) return false;
  // So many lanes that what they have room for is full, or nearly. Not fewer than a piece may have elements ahead of
  // its packs, nor than a line has packs (64 x 935 x 401 float32 over dims 0 and 2, of four lanes 0.68, of 32 0.76).
  const auto cuts_of = [&](int lanes) { return ceil_div(packs, int64_t{lanes} * kRunsPacks); };
  plan.lanes = 32;
  for (int lanes = 16; lanes >= kLeastRunPacks; lanes /= 2) {
    if (16 * cuts_of(lanes) * lanes < 15 * cuts_of(plan.lanes) * plan.lanes) plan.lanes = lanes;
  }
  const int64_t cuts = cuts_of(plan.lanes), pieces = shape.length / shape.run * cuts;
  if (pieces > INT32_MAX / 4) return false;
  plan.cuts = static_cast<int>(cuts);
  plan.packs = static_cast<int>(ceil_div(packs, cuts));
  plan.pieces = pieces;
  plan.each = 1;
  for (plan.cluster = 1; plan.cluster <= device.max_cluster; plan.cluster *= 2) {
    const int64_t threads = ceil_div(ceil_div(pieces, plan.cluster) * plan.lanes, 32) * 32;
    if (threads > kRunsThreads) continue;
    plan.threads = static_cast<int>(threads);
    return shape.rows <= INT32_MAX / plan.cluster;
  }
  plan.cluster = 0;
  plan.threads = kRunsRelayThreads;
  const int64_t bytes = int64_t{plan.at_once()} * plan.packs * kPackBytes * (shape.backward ? 2 : 1);
  plan.each = static_cast<int>(std::max<int64_t>(kRunsChunkBytes / bytes, 1));
  return relay_of(shape, device, ceil_div(pieces, int64_t{plan.at_once()} * plan.each), bytes * plan.each,
                  4 * int64_t{device.multiprocessors}, plan.relay);
}

// Whether two of three of a strided kernel's cells hold nothing, or every other one of pieces that are not too short
// (over dims 1 and 3 on an H200 218 x 12 x 101 x 58 float32 0.705, strided 0.46; 277 x 8 x 103 x 126 0.79, 0.53; but
// 137 x 24 x 135 x 38 0.44, 0.47).
inline bool is_mostly_empty(const Shape& shape, const StridedPlan& plan) {
  const int64_t cells = int64_t{plan.warps} * (32 / plan.lanes) * plan.packs * plan.cluster * shape.lattice.elements;
  return (run_packs(shape) >= 13 ? 2 : 3) * shape.length <= cells;
}

// Whether rows of floats that several blocks hold are faster elsewhere beside fast memory: in short pieces that lie
// near each other (over dims 1 and 3 on an H200 63 x 51 x 40 x 189 0.715, strided 0.82; 56 x 66 x 30 x 230 0.60, 0.72;
// 79 x 140 x 9 x 286 0.43, 0.585; but 64 x 1459 x 257 over dims 0 and 2 0.57, 0.39).
inline bool are_near_pieces(const Shape& shape, const Device& device) {
  const Rounds& rounds = shape.lattice.rounds;
  return is_memory_fast(device) && rounds.is_folded_slab() && run_packs(shape) < 96 &&
         rounds.period * shape.lattice.element_size <= 256 << 10;
}

// Whether a launch is better than the strided kernels', which take runs that begin at any place of a pack element by
// element, and runs of whole packs by a walk that costs more than pieces do; held: a cluster of theirs would hold a
// row. On an H100, of dims 0 and 2, fractions of a copy's speed, or of torch.add's, and the strided kernels':
//   float16: 16 x 2439 x 1025 0.93 (0.45), gradients 0.905 (0.38); 64 x 6313 x 99 0.58 (0.49), 0.68 (0.40); relayed
//   22 x 89 x 45143 0.77 (0.335), 0.75 (0.30); 952 x 424 x 99 0.49 (0.41), of runs of 65 0.36 (0.45), 0.41 (0.36);
//   float32: 64 x 1459 x 257 0.89 (0.77), 0.89 (0.69); of runs of 99 0.78 (0.82), 0.81 (0.77); relayed 952 x 40 x 626
//   0.75 (0.69), 0.75 (0.63), where the others hold a row not: 300 x 406 x 197 0.67 (0.79), 0.69 (0.73);
//   whole packs: gradients of 64 x 3125 x 200 float16 0.86 (0.735), of 72 0.545 (0.675); relayed 952 x 16 x 640 float32
//   0.74 (0.70), 22 x 89 x 45144 float16 0.76 (0.77), gradients 0.75 (0.68);
//   small: 8 x 64 x 67 float32 0.85 (0.29), gradients 0.62 (0.48), float16 0.715 (0.32); 64 x 256 x 37 float32 0.73
//   (0.47); relayed 64 x 4 x 4097 float32 0.43 (0.33), 952 x 2 x 99 float16 0.14 (0.26).
//   the strided kernel's widest clusters: 9 x 22 x 15 x 15443 float32 over dims 0 and 3 relayed 0.83 (0.55), 124 x 6 x
//   67 x 255 0.79 (0.62), gradients of 127 x 3 x 4 x 30333 0.84 (0.62); of fewer threads 285 x 261 x 145 0.66 (0.75);
//   where pieces leave lanes of eight blocks empty, 46 x 180 x 49 x 162 0.53 (0.89); its warps, nearly empty: 281 x 5 x
//   52 x 121 float32 over dims 1 and 3 0.66 (0.43); small, in whole packs: 3 x 187 x 49 x 48 bfloat16 over all but the
//   second 0.95 (0.53), 119 x 95 x 152 0.92 (0.66), 9 x 205 x 8 x 32 float32 1.16 (0.96).
inline bool is_better_in_runs(const Shape& shape, const Device& device, const RunsPlan& plan, bool held,
                              const StridedPlan* strided) {
  const bool relayed = plan.cluster == 0, half = shape.is_half();
  const bool small = shape.rows * shape.row_bytes() < device.l2_bytes / 4;
  const bool full = 4 * plan.packs >= 3 * plan.lanes * kRunsPacks;
  const int64_t packs = run_packs(shape);
  if (shape.lattice.elements > 1) {
    if (small) return !relayed || packs >= 24;
    if (half) return packs >= (shape.backward ? kLeastRunPacks : 12);
    if (relayed && strided != nullptr) {
      const bool wide = strided_threads(*strided) > 256;
      return shape.backward ? wide && packs >= 24 : packs >= (wide ? 20 : 56);
    }
    if (relayed || shape.backward) return packs >= 24 && !(relayed && held);
    const bool slower = held && plan.cluster > 1 && are_near_pieces(shape, device);
    return (packs >= 32 && (full || plan.cluster < 8) && !slower) ||
           (strided != nullptr && is_mostly_empty(shape, *strided));
  }
  if (small && !relayed && !shape.backward) return half ? packs >= 10 && shape.length >= 1024 : packs >= 16;
  return full && (relayed ? !held : half && shape.backward);
}

}  // namespace l1norm::cuda
