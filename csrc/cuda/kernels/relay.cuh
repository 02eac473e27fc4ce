// The relay kernel, instantiated for each dtype by relay.cu.
#pragma once

#include "../gradient.cuh"
#include "../jobs.cuh"
#include "../launch.h"
#include "../reduce.cuh"
#include "../unset.cuh"
#include "relay.h"

namespace l1norm::cuda {
namespace relay_kernel {

constexpr unsigned kAwaited = 16;  // sums that a thread waits for at a time

// The task's chunk.
template <typename Row>
__device__ __forceinline__ Row chunk_of(const Call& c, const Task& task, unsigned chunks) {
  const Offsets o = c.geometry.rows.at(task.row);
  const Part part =
      part_of_row(Row::packs_of(c, o), c.geometry.row.count, kRelayThreads * Row::kHeld, task.chunk, chunks);
  const int thread = static_cast<int>(threadIdx.x);
  return Row(c, o, part.begin, static_cast<int>(part.end - part.begin), kLineBytes, thread, kRelayThreads, thread,
             thread);
}

// What stands for a chunk of x where its result will be, between its sum and its division: the first block leaves the
// signs there, so that the second one reads the gradient alone again. Fractions of an addition's speed on an H100, and
// where it reads both: 2000003 float32 0.82 (0.73), 5000001 0.72 (0.67), 2^24 - 1 0.72 (0.62); 2000003 float64 0.75
// (0.68), 2^24 - 1 0.71 (0.62); 5000001 bfloat16 0.70 (0.67). Where the cache holds both, 1000001 float32, it is 0.83
// (0.92): a block waits until its signs are seen.
template <typename Row>
__device__ __forceinline__ auto* signs_place(const Row& row) {
  return reinterpret_cast<SignsOfPacks<typename Row::Element, Row::kHeld>*>(row.y + row.head) + row.first;
}

template <typename Row>
__device__ __forceinline__ void leave_signs(const Row& row) {
  if (!row.has(0)) return;
  SignsOfPacks<typename Row::Element, Row::kHeld> mine;
#pragma unroll
  for (int u = 0; u < Row::kHeld; ++u) {
    typename Row::RowPack x[1];
    row.held_x.get(u, x);
    mine.signs[u] = static_cast<Signs<typename Row::Element>>(signs_of_pack(x[0]));
  }
  *signs_place(row) = mine;
}

template <typename T, bool kBackward>
__global__ void __launch_bounds__(kRelayThreads)
    kernel(const __grid_constant__ Call c, const __grid_constant__ Board board, const __grid_constant__ Order order,
           const unsigned kept) {
  constexpr int kPacks = kRelayPacks<kBackward>;
  // Both reads as if they were the only one, where what the cache keeps of a row is next to nothing: 2^30 float32 run
  // at 0.695 so, else at 0.681; 2^26 at 0.706 and 0.704; 2^24 at 0.707 and 0.725.
  const bool giant = kKeepsAll && order.chunks > 16 * kept;
  const bool is_kept = order.chunks <= kept;
  __shared__ BlockSumStorage storage;
  const Task task = task_of(blockIdx.x, order);
  double2* const parts = board.parts + static_cast<size_t>(task.row) * order.chunks;
  await_stream();
  if (task.job == Job::kDivide) {
    if constexpr (kBackward) {
      // Rows that the cache does not hold are read without hints: those cost more there than they bring.
      using Both = HeldPair<T, kPacks, 1, kRelayThreads, Access::kLast>;
      using Passing = HeldPair<T, kPacks, 1, kRelayThreads, Access::kPassing, Keep::kSigns>;
      using Once = HeldPair<T, kPacks, 1, kRelayThreads, Access::kOnce, Keep::kSigns>;
      __shared__ GradientScale scale;
      if (threadIdx.x == 0) scale = RowDivisor<T>(c, c.geometry.rows.at(task.row).denominator).scale(c);
      const auto by_signs = [&](auto chunk) {
        const Sum total = await<true>(board.totals + task.row);
        chunk.held_x.read(signs_place(chunk), chunk.has(0));
        __syncthreads();  // all have read theirs
        chunk.finish(total, scale);
      };
      if (is_kept) {
        const auto chunk = chunk_of<Both>(c, task, order.chunks);
        __syncthreads();
        chunk.finish(await(board.totals + task.row), scale);
      } else if (giant) {
        by_signs(chunk_of<Once>(c, task, order.chunks));
      } else {
        by_signs(chunk_of<Passing>(c, task, order.chunks));
      }
    } else {
      const auto divide = [&](const auto& chunk) { chunk.finish(await(board.totals + task.row), c); };
      // 5000001 float32: 0.732 with hints, 0.721 without; 2^24: 0.714 and 0.718; 2^22 float64: 0.711 and 0.737.
      if (order.chunks <= kept + kept / 2) {
        divide(chunk_of<Held<T, kPacks, 1, true, kRelayThreads, Access::kLast>>(c, task, order.chunks));
      } else if (giant) {
        divide(chunk_of<Held<T, kPacks, 1, true, kRelayThreads, Access::kOnce>>(c, task, order.chunks));
      } else {
        divide(chunk_of<Held<T, kPacks, 1, true, kRelayThreads, Access::kPassing>>(c, task, order.chunks));
      }
    }
  } else if (task.job == Job::kSum) {
    const bool keeps = giant || order.chunks - task.chunk <= kept;
    Sum mine;
    if constexpr (kBackward) {
      // x is not read again.
      constexpr Access kSeen = sizeof(T) == 8 ? Access::kPassing : Access::kLast;
      const auto sum_by_signs = [&](const auto& chunk) {
        leave_signs(chunk);
        return chunk.sum(c);
      };
      using Both = HeldPair<T, kPacks, 1, kRelayThreads, Access::kFirst>;
      using Kept = HeldPair<T, kPacks, 1, kRelayThreads, Access::kFirst, Keep::kInRegisters, true, kSeen>;
      using Passing = HeldPair<T, kPacks, 1, kRelayThreads, Access::kPassing, Keep::kInRegisters, true, kSeen>;
      mine = is_kept ? chunk_of<Both>(c, task, order.chunks).sum(c)
             : keeps ? sum_by_signs(chunk_of<Kept>(c, task, order.chunks))
                     : sum_by_signs(chunk_of<Passing>(c, task, order.chunks));
    } else {
      mine = keeps ? chunk_of<Held<T, kPacks, 1, true, kRelayThreads, Access::kFirst>>(c, task, order.chunks).sum(c)
                   : chunk_of<Held<T, kPacks, 1, true, kRelayThreads, Access::kPassing>>(c, task, order.chunks).sum(c);
    }
    const Sum total = block_sum(mine, storage);
    if (threadIdx.x != 0) return;
    if (kBackward && !is_kept) release();
    publish(parts + task.chunk, total);
  } else if (task.job == Job::kTotal) {
    // One read after the other would keep all blocks waiting (1 x 2^30 float32: 0.671, by batches 0.676).
    const Sum mine = await_all<kAwaited>(parts, threadIdx.x, order.chunks, kRelayThreads);
    if (kBackward && !is_kept) release();
    const Sum total = block_sum(mine, storage);
    if (threadIdx.x != 0) return;
    if (kBackward && !is_kept) release();
    publish(board.totals + task.row, total);
    if (!kBackward && c.denominator != nullptr)
      write_denominator<T>(c, c.geometry.rows.at(task.row).denominator, total);
  }
}

template <typename T, bool kBackward>
cudaError_t launch(const Call& c, const RelayPlan& plan, void* scratch, cudaStream_t stream) {
  const auto function = kernel<T, kBackward>;
  static Prepared prepared;
  cudaError_t error = prepared.for_launch(c.device, reinterpret_cast<const void*>(function), 0);
  if (error != cudaSuccess) return error;
  error = unset_scratch(c, scratch, relay_scratch_bytes(plan, c.geometry.rows.count), stream);
  if (error != cudaSuccess) return error;
  const Order order = order_of(plan, c.geometry.rows.count);
  const Board board = board_in(scratch, size_t{order.rows} * order.chunks);
  return launch_in_stream(c, function, order.blocks(), kRelayThreads, 0, 1, stream, c, board, order,
                          static_cast<unsigned>(plan.kept));
}

}  // namespace relay_kernel

template <DType D>
cudaError_t relay(const Call& call, const RelayPlan& plan, void* scratch, cudaStream_t stream) {
  using T = typename ElementOf<D>::type;
  return call.grad == nullptr ? relay_kernel::launch<T, false>(call, plan, scratch, stream)
                              : relay_kernel::launch<T, true>(call, plan, scratch, stream);
}

}  // namespace l1norm::cuda
