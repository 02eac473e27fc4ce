// Rows shared by many blocks, which hold them in registers and shared memory, or what fits there of a longer one: each
// element of that is read once. Rows whose elements are neighbours in memory, without a cast.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

#include "../../call.h"
#include "../plan.h"

namespace l1norm::cuda {

// What a launch needs of device memory, aligned to 128 bytes: a line a group, and two sums a block.
inline size_t split_scratch_bytes(const SplitPlan& plan) {
  if (plan.blocks_a_row == 1) return 0;
  return static_cast<size_t>(plan.groups) * (128 + static_cast<size_t>(plan.blocks_a_row) * 2 * 2 * sizeof(double));
}

// Launches on the current device. cudaErrorCooperativeLaunchTooLarge where the device does not take all blocks at once.
template <DType T>
cudaError_t split(const Call& call, const SplitPlan& plan, void* scratch, cudaStream_t stream);

extern template cudaError_t split<DType::kHalf>(const Call&, const SplitPlan&, void*, cudaStream_t);
extern template cudaError_t split<DType::kBFloat16>(const Call&, const SplitPlan&, void*, cudaStream_t);
extern template cudaError_t split<DType::kFloat>(const Call&, const SplitPlan&, void*, cudaStream_t);
extern template cudaError_t split<DType::kDouble>(const Call&, const SplitPlan&, void*, cudaStream_t);

}  // namespace l1norm::cuda
