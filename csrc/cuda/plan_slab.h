// The slab kernel's launch. Pure and host-only, as the rest of the plan.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>

#include "shape.h"

namespace l1norm::cuda {

constexpr int kSlabThreads = 1024;
constexpr int kSlabChunks = 4;               // at the most, that are loaded and stored one by one
constexpr int kSlabLine = 128 / kPackBytes;  // packs of a line of shared memory
// Cells of a pack, of which lanes take one at a time, and so many together: halves of packs where two operands, or the
// sums of as many columns as a pack of halves has, would leave few threads registers.
constexpr int slab_cells(bool backward, int64_t element_size) {
  return element_size == 2 || (backward && element_size == 4) ? 2 : 1;
}
constexpr int slab_batch(int64_t element_size) { return element_size == 8 ? 2 : 4; }

// The slab kernel: blocks of a cluster have each so many packs of a dense run of rows that take turns; `lanes` lanes
// have cells of the same columns, which come again after a turn of packs.
struct SlabPlan {
  int lanes;
  int threads;
  int packs;  // whole turns
  int turn;   // packs
  int cluster;
  int chunks;
  int at_once;  // blocks that a multiprocessor has room for
};

// Packs of an operand's room in shared memory: it begins as far from a line there as in memory.
constexpr int slab_room(int packs) { return (packs + 2 * kSlabLine - 2) / kSlabLine * kSlabLine; }

// Of what finishes a column: its result, and its sum or what a gradient is scaled by.
constexpr int slab_result_bytes(bool backward, int64_t element_size) {
  if (backward) return 72 + (element_size == 2 ? 40 : element_size == 4 ? 16 : 48);
  return 16 + (element_size == 2 ? 12 : element_size == 4 ? 28 : 32);
}

// Sums of a column that a pass over a turn's cells adds at once.
constexpr int slab_copies(int64_t rows, int64_t cell, const SlabPlan& plan) {
  return static_cast<int>(ceil_div(plan.threads / plan.lanes * cell, rows));
}

// Shared memory of a block: packs, sums and results.
constexpr int64_t slab_bytes(int64_t rows, bool backward, int64_t element_size, const SlabPlan& plan) {
  const int64_t pack = kPackBytes / element_size, packs = int64_t{slab_room(plan.packs)} * (backward ? 2 : 1);
  const int copies = slab_copies(rows, pack / slab_cells(backward, element_size), plan);
  return packs * kPackBytes + (copies + (plan.cluster > 1 ? plan.cluster : 0)) * rows * 16 +
         (rows + pack) * slab_result_bytes(backward, element_size);
}

// The threads, and the lanes of the same columns, that take the fewest instructions, about: of elements, of each pass
// over a turn's cells, and of each thread. False where a block has no room.
inline bool choose_slab_threads(const LatticeShape& s, bool backward, const Device& device, SlabPlan& plan) {
  const int64_t rows = s.slab_rows(), pack = kPackBytes / s.element_size;
  const int batch = slab_batch(s.element_size), cells = slab_cells(backward, s.element_size);
  // All of them fit: divisions of 64 bits would take a call longer than the rest of its plan.
  const int turns = plan.packs / plan.turn, per_cell = static_cast<int>(pack) / cells, positions = plan.turn * cells;
  const SlabPlan wanted = plan;
  double least = 0.0;
  for (int threads = 64; threads <= std::max(kSlabThreads / wanted.at_once, 128); threads += 32) {
    for (int lanes = 1; lanes <= 32; lanes *= 2) {
      const int groups = threads / lanes, passes = (positions + groups - 1) / groups;
      const int batches = (turns + lanes * batch - 1) / (lanes * batch);
      const double a_pass =
          static_cast<double>(batches * batch * per_cell) * (backward ? 45 : 17) + (lanes > 1 ? 320.0 : 220.0);
      // A multiprocessor that has fewer threads is no sooner done.
      const double cost = (static_cast<double>(passes) * a_pass + 400.0) * std::max(threads * wanted.at_once, 448);
      if (least != 0.0 && cost >= least) continue;
      SlabPlan candidate = wanted;
      candidate.lanes = lanes;
      candidate.threads = threads;
      if (slab_bytes(rows, backward, s.element_size, candidate) > device.shared_bytes - kReservedShared) continue;
      // Chunks repay their barriers where lanes have several batches of each, or little else runs meanwhile.
      const int chunks = passes > 1 ? std::min(batches / 4, 2) : wanted.at_once > 2 ? batches / 2 : batches;
      candidate.chunks = std::clamp(chunks, 1, kSlabChunks);
      least = cost;
      plan = candidate;
    }
  }
  return least > 0.0;
}

// What a launch loses of a copy's speed, or backward of torch.add's, as strided_loss() counts it: of columns, which
// take a block some hundred instructions each, the more the more blocks exchange sums, and of a multiprocessor that has
// little in shared memory, or few blocks to overlap. Fitted to 60 launches of 16 shapes on an H100.
constexpr double slab_share(bool backward, int64_t element_size) {
  if (backward) return element_size == 2 ? 0.6 : 0.7;
  return element_size == 2 ? 0.82 : element_size == 4 ? 0.93 : 0.97;
}
inline double slab_loss(const LatticeShape& s, bool backward, const SlabPlan& plan) {
  const bool half = s.element_size == 2;
  const double elements = static_cast<double>(plan.packs) * (kPackBytes / static_cast<double>(s.element_size));
  const double columns = static_cast<double>(s.slab_rows()) * (600.0 + (plan.cluster > 1 ? 100.0 * plan.cluster : 0.0));
  const double ratio = columns / (elements * (backward ? 45.0 : 21.0)) * (half || backward ? 1.0 : 0.5);
  const double held = static_cast<double>(plan.at_once) * plan.packs * kPackBytes * (backward ? 2 : 1);
  const double empty = missing(held, 200 << 10);
  const double few = of_blocks(0.2, 0.04, plan.at_once);
  // One block has nothing to do while its columns are added up: 1024 x 197 float32 on an H200 0.43, strided 0.70.
  const double waits = plan.at_once == 1 ? 2.0 : 1.0;
  return 1.0 - slab_share(backward, s.element_size) / (1.0 + waits * ratio) * (1.0 - 0.5 * empty - few);
}

inline bool plan_slab(const LatticeShape& s, bool backward, const Device& device, SlabPlan& plan) {
  const int64_t rows = s.slab_rows(), pack = kPackBytes / s.element_size;
  // Without clusters, and a copy engine, it has not been measured.
  if (device.max_cluster < 2 || s.units == 0 || s.steps == 0 || rows < 2 || rows > 4096) return false;
  if (s.steps > INT32_MAX / 2 || (backward && s.element_size == 8)) return false;
  const int64_t turn = rows / std::gcd(rows, pack), slabs = s.units / s.inner;
  // Wherever in a pack it begins.
  const int64_t turns = ceil_div(ceil_div(s.steps * rows + pack - 1, pack), turn);
  const auto at_once = [&](const SlabPlan& of) {
    const int64_t bytes = slab_bytes(rows, backward, s.element_size, of) + kReservedShared;
    return static_cast<int>(
        std::clamp<int64_t>(device.shared_bytes_per_multiprocessor / bytes, 1, std::max(kSlabThreads / of.threads, 1)));
  };
  double least = 2.0;
  for (int cluster = 1; cluster <= device.max_cluster; cluster *= 2) {
    const int64_t packs = ceil_div(turns, cluster) * turn;
    if (packs * kPackBytes > device.shared_bytes || slabs > INT32_MAX / cluster) continue;
    SlabPlan candidate{1, 64, static_cast<int>(packs), static_cast<int>(turn), cluster, 1, 1};
    candidate.at_once = at_once(candidate);
    if (!choose_slab_threads(s, backward, device, candidate)) continue;
    candidate.at_once = at_once(candidate);
    const double loss = slab_loss(s, backward, candidate);
    if (loss >= least) continue;
    least = loss;
    plan = candidate;
  }
  return least < 2.0;
}

}  // namespace l1norm::cuda
