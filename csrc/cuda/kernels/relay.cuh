// The relay kernel, instantiated for one dtype by each relay_*.cu.
#pragma once

#include "../held.cuh"
#include "../launch.h"
#include "../reduce.cuh"
#include "relay.h"

namespace l1norm::cuda {
namespace relay_kernel {

// Written by blocks for blocks behind them.
struct Board {
  double2* parts;      // a row and chunk
  double2* totals;     // a row
  unsigned* counters;  // a row: chunks that have their part, less one
};

// How a launch orders chunks.
struct Order {
  unsigned rows, chunks, lag;
  bool turns_back;  // rows are divided from their ends: those are in the cache
};

struct Task {
  bool divides;
  unsigned row, chunk;
};

// Summing starts `lag` rows ahead; then blocks take turns, so that reads from memory, reads from the cache and writes
// mix.
__device__ __forceinline__ Task task_of(unsigned block, const Order& o) {
  const unsigned ahead = o.lag * o.chunks, turns = (o.rows - o.lag) * o.chunks;
  bool divides = false;
  unsigned at = block;  // chunk by chunk, row by row
  if (block >= ahead + 2 * turns) {
    divides = true;
    at = block - ahead - turns;
  } else if (block >= ahead) {
    divides = (block - ahead) % 2 != 0;
    at = (block - ahead) / 2 + (divides ? 0 : ahead);
  }
  const unsigned row = at / o.chunks, chunk = at - row * o.chunks;
  return {divides, row, divides && o.turns_back ? o.chunks - 1 - chunk : chunk};
}

template <typename T, Access kAccess>
struct Chunk : Held<T, kRelayPacks, 1, true, kRelayThreads, kAccess> {
  using Base = Held<T, kRelayPacks, 1, true, kRelayThreads, kAccess>;

  static __device__ __forceinline__ Chunk of(const Call& c, const Task& task, unsigned chunks) {
    const Offsets o = c.geometry.rows.at(task.row);
    const T* x = static_cast<const T*>(c.input) + o.input;
    const Part part = part_of_row(x, c.geometry.row.count, kRelayThreads * kRelayPacks, task.chunk, chunks);
    return Chunk(x + part.begin, static_cast<T*>(c.output) + o.output + part.begin,
                 static_cast<int>(part.end - part.begin));
  }

 private:
  __device__ __forceinline__ Chunk(const T* x, T* y, int length)
      : Base(x, y, length, kLineBytes, static_cast<int>(threadIdx.x), kRelayThreads, static_cast<int>(threadIdx.x),
             static_cast<int>(threadIdx.x)) {}
};

// Hands on a chunk's sum; the block that is the last of its row adds them, in their order.
__device__ __forceinline__ bool hand_on(const Sum& sum, const Task& task, unsigned chunks, const Board& board,
                                        BlockSumStorage& storage, Sum& total) {
  double2* const parts = board.parts + static_cast<size_t>(task.row) * chunks;
  __shared__ unsigned others;
  if (threadIdx.x == 0) {
    parts[task.chunk] = make_double2(sum.hi, sum.lo);
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;"
                 : "=r"(others)
                 : "l"(board.counters + task.row)
                 : "memory");
  }
  __syncthreads();
  if (others + 2 != chunks) return false;
  Sum mine;
  for (unsigned k = threadIdx.x; k < chunks; k += kRelayThreads) {
    const double2 part = __ldcg(parts + k);
    mine = mine + Sum{part.x, part.y};
  }
  total = block_sum(mine, storage);
  if (threadIdx.x == 0) publish(board.totals + task.row, total);
  return true;
}

template <typename T>
__global__ void __launch_bounds__(kRelayThreads, kRelayBlocks)
    kernel(const __grid_constant__ Call c, const __grid_constant__ Board board, const __grid_constant__ Order order) {
  const Task task = task_of(blockIdx.x, order);
  if (task.divides) {
    const auto chunk = Chunk<T, Access::kLast>::of(c, task, order.chunks);
    // Blocks wait for blocks of lower numbers only, which the device starts first: CUB's scans rest on that as well.
    chunk.divide(await(board.totals + task.row), c);
    return;
  }
  __shared__ BlockSumStorage storage;
  const auto chunk = Chunk<T, Access::kFirst>::of(c, task, order.chunks);
  Sum total;
  if (hand_on(block_sum(chunk.tally().sum(), storage), task, order.chunks, board, storage, total) && threadIdx.x == 0 &&
      c.denominator != nullptr) {
    write_denominator<T>(c, c.geometry.rows.at(task.row).denominator, total);
  }
}

template <typename T>
cudaError_t launch(const Call& c, const RelayPlan& plan, void* scratch, cudaStream_t stream) {
  const auto function = kernel<T>;
  static Prepared prepared;
  cudaError_t error = prepared.for_launch(c.device, reinterpret_cast<const void*>(function), 0);
  if (error != cudaSuccess) return error;
  const size_t rows = static_cast<size_t>(c.geometry.rows.count), chunks = static_cast<size_t>(plan.chunks);
  Board board{};
  board.parts = static_cast<double2*>(scratch);
  board.totals = board.parts + rows * chunks;
  board.counters = reinterpret_cast<unsigned*>(board.totals + rows);
  error = cudaMemsetAsync(board.totals, kUnset, rows * (sizeof(double2) + sizeof(unsigned)), stream);
  if (error != cudaSuccess) return error;
  const Order order{static_cast<unsigned>(rows), static_cast<unsigned>(chunks), static_cast<unsigned>(plan.lag),
                    plan.turns_back};
  function<<<static_cast<unsigned>(2 * rows * chunks), kRelayThreads, 0, stream>>>(c, board, order);
  return cudaGetLastError();
}

}  // namespace relay_kernel

template <DType D>
cudaError_t relay(const Call& call, const RelayPlan& plan, void* scratch, cudaStream_t stream) {
  return relay_kernel::launch<typename ElementOf<D>::type>(call, plan, scratch, stream);
}

}  // namespace l1norm::cuda
