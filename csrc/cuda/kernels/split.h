// Rows that the whole device holds, each in the registers and shared memory of many blocks: each element is read once.
// Rows whose elements are neighbours in memory, without a cast.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

#include "../../call.h"
#include "../plan.h"

namespace l1norm::cuda {

// What a launch needs of device memory, aligned to 16 bytes: a sum a block.
inline size_t split_scratch_bytes(const SplitPlan& plan, int64_t rows) {
  if (plan.blocks_a_row == 1) return 0;
  return static_cast<size_t>(rows) * static_cast<size_t>(plan.blocks_a_row) * 2 * sizeof(double);
}

// Launches on the current device. cudaErrorCooperativeLaunchTooLarge where the device does not take all blocks at once.
template <DType T>
cudaError_t split(const Call& call, const SplitPlan& plan, void* scratch, cudaStream_t stream);

extern template cudaError_t split<DType::kHalf>(const Call&, const SplitPlan&, void*, cudaStream_t);
extern template cudaError_t split<DType::kBFloat16>(const Call&, const SplitPlan&, void*, cudaStream_t);
extern template cudaError_t split<DType::kFloat>(const Call&, const SplitPlan&, void*, cudaStream_t);
extern template cudaError_t split<DType::kDouble>(const Call&, const SplitPlan&, void*, cudaStream_t);

}  // namespace l1norm::cuda
