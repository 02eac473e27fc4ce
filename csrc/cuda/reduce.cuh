// Compensated sums across a warp, a block and a cluster of blocks.
#pragma once

#include "../exact.h"
#include "plan.h"
#include "shared.cuh"

namespace l1norm::cuda {

// The sum of the lane whose number differs in the bit `lanes`.
__device__ __forceinline__ double shuffled(double sum, int lanes) { return __shfl_xor_sync(0xffffffffu, sum, lanes); }
__device__ __forceinline__ Sum shuffled(const Sum& sum, int lanes) {
  return {shuffled(sum.hi, lanes), shuffled(sum.lo, lanes)};
}

// The sum of each aligned group of kLanes lanes; of doubles, bits may be lost. Every lane of it gets the same bits:
// two_sum is commutative.
template <int kLanes = 32, typename Value>
__device__ __forceinline__ Value warp_sum(Value sum) {
#pragma unroll
  for (int lanes = kLanes / 2; lanes > 0; lanes /= 2) {
    sum = sum + shuffled(sum, lanes);
  }
  return sum;
}

// Halves what lanes have of kCount sums each, and adds what their peers, `mask` lanes away, have of that half.
template <int kHalf, typename Value, int kCount>
__device__ __forceinline__ void share_sums(Value (&sums)[kCount], int mask, int& first) {
  const bool upper = (static_cast<int>(threadIdx.x) & mask) != 0;
#pragma unroll
  for (int k = 0; k < kHalf; ++k) {
    const Value give = upper ? sums[k] : sums[k + kHalf], keep = upper ? sums[k + kHalf] : sums[k];
    sums[k] = keep + shuffled(give, mask);
  }
  if (upper) first += kHalf;
}

// What threads add up of what each has of a row: of gradients of halves, which are made of floats, a double.
template <typename T, bool kBackward>
using Total = std::conditional_t<kBackward && sizeof(T) == 2, double, Sum>;

template <typename Value>
__device__ __forceinline__ Value as_total(const Sum& sum) {
  if constexpr (std::is_same_v<Value, Sum>) {
    return sum;
  } else {
    return sum.hi;
  }
}

__device__ __forceinline__ double2 both_words(const Sum& sum) { return make_double2(sum.hi, sum.lo); }
__device__ __forceinline__ double2 both_words(double sum) { return make_double2(sum, 0.0); }

struct BlockSumStorage {
  double hi[32];
  double lo[32];
};

// The block's sum, in the first warp only. Blocks are whole warps. All threads must pass a barrier before storage is
// used again.
__device__ __forceinline__ Sum block_sum(Sum sum, BlockSumStorage& storage) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  sum = warp_sum(sum);
  if (warps == 1) return sum;
  if (lane == 0) {
    storage.hi[warp] = sum.hi;
    storage.lo[warp] = sum.lo;
  }
  __syncthreads();
  if (warp == 0) sum = warp_sum(lane < warps ? Sum{storage.hi[lane], storage.lo[lane]} : Sum{});
  return sum;
}

// A sum in global memory that blocks hand to each other: its bytes are all kUnset until it is there, so that it is its
// own flag, and one read brings both.
constexpr int kUnset = 0xff;

__device__ __forceinline__ void publish(double2* slot, const Sum& sum) {
  // As all bits set is a NaN, any other NaN says the same.
  const double hi = sum.hi == sum.hi ? sum.hi : __longlong_as_double(0x7ff8000000000000);
  const double lo = sum.lo == sum.lo ? sum.lo : __longlong_as_double(0x7ff8000000000000);
  asm volatile("st.relaxed.gpu.global.v2.f64 [%0], {%1, %2};" ::"l"(slot), "d"(hi), "d"(lo) : "memory");
}

// What is there by now.
__device__ __forceinline__ Sum peek(const double2* slot) {
  Sum sum;
  asm volatile("ld.relaxed.gpu.global.v2.f64 {%0, %1}, [%2];" : "=d"(sum.hi), "=d"(sum.lo) : "l"(slot) : "memory");
  return sum;
}
__device__ __forceinline__ bool is_unset(const Sum& sum) {
  return __double_as_longlong(sum.hi) == -1 || __double_as_longlong(sum.lo) == -1;
}

// Lanes whose slots are not the same one leave at different times, and what follows they do apart, shuffles as calls:
// they come together by __syncwarp().
__device__ __forceinline__ Sum await(const double2* slot) {
  Sum sum;
  do {
    sum = peek(slot);
  } while (is_unset(sum));
  return sum;
}

// The sum of so many slots, in every lane of a warp, which waits for all of them together; kEach: a lane's reads on
// their way.
template <int kEach = 1>
__device__ __forceinline__ Sum await_warp_sum(const double2* slots, int count) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  Sum sum;
#pragma unroll 1
  for (int first = lane; first - lane < count; first += kEach * 32) {
    Sum parts[kEach];
    bool there;
    do {
      there = true;
#pragma unroll
      for (int i = 0; i < kEach; ++i) parts[i] = peek(slots + min(first + i * 32, count - 1));
#pragma unroll
      for (int i = 0; i < kEach; ++i) there &= !is_unset(parts[i]);
    } while (!__all_sync(0xffffffffu, there));
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (first + i * 32 < count) sum = sum + parts[i];
    }
  }
  return warp_sum(sum);
}

