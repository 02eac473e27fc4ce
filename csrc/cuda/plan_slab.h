// The slab kernel's launch. Pure and host-only, as the rest of the plan.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>

#include "shape.h"

namespace l1norm::cuda {

constexpr int kSlabThreads = 1024;
constexpr int64_t kMostSlabColumns = 4096;   // that take turns
constexpr int kSlabChunks = 4;               // at the most, that are loaded and stored one by one
constexpr int kSlabLine = 128 / kPackBytes;  // packs of a line of shared memory
// Cells of a pack, of which lanes take one at a time, and so many together: halves of packs where two operands, or the
// sums of as many columns as a pack of halves has, would leave few threads registers.
constexpr int slab_cells(bool backward, int64_t element_size) {
  return element_size == 2 || (backward && element_size == 4) ? 2 : 1;
}
constexpr int slab_batch(int64_t element_size) { return element_size == 8 ? 2 : 4; }

// The slab kernel: blocks of a cluster have each so many packs of a dense run in which columns, of which a row has one
// or several, take turns; `lanes` lanes have cells of the same columns, which come again after a turn of packs.
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

// Of what finishes a column: its result, and its sum.
constexpr int slab_result_bytes(bool backward, int64_t element_size) {
  if (backward) return element_size == 2 ? 24 : element_size == 4 ? 16 : 48;
  return 16 + (element_size == 2 ? 12 : element_size == 4 ? 28 : 32);
}
// What the kernel has in shared memory besides, and what a block's room there is rounded up by, at the most.
constexpr int kSlabStatic = 256;
// Of a row's divisor and of that one's gradient.
constexpr int kSlabDivisorBytes = 8;

// Sums of a column that a pass over a turn's cells adds at once.
constexpr int slab_copies(int64_t columns, int64_t cell, const SlabPlan& plan) {
  return static_cast<int>(ceil_div(plan.threads / plan.lanes * cell, columns));
}

// Logarithm of the threads that a row of so many columns has: up to one each.
constexpr int slab_row_bits(int64_t fold) {
  return bits_of(static_cast<uint32_t>(power_of_two_from(std::min<int64_t>(fold, 32)))) - 1;
}

// Shared memory of a block: packs, sums and results.
constexpr int64_t slab_bytes(const Rounds& slab, bool backward, int64_t element_size, int copies,
                             const SlabPlan& plan) {
  const int64_t pack = kPackBytes / element_size, packs = int64_t{slab_room(plan.packs)} * (backward ? 2 : 1);
  const int64_t columns = slab.period, rows = slab.columns();
  return packs * kPackBytes + (copies * columns + (plan.cluster > 1 ? plan.cluster : 0) * rows) * 16 +
         (columns + pack) * slab_result_bytes(backward, element_size) + (backward ? rows * kSlabDivisorBytes : 0);
}
constexpr int64_t slab_bytes(const Rounds& slab, bool backward, int64_t element_size, const SlabPlan& plan) {
  const int64_t cell = kPackBytes / element_size / slab_cells(backward, element_size);
  return slab_bytes(slab, backward, element_size, slab_copies(slab.period, cell, plan), plan);
}

// How often lanes of a warp that read cells together ask a bank of shared memory for another line: 128 bytes of them,
// of which so many packs lie side by side and the others a turn apart.
constexpr int slab_conflicts(int turn_cells, int cells, int lanes) {
  const int together = kSlabLine * cells, beside = 32 / lanes;
  if (beside >= together) return 1;
  const int even = std::min(turn_cells & -turn_cells, together);
  return even >= beside ? even / beside : 2;
}

// Blocks that a multiprocessor has room for. 0: it has none for one.
inline int slab_at_once(const LatticeShape& s, bool backward, const Device& device, int copies, const SlabPlan& plan) {
  const int64_t bytes = slab_bytes(s.slab(), backward, s.element_size, copies, plan) + kSlabStatic + kReservedShared;
  if (bytes > device.shared_bytes) return 0;
  return std::min(device.shared_bytes_per_multiprocessor / static_cast<int>(bytes), kSlabThreads / plan.threads);
}

constexpr double kNoSlab = 1e30;

// The threads, and the lanes of the same columns, of the blocks of a cluster that take the least time, which it
// returns. Where a turn has fewer cells than there are threads for, it is that of several. kNoSlab: a block has no
// room. turn: the least packs of one; turns: as many as a block has, about.
//
// In cycles: of memory, a third of those of instructions, which are of elements, of each pass over a turn's cells and
// of sums that are added up, and those of blocks that exchange sums. Fitted to 25000 pairs of launches of the same runs
// on an H100.
inline double choose_slab_threads(const LatticeShape& s, bool backward, const Device& device, int turn, int turns,
                                  SlabPlan& plan) {
  const int64_t pack = kPackBytes / s.element_size;
  const int batch = slab_batch(s.element_size), cells = slab_cells(backward, s.element_size);
  // All of them fit 32 bits, and many are less than what they are divided by: else divisions would take a call longer
  // than the rest of its plan.
  const auto parts = [](int all, int each) { return all <= each ? 1 : (all + each - 1) / each; };
  const int per_cell = static_cast<int>(pack) / cells, columns = static_cast<int>(s.slab().period);
  // Beside slower memory other instructions hide up to three that a bank is asked for besides. On an H200 slabs of
  // random shapes of floats have 0.86 of a copy's speed where it is asked once, 0.765 where twice, and 0.71 where four
  // times, gradients 0.84, 0.78 and 0.68 of torch.add's.
  const bool fast = is_memory_fast(device);
  const int hidden = fast ? 1 : 4;
  const int a_conflict = fast ? 3 * (backward ? 5 : 3) / cells : 27 / cells * (backward ? 5 : 3);
  // What halves are divided by is worked out by each block of a cluster.
  const double a_column = s.element_size == 2 ? 400.0 + (plan.cluster > 1 ? 60.0 * plan.cluster : 0.0) : 0.0;
  SlabPlan candidate = plan;
  candidate.lanes = 32;
  candidate.threads = 64;
  candidate.turn = turn;
  candidate.packs = turns * turn;
  const int most_at_once = slab_at_once(s, backward, device, 1, candidate);
  if (most_at_once == 0) return kNoSlab;
  const int most_threads = std::max(kSlabThreads / most_at_once, 128);
  constexpr double kOfAnH100 = 12.8;
  const double a_cycle = device.bytes_per_cycle > 0.0 ? device.bytes_per_cycle / device.multiprocessors : kOfAnH100;
  const double memory = static_cast<double>(candidate.packs) * kPackBytes * (backward ? 3 : 2) / a_cycle;
  constexpr double kInstruction = 0.38 / 128;  // of a thread
  const int busy = s.element_size == 4 ? 450 : 580;
  double least = kNoSlab;
  for (int threads = 64; threads <= most_threads; threads += threads < 512 ? 32 : 64) {
    const int adding = parts(columns, threads);
    for (int lanes = 1; lanes <= 32; lanes *= 2) {
      const int groups = threads / lanes;
      const int several = groups < 2 * turn * cells ? 1 : std::min(groups / (turn * cells), turns);
      const int positions = several * turn * cells, passes = parts(positions, groups);
      const int each = several == 1 ? turns : parts(turns, several), batches = parts(each, lanes * batch);
      const int copies = parts(groups * per_cell, columns);
      const int a_cell =
          per_cell * (backward ? 45 : 17) + a_conflict * std::max(slab_conflicts(positions, cells, lanes) - hidden, 0);
      const double a_thread = static_cast<double>(passes) * (batches * batch * a_cell + 600) + 7 * copies * adding +
                              a_column * columns / threads;
      if (memory + kInstruction * a_thread * threads >= least) continue;
      candidate.lanes = lanes;
      candidate.threads = threads;
      candidate.turn = several * turn;
      candidate.packs = each * candidate.turn;
      candidate.at_once = slab_at_once(s, backward, device, copies, candidate);
      if (candidate.at_once == 0) continue;
      // A multiprocessor that has fewer threads is no sooner done (4096 x 512 x 49 float32's gradient on an H200 0.83
      // with 448 of them, with 832 0.74).
      double cost = memory * (1.0 + of_blocks(0.3, 0.07, candidate.at_once)) +
                    kInstruction * a_thread * std::max(threads, busy / candidate.at_once);
      if (plan.cluster > 1) {
        // Other blocks have something to do meanwhile.
        cost += (1200.0 + plan.cluster * (250.0 * columns / threads + 160.0 * adding)) / candidate.at_once;
      }
      if (cost >= least) continue;
      // Chunks repay their barriers where little else runs meanwhile. Beside other blocks quotients are the fastest in
      // two, gradients in one (of (4096, 320, 49) float32 over dim 1 on an H200 0.80 in four, 0.84; bfloat16 0.635,
      // 0.69).
      const int most = candidate.at_once == 1 ? kSlabChunks : backward ? 1 : 2;
      candidate.chunks = std::clamp(passes > 1 ? std::min(batches / 4, 2) : batches, 1, most);
      least = cost;
      plan = candidate;
    }
  }
  return least * plan.cluster;
}

inline bool plan_slab(const LatticeShape& s, bool backward, const Device& device, SlabPlan& plan) {
  // Without clusters, and a copy engine, it has not been measured.
  if (device.max_cluster < 2 || s.units == 0 || s.steps == 0) return false;
  const Rounds slab = s.slab();
  if (slab.columns() < 2 || slab.period > kMostSlabColumns) return false;
  if (slab.repeats > INT32_MAX / 2 || (backward && s.element_size == 8)) return false;
  const int64_t pack = kPackBytes / s.element_size, slabs = s.slabs();
  const int64_t turn = slab.period / std::gcd(slab.period, pack);
  // Wherever in a pack it begins.
  const int64_t turns = ceil_div(ceil_div(slab.elements() + pack - 1, pack), turn);
  double least = kNoSlab;
  for (int cluster = 1; cluster <= device.max_cluster; cluster *= 2) {
    const int64_t each = ceil_div(turns, cluster);
    if (each * turn * kPackBytes > device.shared_bytes || slabs > INT32_MAX / cluster) continue;
    SlabPlan candidate{};
    candidate.cluster = cluster;
    // Multiprocessors without a block do not help.
    const double idle =
        std::max(static_cast<double>(device.multiprocessors) / static_cast<double>(slabs * cluster), 1.0);
    const double cost =
        choose_slab_threads(s, backward, device, static_cast<int>(turn), static_cast<int>(each), candidate) * idle;
    if (cost < least) {
      least = cost;
      plan = candidate;
    }
    // More blocks that exchange sums would gain nothing.
    if (candidate.at_once > 2) break;
  }
  return least < kNoSlab;
}

}  // namespace l1norm::cuda
