// The ring kernel, instantiated for each dtype by ring.cu.
#pragma once

#include "../gradient.cuh"
#include "../launch.h"
#include "../reduce.cuh"
#include "../ring.cuh"
#include "../ring_turns.cuh"
#include "../unset.cuh"
#include "ring.h"

namespace l1norm::cuda {
namespace ring_kernel {

#if L1NORM_BULK_COPY

// A warp that loads chunks, each kRingLoaders-th, as soon as there is room for one and few enough are on their way.
template <typename T, bool kBackward, int kColumns>
__device__ __forceinline__ void load_rows(const Call& c, const Ring& ring, Memory<T, kBackward, kColumns>& memory,
                                          int warp) {
  if (threadIdx.x % 32 != 0) return;
  const StageAddresses addresses = memory.addresses();
  const uint32_t stages = kept_shared_address(staged(0));
  Turn turn(ring, warp), arriving(ring, warp);
  int may_start = ring.on_way;  // without another one's arrival
  int k = warp;                 // of the row's chunks
  for (unsigned row = ring.group; row < ring.rows; row += ring.groups) {
    const Row<T> at(c, ring, row);
    const int column = kColumns > 1 ? at.template first_column<kColumns>() : 0;
#pragma unroll 1
    for (; k < ring.chunks; k += kRingLoaders, turn.next(kRingLoaders)) {
      const Chunk chunk = at.chunk(k, ring.place<kBackward>(turn.stage), column);
      const int bytes = chunk.packs * kPackBytes;
      const uint32_t barrier = addresses.full(turn.stage);
      if (turn.round > 0) await_phase(addresses.empty(turn.stage), (turn.round - 1) & 1);
      if constexpr (!kBackward) {  // of gradients in turns the wait alone, for what is there, took 5%
        if (may_start > 0) {
          --may_start;
        } else {
          await_phase(addresses.full(arriving.stage), arriving.round & 1);
          arriving.next(kRingLoaders);
        }
      }
      addresses.set_chunk(turn.stage, chunk);  // before the barrier: who waits for that sees it
      expect_bytes(barrier, bytes * (kBackward ? 2 : 1));
      if (bytes == 0) continue;
      const auto copy = [&](int place, const unsigned char* start) {
        copy_bulk<kCopied<kBackward>>(stages + place, start + (chunk.to - at.y), bytes, barrier);
      };
      copy(chunk.place, at.x);
      if constexpr (kBackward) copy(chunk.place + ring.chunk_bytes, at.g);
    }
    k -= ring.chunks;
  }
}

// The lane's sum of a row that is alone.
template <typename T, bool kBackward, typename EachChunk>
__device__ __forceinline__ Sum sum_alone(const Call& c, const Ring& ring, unsigned row, const EachChunk& each_chunk) {
  double by = 1.0;
  if constexpr (kBackward && sizeof(T) == 8) by = dot_scale_of<T>(c, c.geometry.rows.at(row).denominator);
  Least<T> least;
  const auto add = [&](auto& tally) {
    each_chunk(
        [&](int k, const Chunk& chunk, int) { WarpChunk<T, kBackward>(c, ring, row, k, chunk).add(tally, least, by); });
  };
  if constexpr (kBackward) {
    return dot_of<T>(add);
  } else {
    return sum_of<Tally<T>>(least, add);
  }
}

// The warp's sum of one of the rows that take turns; column: which one.
template <typename T, bool kBackward, int kColumns, typename EachChunk>
__device__ __forceinline__ Total<T, kBackward> sum_turns(const Call& c, const Ring& ring, unsigned row,
                                                         const EachChunk& each_chunk, int& column) {
  using MyChunk = TurnsChunk<T, kBackward, kColumns>;
  int first_column = 0;
  Least<T> least;
  Sum sums[kColumns];
  const auto add = [&](auto& tallies) {
    each_chunk([&](int k, const Chunk& chunk, int stage) {
      const MyChunk mine(c, ring, row, k, chunk, ring.place<kBackward>(stage));
      mine.add(tallies, least);
      first_column = mine.first_column();
    });
  };
  sum_each<typename MyChunk::First>(least, add, sums);
  turn(sums, first_column);
  Total<T, kBackward> totals[power_of_two_from(kColumns)]{};
#pragma unroll
  for (int k = 0; k < kColumns; ++k) totals[k] = as_total<Total<T, kBackward>>(sums[k]);
  column = 0;
  int lanes = 16;
  if constexpr (kColumns > 2) {
    share_sums<2>(totals, lanes, column);
    lanes /= 2;
  }
  share_sums<1>(totals, lanes, column);
  for (lanes /= 2; lanes > 0; lanes /= 2) totals[0] = totals[0] + shuffled(totals[0], lanes);
  return totals[0];
}

// A warp that sums chunks, each kRingWarps-th. What the warps of a row leave in shared memory the last one hands on.
template <typename T, bool kBackward, int kColumns>
__device__ __forceinline__ void sum_rows(const Call& c, const Ring& ring, Memory<T, kBackward, kColumns>& memory,
                                         int warp) {
  using TotalOf = Total<T, kBackward>;
  const int lane = static_cast<int>(threadIdx.x) % 32, warps = min(ring.chunks, kRingWarps);
  const StageAddresses addresses = memory.addresses();
  Turn turn(ring, warp);
  int first = warp;  // its next chunk, counted from the row's first one
  unsigned n = 0;    // rows
  for (unsigned row = ring.group; row < ring.rows; row += ring.groups, ++n, first -= ring.chunks) {
    if (first >= ring.chunks) continue;
    int column = 0;  // of which the lane hands in the sum
    TotalOf total;
    const auto each_chunk = [&](const auto& add) {
      Turn t = turn;
      for (int k = first; k < ring.chunks; k += kRingWarps, t.next(kRingWarps)) {
        await_phase(addresses.full(t.stage), t.round & 1);
        add(k, addresses.chunk(t.stage), t.stage);
      }
    };
    if constexpr (kColumns == 1) {
      total = warp_sum(as_total<TotalOf>(sum_alone<T, kBackward>(c, ring, row, each_chunk)));
    } else {
      total = sum_turns<T, kBackward, kColumns>(c, ring, row, each_chunk, column);
    }
    const int mine = first % kRingWarps;
    for (; first < ring.chunks; first += kRingWarps) turn.next(kRingWarps);
    RowInRing<T, kBackward, kColumns>& shared = memory.rows[n % memory.kRows];
    constexpr int kSharers = 32 / power_of_two_from(kColumns);  // lanes that have a column's sum
    if (lane % kSharers == 0 && column < kColumns) shared.sums[column * kRingWarps + mine] = both_words(total);
    if constexpr (kColumns > 1) __syncwarp();
    int before = 0;
    if (lane == 0) {
      __threadfence_block();
      before = atomicAdd(&shared.there, 1);
      __threadfence_block();
    }
    if (__shfl_sync(0xffffffffu, before, 0) < warps - 1) continue;
    __syncwarp();  // what lane 0 has seen, all lanes see
    const int from = lane % kRingWarps;
    column = lane / kRingWarps;
    const double2 part = from < warps && column < kColumns ? shared.sums[lane] : double2{};
    total = warp_sum<kRingWarps>(as_total<TotalOf>({part.x, part.y}));
    if (from == 0 && column < kColumns) publish(ring.parts<kColumns>(row, column) + ring.rank, Sum{total});
    if (lane == 0) {
      shared.there = 0;
      arrive_at(shared_address(&memory.barriers.summed[n % memory.kRows]));
    }
  }
}

// The warp that adds up what the blocks of a row have summed, up to kEach sums a lane. Where there are several groups
// one block does it for all of its group's rows (64 x 700001 float32 0.93 of a copy's speed, by each block in its turn
// 0.92), else each in its turn. Blocks that each read all of it delay each other.
template <typename T, bool kBackward, int kColumns, int kEach>
__device__ __forceinline__ void add_rows(const Call& c, const Ring& ring,
                                         const Memory<T, kBackward, kColumns>& memory) {
  const int lane = static_cast<int>(threadIdx.x) % 32, count = static_cast<int>(ring.blocks);
  const unsigned adders = ring.groups == 1 ? ring.blocks : min(ring.blocks, static_cast<unsigned>(kColumns));
  if (ring.rank >= adders) return;
  for (unsigned k = ring.rank;; k += adders) {
    const unsigned n = k / kColumns, row = ring.group + n * ring.groups;
    if (row >= ring.rows) return;
    const int column = static_cast<int>(k % kColumns);
    double2* const slots = ring.parts<kColumns>(row, column);
    // Not sooner: reads of what is not there yet delay others.
    await_phase(shared_address(&memory.barriers.summed[n % memory.kRows]), n / memory.kRows & 1);
    const Sum sum = await_warp_sum<kEach>(slots, count);
    if (lane == 0) {
      publish(slots + count, sum);
      if (!kBackward && c.denominator != nullptr) write_denominator<T>(c, ring.denominator(c, row, column), sum);
    }
  }
}

// The warp of which a thread, or one for each of the rows that take turns, waits for rows' sums.
template <typename T, bool kBackward, int kColumns>
__device__ __forceinline__ void await_rows(const Call& c, const Ring& ring, Memory<T, kBackward, kColumns>& memory) {
  const int column = static_cast<int>(threadIdx.x) % 32;
  if (column >= kColumns) return;
  unsigned n = 0;
  for (unsigned row = ring.group; row < ring.rows; row += ring.groups, ++n) {
    const unsigned slot = n % memory.kRows;
    const auto sum = [&] {
      await_phase(shared_address(&memory.barriers.summed[slot]), n / memory.kRows & 1);
      return await(ring.parts<kColumns>(row, column) + ring.blocks);
    };
    auto& result = memory.rows[slot].results[column];
    using Result = RowResult<T, kBackward, kColumns>;
    if constexpr (kBackward) {
      const GradientScale scale = RowDivisor<T>(c, ring.denominator(c, row, column)).scale(c);
      result = Result(make_gradient<Wide<T>>(sum(), scale));
    } else if constexpr (kColumns == 1) {
      result = sum();
    } else {
      result = Result(c, sum());
    }
    if constexpr (kColumns > 1) __syncwarp((1u << kColumns) - 1);
    if (column == 0) arrive_at(shared_address(&memory.barriers.total[slot]));
  }
}

// A warp that divides chunks, each kRingWarps-th.
template <typename T, bool kBackward, int kColumns>
__device__ __forceinline__ void divide_rows(const Call& c, const Ring& ring,
                                            const Memory<T, kBackward, kColumns>& memory, int warp) {
  const StageAddresses addresses = memory.addresses();
  Turn turn(ring, warp);
  int first = warp;
  unsigned n = 0;
  for (unsigned row = ring.group; row < ring.rows; row += ring.groups, ++n, first -= ring.chunks) {
    if (first >= ring.chunks) continue;
    const auto next_chunk = [&] {
      await_phase(addresses.full(turn.stage), turn.round & 1);
      const Chunk chunk = addresses.chunk(turn.stage);
      if constexpr (kColumns == 1) {
        return WarpChunk<T, kBackward>(c, ring, row, first, chunk);
      } else {
        return TurnsChunk<T, kBackward, kColumns>(c, ring, row, first, chunk, ring.place<kBackward>(turn.stage));
      }
    };
    auto chunk = next_chunk();
    await_phase(shared_address(&memory.barriers.total[n % memory.kRows]), n / memory.kRows & 1);
    const auto& results = memory.rows[n % memory.kRows].results;
    const auto write_all = [&](const auto& write) {
      while (true) {
        write();
        __syncwarp();
        if (threadIdx.x % 32 == 0) arrive_at(addresses.empty(turn.stage));
        first += kRingWarps;
        turn.next(kRingWarps);
        if (first >= ring.chunks) break;
        chunk = next_chunk();
      }
    };
    if constexpr (kColumns == 1) {
      WarpChunk<T, kBackward>::with_total(c, results[0],
                                          [&](const auto& finish) { write_all([&] { chunk.write(finish, c); }); });
    } else {
      typename TurnsChunk<T, kBackward, kColumns>::Own own[kColumns];
      chunk.own_results(results, own);
      write_all([&] { chunk.write(results, own, c); });
    }
  }
}

#endif

template <typename T, bool kBackward, int kColumns>
__global__ void __launch_bounds__(kRingThreads, 1)
    kernel(const __grid_constant__ Call c, const __grid_constant__ Launch launch) {
#if L1NORM_BULK_COPY
  __shared__ Memory<T, kBackward, kColumns> memory;
  static_assert(sizeof memory <= ring_other_shared(kColumns));
  const Ring ring(launch);
  memory.start(launch);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  // Those that load need not wait for the scratch memory.
  if (warp >= kRingLoaders) await_stream();
  if (warp < kRingLoaders) {
    load_rows<T, kBackward, kColumns>(c, ring, memory, warp);
  } else if (warp == kRingLoaders) {
    if (ring.blocks <= 32) {
      add_rows<T, kBackward, kColumns, 1>(c, ring, memory);
    } else if (ring.blocks <= 96) {
      add_rows<T, kBackward, kColumns, 3>(c, ring, memory);
    } else {
      add_rows<T, kBackward, kColumns, kRingBlocks / 32>(c, ring, memory);
    }
  } else if (warp == kRingLoaders + 1) {
    await_rows<T, kBackward, kColumns>(c, ring, memory);
  } else if (warp < kRingLoaders + kRingWarps + 2) {
    sum_rows<T, kBackward, kColumns>(c, ring, memory, warp - kRingLoaders - 2);
  } else {
    divide_rows<T, kBackward, kColumns>(c, ring, memory, warp - kRingLoaders - kRingWarps - 2);
  }
#endif
}

// beside: from the denominator of one of the rows that take turns to the next.
template <typename T, bool kBackward, int kColumns>
cudaError_t launch(const Call& c, const RingPlan& plan, int64_t beside, void* scratch, cudaStream_t stream) {
  const auto function = kernel<T, kBackward, kColumns>;
  static Prepared prepared;
  const int shared_bytes = plan.stages * plan.chunk_bytes * (kBackward ? 2 : 1);
  cudaError_t error = prepared.for_launch(c.device, reinterpret_cast<const void*>(function), shared_bytes);
  if (error != cudaSuccess) return error;
  const int64_t rows = c.geometry.rows.count;
  error = unset_scratch(c, scratch, ring_scratch_bytes(plan, rows * kColumns), stream);
  if (error != cudaSuccess) return error;
  const Launch how{plan, static_cast<unsigned>(rows), beside, static_cast<double2*>(scratch)};
  return launch_at_once(c.starts_early, function, int64_t{plan.groups} * plan.blocks_a_row, kRingThreads,
                        static_cast<size_t>(shared_bytes), stream, c, how);
}

}  // namespace ring_kernel

template <DType D>
cudaError_t ring(const Call& call, const RingPlan& plan, void* scratch, cudaStream_t stream) {
  using T = typename ElementOf<D>::type;
  return call.grad == nullptr ? ring_kernel::launch<T, false, 1>(call, plan, 0, scratch, stream)
                              : ring_kernel::launch<T, true, 1>(call, plan, 0, scratch, stream);
}

namespace ring_kernel {

// Of runs in the place of rows.
template <typename T, bool kBackward>
cudaError_t launch_turns(const Call& c, const RingPlan& plan, int64_t beside, void* scratch, cudaStream_t stream) {
  switch (plan.columns) {
    case 2:
      return launch<T, kBackward, 2>(c, plan, beside, scratch, stream);
    case 3:
      return launch<T, kBackward, 3>(c, plan, beside, scratch, stream);
    case 4:
      return launch<T, kBackward, 4>(c, plan, beside, scratch, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace ring_kernel

template <DType D>
cudaError_t ring_of_turns(const Call& call, const RingPlan& plan, void* scratch, cudaStream_t stream) {
  using T = typename ElementOf<D>::type;
  Call c = call;
  const RunsOfTurns runs(call.geometry, kPackBytes / sizeof(T));
  c.geometry = runs.geometry;
  return call.grad == nullptr ? ring_kernel::launch_turns<T, false>(c, plan, runs.beside, scratch, stream)
                              : ring_kernel::launch_turns<T, true>(c, plan, runs.beside, scratch, stream);
}

}  // namespace l1norm::cuda