// Adds every step-th slot's sum, from the first on, below end; kBatch: reads on their way. As of await(), lanes leave
// apart.
template <int kBatch = 8>
__device__ __forceinline__ Sum await_all(const double2* slots, int64_t first, int64_t end, int64_t step) {
  Sum total;
#pragma unroll 1
  for (int64_t at = first; at < end; at += kBatch * step) {
    Sum sums[kBatch];
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
      if (at + k * step < end) sums[k] = peek(slots + at + k * step);
    }
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
      if (at + k * step >= end) break;
      if (is_unset(sums[k])) sums[k] = await(slots + at + k * step);
      total = total + sums[k];
    }
  }
  return total;
}

// The sum of so many slots, in the first warp of a block of kThreads only.
template <int kThreads, int kBatch = 8>
__device__ __forceinline__ Sum await_block_sum(const double2* slots, int64_t count, BlockSumStorage& storage) {
  const Sum mine = await_all<kBatch>(slots, threadIdx.x, count, kThreads);
  __syncwarp();
  return block_sum(mine, storage);
}

// Adds up what `depth` threads have of each of `across` columns, a column every so many threads; mine: room for a sum a
// thread. The sum is in the first thread of a column.
__device__ __forceinline__ Sum add_members(Sum sum, int depth, int across, double2* mine) {
  const int thread = static_cast<int>(threadIdx.x), member = thread / across;
#pragma unroll 1
  for (int count = depth; count > 1;) {
    const int half = (count + 1) / 2;
    if (member >= half && member < count) mine[thread] = both_words(sum);
    __syncthreads();
    if (member < count - half) {
      const double2 other = mine[thread + half * across];
      sum = sum + Sum{other.x, other.y};
    }
    __syncthreads();
    count = half;
  }
  return sum;
}

// Whether launches have clusters.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
constexpr bool kHasClusters = false;
#else
constexpr bool kHasClusters = true;
#endif

// The cluster of this block, whose size the launch says; a block of its own where the architecture has none.
//
// Its blocks hand sums to each other once: each says at its begin how many bytes it expects, and waits for those alone.
// A barrier of the cluster between stores and reads makes every warp wait until what it wrote is seen by the whole GPU,
// and drops the L1 cache.
struct Cluster {
  int rank = 0, size = 1;

  __device__ __forceinline__ explicit Cluster(bool launched = true) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if (!launched) return;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
#endif
  }

  // How many sums peers, and the block itself, will store() here.
  __device__ __forceinline__ void expect(int sums) const {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if (threadIdx.x == 0) {
      asm volatile(
          "mbarrier.init.shared::cta.b64 [%0], 1;\n"
          "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n"
          "fence.mbarrier_init.release.cluster;" ::"r"(arrivals()),
          "r"(sums * static_cast<int>(sizeof(double2)))
          : "memory");
    }
    __syncwarp();
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
  }

  // Until all blocks expect sums.
  __device__ __forceinline__ void wait() const {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
#endif
  }

  // In the peer's memory, where it lies as in this block's.
  __device__ __forceinline__ void store(double2* place, int peer, const double2& value) const {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    send(mapped_to(shared_address(place), peer), value, mapped_to(arrivals(), peer));
#endif
  }

  // Until all that is expected is there. It is no barrier of the block's threads.
  __device__ __forceinline__ void await_sums() const {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    await_phase(arrivals(), 0);
#endif
  }

 private:
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  static __device__ __forceinline__ uint32_t arrivals() {
    __shared__ uint64_t barrier;
    return shared_address(&barrier);
  }
#endif
};

// Sums that cluster_sum() keeps in each block's shared memory, a warp of the cluster one.
__host__ __device__ __forceinline__ int cluster_sums(int blocks, int threads) { return blocks * threads / 32; }

// The cluster's sum, in every thread, the same bits everywhere: parts, hi and lo, are added in the order of their
// places, rank by rank, warp by warp. Every thread calls it once, with kMany after it expects that many; without, a
// cluster is a block.
template <bool kMany>
__device__ __forceinline__ Sum cluster_sum(Sum sum, double2* parts, const Cluster& cluster) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  sum = warp_sum(sum);
  double2* const place = &parts[cluster.rank * warps + warp];
  if constexpr (kMany) {
    cluster.wait();
    if (lane < cluster.size) cluster.store(place, lane, both_words(sum));
    cluster.await_sums();
  } else {
    if (lane == 0) *place = both_words(sum);
    __syncthreads();
  }
  // All lanes in one unrolled tree, where shuffles overlap with what rounding lost (32768 x 65535 float32: 0.970, and
  // 0.966 in a loop of as few steps as there are parts for).
  const int count = cluster_sums(cluster.size, static_cast<int>(blockDim.x));
  Sum total;
  if (lane < count) total = {parts[lane].x, parts[lane].y};
#pragma unroll 1
  for (int k = lane + 32; k < count; k += 32) total = total + Sum{parts[k].x, parts[k].y};
  return warp_sum(total);
}

}  // namespace l1norm::cuda
