// The ring kernel, instantiated for each dtype by ring.cu.
#pragma once

#include "../gradient.cuh"
#include "../launch.h"
#include "../reduce.cuh"
#include "../ring.cuh"
#include "../unset.cuh"
#include "ring.h"

namespace l1norm::cuda {
namespace ring_kernel {

#if L1NORM_BULK_COPY

// A warp that loads chunks, each kRingLoaders-th, as soon as there is room for one.
template <typename T, bool kBackward>
__device__ __forceinline__ void load_rows(const Call& c, const Ring& ring, Memory<T, kBackward>& memory, int warp) {
  if (threadIdx.x % 32 != 0) return;
  Turn turn(ring, warp);
  int k = warp;  // of the row's chunks
  for (unsigned row = ring.group; row < ring.rows; row += ring.groups) {
    const Row<T> at(c, ring, row);
    for (; k < ring.chunks; k += kRingLoaders, turn.next(kRingLoaders)) {
      const Chunk chunk = at.chunk(k, turn.stage * ring.chunk_bytes * (kBackward ? 2 : 1));
      const int bytes = chunk.packs * kPackBytes;
      const uint32_t barrier = shared_address(&memory.barriers.full[turn.stage]);
      if (turn.round > 0) await_phase(shared_address(&memory.barriers.empty[turn.stage]), (turn.round - 1) & 1);
      memory.chunks[turn.stage] = chunk;  // before the barrier: who waits for that sees it
      expect_bytes(barrier, bytes * (kBackward ? 2 : 1));
      if (bytes == 0) continue;
      const auto copy = [&](int place, const unsigned char* start) {
        copy_bulk<kCopied<kBackward>>(staged(place), start + (chunk.to - at.y), bytes, barrier);
      };
      copy(chunk.place, at.x);
      if constexpr (kBackward) copy(chunk.place + ring.chunk_bytes, at.g);
    }
    k -= ring.chunks;
  }
}

// A warp that sums chunks, each kRingWarps-th. What the warps of a row leave in shared memory the last one hands on.
template <typename T, bool kBackward>
__device__ __forceinline__ void sum_rows(const Call& c, const Ring& ring, Memory<T, kBackward>& memory, int warp) {
  using TotalOf = Total<T, kBackward>;
  const int lane = static_cast<int>(threadIdx.x) % 32, warps = min(ring.chunks, kRingWarps);
  Turn turn(ring, warp);
  int first = warp;  // its next chunk, counted from the row's first one
  unsigned n = 0;    // rows
  for (unsigned row = ring.group; row < ring.rows; row += ring.groups, ++n, first -= ring.chunks) {
    if (first >= ring.chunks) continue;
    double by = 1.0;
    if constexpr (kBackward && sizeof(T) == 8) by = dot_scale_of<T>(c, c.geometry.rows.at(row).denominator);
    Least<T> least;
    const auto add = [&](auto& tally) {
      Turn t = turn;
      for (int k = first; k < ring.chunks; k += kRingWarps, t.next(kRingWarps)) {
        await_phase(shared_address(&memory.barriers.full[t.stage]), t.round & 1);
        WarpChunk<T, kBackward>(c, ring, row, k, memory.chunk(t.stage)).add(tally, least, by);
      }
    };
    Sum sum;
    if constexpr (kBackward) {
      sum = dot_of<T>(add);
    } else {
      sum = sum_of<Tally<T>>(least, add);
    }
    const int mine = first % kRingWarps;
    for (; first < ring.chunks; first += kRingWarps) turn.next(kRingWarps);
    TotalOf total = warp_sum(as_total<TotalOf>(sum));
    RowInRing<T, kBackward>& shared = memory.rows[n % kRingRows];
    int before = 0;
    if (lane == 0) {
      shared.sums[mine] = both_words(total);
      __threadfence_block();
      before = atomicAdd(&shared.there, 1);
      __threadfence_block();
    }
    if (__shfl_sync(0xffffffffu, before, 0) < warps - 1) continue;
    __syncwarp();  // what lane 0 has seen, all lanes see
    const double2 part = lane < warps ? shared.sums[lane] : double2{};
    total = warp_sum<kRingWarps>(as_total<TotalOf>({part.x, part.y}));
    if (lane == 0) {
      shared.there = 0;
      publish(ring.parts(row) + ring.rank, Sum{total});
      arrive_at(shared_address(&memory.barriers.summed[n % kRingRows]));
    }
  }
}

// The warp that adds up what the blocks of a row have summed, up to kEach sums a lane, for every blocks-th row: blocks
// that each read all of it delay each other.
template <typename T, bool kBackward, int kEach>
__device__ __forceinline__ void add_rows(const Call& c, const Ring& ring, const Memory<T, kBackward>& memory) {
  const int lane = static_cast<int>(threadIdx.x) % 32, count = static_cast<int>(ring.blocks);
  unsigned n = ring.rank;
  for (unsigned row = ring.group + n * ring.groups; row < ring.rows;
       row += ring.blocks * ring.groups, n += ring.blocks) {
    // Not sooner: reads of what is not there yet delay others.
    await_phase(shared_address(&memory.barriers.summed[n % kRingRows]), n / kRingRows & 1);
    Sum parts[kEach];
    for (bool there = false; !there;) {
      there = true;
#pragma unroll
      for (int k = 0; k < kEach; ++k) parts[k] = peek(ring.parts(row) + min(lane + k * 32, count - 1));
#pragma unroll
      for (int k = 0; k < kEach; ++k) there &= !is_unset(parts[k]);
    }
    Sum sum;
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
      if (lane + k * 32 < count) sum = sum + parts[k];
    }
    sum = warp_sum(sum);
    if (lane == 0) {
      publish(ring.parts(row) + count, sum);
      if (!kBackward && c.denominator != nullptr) write_denominator<T>(c, c.geometry.rows.at(row).denominator, sum);
    }
  }
}

// The thread that waits for rows' sums.
template <typename T, bool kBackward>
__device__ __forceinline__ void await_rows(const Call& c, const Ring& ring, Memory<T, kBackward>& memory) {
  if (threadIdx.x % 32 != 0) return;
  unsigned n = 0;
  for (unsigned row = ring.group; row < ring.rows; row += ring.groups, ++n) {
    const unsigned slot = n % kRingRows;
    const auto sum = [&] {
      await_phase(shared_address(&memory.barriers.summed[slot]), n / kRingRows & 1);
      return await(ring.parts(row) + ring.blocks);
    };
    if constexpr (kBackward) {
      const GradientScale scale = RowDivisor<T>(c, c.geometry.rows.at(row).denominator).scale(c);
      memory.rows[slot].total = make_gradient<Wide<T>>(sum(), scale);
    } else {
      memory.rows[slot].total = sum();
    }
    arrive_at(shared_address(&memory.barriers.total[slot]));
  }
}

// A warp that divides chunks, each kRingWarps-th.
template <typename T, bool kBackward>
__device__ __forceinline__ void divide_rows(const Call& c, const Ring& ring, const Memory<T, kBackward>& memory,
                                            int warp) {
  Turn turn(ring, warp);
  int first = warp;
  unsigned n = 0;
  for (unsigned row = ring.group; row < ring.rows; row += ring.groups, ++n, first -= ring.chunks) {
    if (first >= ring.chunks) continue;
    const auto next_chunk = [&] {
      await_phase(shared_address(&memory.barriers.full[turn.stage]), turn.round & 1);
      return WarpChunk<T, kBackward>(c, ring, row, first, memory.chunk(turn.stage));
    };
    WarpChunk<T, kBackward> chunk = next_chunk();
    await_phase(shared_address(&memory.barriers.total[n % kRingRows]), n / kRingRows & 1);
    WarpChunk<T, kBackward>::with_total(c, memory.rows[n % kRingRows].total, [&](const auto& finish) {
      while (true) {
        chunk.write(finish, c);
        __syncwarp();
        if (threadIdx.x % 32 == 0) arrive_at(shared_address(&memory.barriers.empty[turn.stage]));
        first += kRingWarps;
        turn.next(kRingWarps);
        if (first >= ring.chunks) break;
        chunk = next_chunk();
      }
    });
  }
}

#endif

template <typename T, bool kBackward>
__global__ void __launch_bounds__(kRingThreads, 1)
    kernel(const __grid_constant__ Call c, const __grid_constant__ Launch launch) {
#if L1NORM_BULK_COPY
  __shared__ Memory<T, kBackward> memory;
  static_assert(sizeof memory <= kRingOtherShared);
  const Ring ring(launch);
  memory.start(launch);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  // Those that load need not wait for the scratch memory.
  if (warp >= kRingLoaders) await_stream();
  if (warp < kRingLoaders) {
    load_rows<T, kBackward>(c, ring, memory, warp);
  } else if (warp == kRingLoaders) {
    if (ring.blocks <= 32) {
      add_rows<T, kBackward, 1>(c, ring, memory);
    } else if (ring.blocks <= 64) {
      add_rows<T, kBackward, 2>(c, ring, memory);
    } else {
      add_rows<T, kBackward, kRingBlocks / 32>(c, ring, memory);
    }
  } else if (warp == kRingLoaders + 1) {
    await_rows<T, kBackward>(c, ring, memory);
  } else if (warp < kRingLoaders + kRingWarps + 2) {
    sum_rows<T, kBackward>(c, ring, memory, warp - kRingLoaders - 2);
  } else {
    divide_rows<T, kBackward>(c, ring, memory, warp - kRingLoaders - kRingWarps - 2);
  }
#endif
}

template <typename T, bool kBackward>
cudaError_t launch(const Call& c, const RingPlan& plan, void* scratch, cudaStream_t stream) {
  const auto function = kernel<T, kBackward>;
  static Prepared prepared;
  const int shared_bytes = plan.stages * plan.chunk_bytes * (kBackward ? 2 : 1);
  cudaError_t error = prepared.for_launch(c.device, reinterpret_cast<const void*>(function), shared_bytes);
  if (error != cudaSuccess) return error;
  error = unset_scratch(c, scratch, ring_scratch_bytes(plan, c.geometry.rows.count), stream);
  if (error != cudaSuccess) return error;
  const Launch how{plan, static_cast<unsigned>(c.geometry.rows.count), static_cast<double2*>(scratch)};
  return launch_at_once(c.starts_early, function, int64_t{plan.groups} * plan.blocks_a_row, kRingThreads,
                        static_cast<size_t>(shared_bytes), stream, c, how);
}

}  // namespace ring_kernel

template <DType D>
cudaError_t ring(const Call& call, const RingPlan& plan, void* scratch, cudaStream_t stream) {
  using T = typename ElementOf<D>::type;
  return call.grad == nullptr ? ring_kernel::launch<T, false>(call, plan, scratch, stream)
                              : ring_kernel::launch<T, true>(call, plan, scratch, stream);
}

}  // namespace l1norm::cuda
