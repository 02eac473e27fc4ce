// Compensated sums across a warp and a block.
#pragma once

#include "../exact.h"

namespace l1norm::cuda {

// Every lane gets the same bits: two_sum is commutative.
__device__ __forceinline__ Sum warp_sum(Sum sum) {
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) {
    sum = sum + Sum{__shfl_xor_sync(0xffffffffu, sum.hi, lanes), __shfl_xor_sync(0xffffffffu, sum.lo, lanes)};
  }
  return sum;
}

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

}  // namespace l1norm::cuda
