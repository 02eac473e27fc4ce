// What the blocks of a relay do: some sum a chunk of a row, some add the chunks' sums, and behind them others divide
// the chunks. Where rows lie side by side, a row is a tile of them.
#pragma once

#include <cuda_runtime.h>

#include "divider.h"
#include "plan_relay.h"

namespace l1norm::cuda {

// Written by blocks for blocks behind them.
struct Board {
  double2* parts;   // a row and chunk, and a column of it where rows have such
  double2* totals;  // a row, likewise
};

// In scratch memory: so many parts' sums, and the totals behind them.
inline Board board_in(void* scratch, size_t sums) {
  return {static_cast<double2*>(scratch), static_cast<double2*>(scratch) + sums};
}

// How a launch orders its blocks.
struct Order {
  unsigned rows, chunks;
  unsigned adders;  // of a row's chunks
  unsigned slots;   // of a row: both
  unsigned ahead;   // blocks that sum and add before the first one that divides: a row's at the least
  bool turns_back;  // rows are divided from their ends: those are in the cache
  Divider by_slots;

  Order(unsigned rows_, unsigned chunks_, unsigned adders_, unsigned ahead_, bool turns_back_)
      : rows(rows_),
        chunks(chunks_),
        adders(adders_),
        slots(chunks + adders),
        ahead(ahead_),
        turns_back(turns_back_),
        by_slots(slots) {}

  unsigned blocks() const { return 2 * rows * slots; }
};

// Of rows that one block each adds the chunks of.
inline Order order_of(const RelayPlan& plan, int64_t rows) {
  return {static_cast<unsigned>(rows), static_cast<unsigned>(plan.chunks), 1, static_cast<unsigned>(plan.ahead),
          plan.turns_back()};
}

enum class Job { kSum, kTotal, kDivide, kNone };

struct Task {
  Job job;
  unsigned row;
  unsigned chunk;  // or the adder's number
};

// Blocks wait for blocks of lower numbers only, which the device starts first: CUB's scans rest on that as well.
// Summing starts ahead; then blocks take turns, so that reads from memory, reads from the cache and writes
// mix.
__device__ __forceinline__ Task task_of(unsigned block, const Order& o) {
  const unsigned slots = o.slots, ahead = o.ahead, turns = o.rows * slots - ahead;
  bool divides = false;
  unsigned at = block;  // slot by slot, row by row
  if (block >= ahead + 2 * turns) {
    divides = true;
    at = block - ahead - turns;
  } else if (block >= ahead) {
    divides = (block - ahead) % 2 != 0;
    at = (block - ahead) / 2 + (divides ? 0 : ahead);
  }
  const unsigned row = o.by_slots.quotient(at), slot = at - row * slots;
  if (slot >= o.chunks) return {divides ? Job::kNone : Job::kTotal, row, slot - o.chunks};
  if (!divides) return {Job::kSum, row, slot};
  return {Job::kDivide, row, o.turns_back ? o.chunks - 1 - slot : slot};
}

}  // namespace l1norm::cuda
