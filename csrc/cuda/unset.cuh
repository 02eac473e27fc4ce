// Device memory whose bytes are all kUnset, for blocks that hand sums to each other.
#pragma once

#include <algorithm>

#include "early.cuh"
#include "launch.h"
#include "reduce.cuh"

namespace l1norm::cuda {

// Small blocks, which leave room for those of the launch that follows, and no more than are there at once.
constexpr int kUnsetThreads = 64;
constexpr int kUnsetBlocks = 1024;

static __global__ void unset(uint4* scratch, const int64_t packs) {
  await_stream();
  for (int64_t i = blockIdx.x * kUnsetThreads + threadIdx.x; i < packs; i += gridDim.x * kUnsetThreads) {
    scratch[i] = make_uint4(~0u, ~0u, ~0u, ~0u);
  }
}

// Whole packs. Where the call may start early, so may the launch that follows: what the stream did before this has
// ended then, and ahead of its first access to scratch it calls await_stream().
inline cudaError_t unset_scratch(const Call& c, void* scratch, size_t bytes, cudaStream_t stream) {
  if (!c.starts_early) return cudaMemsetAsync(scratch, kUnset, bytes, stream);
  const int64_t packs = static_cast<int64_t>(bytes / kPackBytes);
  const int64_t blocks = std::clamp<int64_t>(packs / kUnsetThreads, 1, kUnsetBlocks);
  return launch_in_stream(c, unset, blocks, kUnsetThreads, 0, 1, stream, static_cast<uint4*>(scratch), packs);
}

}  // namespace l1norm::cuda
