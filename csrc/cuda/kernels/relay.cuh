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

template <typename T, bool kBackward>
__global__ void __launch_bounds__(kRelayThreads)
    kernel(const __grid_constant__ Call c, const __grid_constant__ Board board, const __grid_constant__ Order order,
           const unsigned kept) {
  using Kept = RowOf<T, kBackward, kRelayPacks<kBackward>, 1, true, kRelayThreads, Access::kFirst>;
  // Of rows that the cache does not hold: hints cost more there than they bring.
  using Passing = RowOf<T, kBackward, kRelayPacks<kBackward>, 1, true, kRelayThreads, Access::kPassing>;
  using Last = RowOf<T, kBackward, kRelayPacks<kBackward>, 1, true, kRelayThreads, Access::kLast>;
  using Once = RowOf<T, kBackward, kRelayPacks<kBackward>, 1, true, kRelayThreads, Access::kOnce>;
  // Both reads as if they were the only one, where what the cache keeps of a row is next to nothing: 2^30 float32 run
  // at 0.695 so, else at 0.681; 2^26 at 0.706 and 0.704; 2^24 at 0.707 and 0.725.
  const bool giant = kKeepsAll && order.chunks > 16 * kept;
  __shared__ BlockSumStorage storage;
  const Task task = task_of(blockIdx.x, order);
  double2* const parts = board.parts + static_cast<size_t>(task.row) * order.chunks;
  await_stream();
  if (task.job == Job::kDivide) {
    const auto divide = [&](const auto& chunk) {
      if constexpr (kBackward) {
        __shared__ GradientScale scale;
        if (threadIdx.x == 0) scale = RowDivisor<T>(c, c.geometry.rows.at(task.row).denominator).scale(c);
        __syncthreads();
        chunk.finish(await(board.totals + task.row), scale);
      } else {
        chunk.finish(await(board.totals + task.row), c);
      }
    };
    // 5000001 float32: 0.732 with hints, 0.721 without; 2^24: 0.714 and 0.718; 2^22 float64: 0.711 and 0.737.
    if (order.chunks <= kept + kept / 2) {
      divide(chunk_of<Last>(c, task, order.chunks));
    } else if (giant) {
      divide(chunk_of<Once>(c, task, order.chunks));
    } else {
      divide(chunk_of<Passing>(c, task, order.chunks));
    }
  } else if (task.job == Job::kSum) {
    const bool keeps = giant || order.chunks - task.chunk <= kept;
    const Sum mine =
        keeps ? chunk_of<Kept>(c, task, order.chunks).sum(c) : chunk_of<Passing>(c, task, order.chunks).sum(c);
    const Sum sum = block_sum(mine, storage);
    if (threadIdx.x == 0) publish(parts + task.chunk, sum);
  } else if (task.job == Job::kTotal) {
    // One read after the other would keep all blocks waiting (1 x 2^30 float32: 0.671, by batches 0.676).
    const Sum total = await_block_sum<kRelayThreads, kAwaited>(parts, order.chunks, storage);
    if (threadIdx.x != 0) return;
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
