// The runs kernel, instantiated for each dtype by runs.cu.
#pragma once

#include "../divider.h"
#include "../early.cuh"
#include "../gradient.cuh"
#include "../jobs.cuh"
#include "../launch.h"
#include "../reduce.cuh"
#include "../unset.cuh"
#include "runs.h"

namespace l1norm::cuda {
namespace runs_kernel {

// How rows are cut in pieces.
struct Pieces {
  int lanes;      // that take one together
  int lane_bits;  // their number's logarithm
  int packs;      // of a piece
  int count;      // of a row
  int each;       // that lanes take one after the other
  int cuts;       // pieces of a run
  Divider by_cuts;

  explicit Pieces(const RunsPlan& plan)
      : lanes(plan.lanes),
        lane_bits(bits_of(static_cast<uint32_t>(plan.lanes)) - 1),
        packs(plan.packs),
        count(static_cast<int>(plan.pieces)),
        each(plan.each),
        cuts(plan.cuts),
        by_cuts(static_cast<uint32_t>(plan.cuts)) {}
};

// A lane's share of a piece of the row at o; of none where there is no such piece.
template <typename Row>
__device__ __forceinline__ Row share_of(const Call& c, const Pieces& pieces, Offsets o, int index) {
  constexpr int kPack = Row::kPack;
  const Walk& row = c.geometry.row;
  const bool exists = index < pieces.count;
  const int run = static_cast<int>(pieces.by_cuts.quotient(static_cast<uint32_t>(exists ? index : 0)));
  const int cut = exists ? index - run * pieces.cuts : 0;
  o.add(run, row.stride[0]);
  // But for the first, pieces begin where packs do.
  const auto start = [&](int k) {
    return elements_to(Row::packs_of(c, o), kPackBytes) + int64_t{k} * pieces.packs * kPack;
  };
  const int64_t begin = cut == 0 ? 0 : start(cut), end = cut + 1 == pieces.cuts ? row.size[1] : start(cut + 1);
  const int lane = static_cast<int>(threadIdx.x) & (pieces.lanes - 1);
  return Row(c, o, begin, exists ? static_cast<int>(end - begin) : 0, kPackBytes, lane, pieces.lanes, lane, lane);
}

template <typename T, bool kBackward, Access kAccess>
using PieceOf = RowOf<T, kBackward, kRunsPacks, 1, true, 0, kAccess, false>;

// Blocks of the most threads on a multiprocessor that the compiler is told of, as some of halves would leave room for
// one (gradients of (128, 512, 14, 14) bfloat16 over all dims but the second: 0.67 of torch.add's speed on an H100,
// with two 0.83). Some of floats would spill.
template <typename T>
constexpr int kHeldBlocks = sizeof(T) == 2 ? 2 : 0;

// A cluster of blocks, of one each unless kMany, holds a row.
template <typename T, bool kBackward, bool kMany>
__global__ void __launch_bounds__(kRunsThreads, kHeldBlocks<T>)
    held_kernel(const __grid_constant__ Call c, const Pieces pieces) {
  if constexpr (!kMany || kHasClusters) {
    extern __shared__ __align__(kSharedLine) uint4 shared[];
    ask_ahead<kBackward>(c);
    const Cluster cluster(kMany);
    if constexpr (kMany) cluster.expect(cluster_sums(cluster.size, static_cast<int>(blockDim.x)));
    const unsigned row = kMany ? blockIdx.x / cluster.size : blockIdx.x;
    const Offsets o = c.geometry.rows.at(row);
    const int thread = static_cast<int>(cluster.rank * blockDim.x + threadIdx.x);
    const auto total_of = [&](const Sum& sum) {
      return cluster_sum<kMany>(sum, reinterpret_cast<double2*>(shared), cluster);
    };
    await_stream();
    using Piece = PieceOf<T, kBackward, Access::kOnce>;
    const auto piece = share_of<Piece>(c, pieces, o, thread >> pieces.lane_bits);
    if constexpr (kBackward) {
      __shared__ GradientScale scale;
      if (threadIdx.x == 0) scale = RowDivisor<T>(c, o.denominator).scale(c);
      const Sum total = total_of(piece.sum(c));
      if constexpr (kMany) __syncthreads();
      piece.finish(total, scale);
    } else {
      normalize_held<T, kRunsPacks, false>(
          c, piece, 0, nullptr, c.denominator != nullptr && cluster.rank == 0 ? o.denominator : -1, total_of);
    }
  }
}

template <typename T, bool kBackward>
__global__ void __launch_bounds__(kRunsRelayThreads)
    relay_kernel(const __grid_constant__ Call c, const Pieces pieces, const __grid_constant__ Board board,
                 const __grid_constant__ Order order, const unsigned kept) {
  __shared__ BlockSumStorage storage;
  const Task task = task_of(blockIdx.x, order);
  double2* const parts = board.parts + static_cast<size_t>(task.row) * order.chunks;
  const Offsets o = c.geometry.rows.at(task.row);
  const int at_once = kRunsRelayThreads >> pieces.lane_bits;
  const int first = static_cast<int>(task.chunk) * pieces.each * at_once + (threadIdx.x >> pieces.lane_bits);
  await_stream();
  if (task.job == Job::kDivide) {
    __shared__ GradientScale scale;
    if constexpr (kBackward) {
      if (threadIdx.x == 0) scale = RowDivisor<T>(c, o.denominator).scale(c);
      __syncthreads();
    }
    const auto divide = [&](auto access) {
      Sum total;
#pragma unroll 1
      for (int j = 0; j < pieces.each; ++j) {
        const auto piece = share_of<PieceOf<T, kBackward, decltype(access)::value>>(c, pieces, o, first + j * at_once);
        if (j == 0) total = await(board.totals + task.row);
        if constexpr (kBackward) {
          piece.finish(total, scale);
        } else {
          piece.finish(total, c);
        }
      }
    };
    if (order.chunks <= kept + kept / 2) {
      divide(std::integral_constant<Access, Access::kLast>{});
    } else {
      divide(std::integral_constant<Access, Access::kPassing>{});
    }
  } else if (task.job == Job::kSum) {
    Sum mine;
    const auto add = [&](auto access) {
#pragma unroll 1
      for (int j = 0; j < pieces.each; ++j) {
        const auto piece = share_of<PieceOf<T, kBackward, decltype(access)::value>>(c, pieces, o, first + j * at_once);
        mine = mine + piece.sum(c);
      }
    };
    if (order.chunks - task.chunk <= kept) {
      add(std::integral_constant<Access, Access::kFirst>{});
    } else {
      add(std::integral_constant<Access, Access::kPassing>{});
    }
    const Sum sum = block_sum(mine, storage);
    if (threadIdx.x == 0) publish(parts + task.chunk, sum);
  } else if (task.job == Job::kTotal) {
    const Sum total = await_block_sum<kRunsRelayThreads>(parts, order.chunks, storage);
    if (threadIdx.x != 0) return;
    publish(board.totals + task.row, total);
    if (!kBackward && c.denominator != nullptr) write_denominator<T>(c, o.denominator, total);
  }
}

template <typename T, bool kBackward, bool kMany>
cudaError_t launch_held(const Call& c, const RunsPlan& plan, cudaStream_t stream) {
  const auto function = held_kernel<T, kBackward, kMany>;
  static Prepared prepared;
  const int sums_bytes = to_line(cluster_sums(plan.cluster, plan.threads)) * static_cast<int>(sizeof(double2));
  const cudaError_t error = prepared.for_launch(c.device, reinterpret_cast<const void*>(function), 0);
  if (error != cudaSuccess) return error;
  return launch_in_stream(c, function, c.geometry.rows.count * plan.cluster, plan.threads,
                          static_cast<size_t>(sums_bytes), plan.cluster, stream, c, Pieces(plan));
}

template <typename T, bool kBackward>
cudaError_t launch_relay(const Call& c, const RunsPlan& plan, void* scratch, cudaStream_t stream) {
  const auto function = relay_kernel<T, kBackward>;
  static Prepared prepared;
  cudaError_t error = prepared.for_launch(c.device, reinterpret_cast<const void*>(function), 0);
  if (error != cudaSuccess) return error;
  error = unset_scratch(c, scratch, runs_scratch_bytes(plan, c.geometry.rows.count), stream);
  if (error != cudaSuccess) return error;
  const Order order = order_of(plan.relay, c.geometry.rows.count);
  const Board board = board_in(scratch, size_t{order.rows} * order.chunks);
  return launch_in_stream(c, function, order.blocks(), kRunsRelayThreads, 0, 1, stream, c, Pieces(plan), board, order,
                          static_cast<unsigned>(plan.relay.kept));
}

template <typename T, bool kBackward>
cudaError_t launch(const Call& c, const RunsPlan& plan, void* scratch, cudaStream_t stream) {
  if (plan.cluster == 0) return launch_relay<T, kBackward>(c, plan, scratch, stream);
  return plan.cluster > 1 ? launch_held<T, kBackward, true>(c, plan, stream)
                          : launch_held<T, kBackward, false>(c, plan, stream);
}

}  // namespace runs_kernel

template <DType D>
cudaError_t runs(const Call& call, const RunsPlan& plan, void* scratch, cudaStream_t stream) {
  using T = typename ElementOf<D>::type;
  return call.grad == nullptr ? runs_kernel::launch<T, false>(call, plan, scratch, stream)
                              : runs_kernel::launch<T, true>(call, plan, scratch, stream);
}

}  // namespace l1norm::cuda
