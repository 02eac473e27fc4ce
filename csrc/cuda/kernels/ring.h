// Rows that groups of blocks hold in turn, each block in a ring of shared memory: each element is read once. Rows whose
// elements are neighbours in memory, without a cast, and alike in packs in input, output and gradient.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

#include "../../call.h"
#include "../plan.h"

namespace l1norm::cuda {

// What a launch needs of device memory, aligned to 16 bytes: a sum a row, be it one of several that take turns, and
// block.
inline size_t ring_scratch_bytes(const RingPlan& plan, int64_t rows) {
  return static_cast<size_t>(rows) * static_cast<size_t>(plan.blocks_a_row + 1) * 2 * sizeof(double);
}

// Launches on the current device. cudaErrorCooperativeLaunchTooLarge where the device does not take all blocks at once.
template <DType T>
cudaError_t ring(const Call& call, const RingPlan& plan, void* scratch, cudaStream_t stream);

// Of a few rows that take turns in a dense run.
template <DType T>
cudaError_t ring_of_turns(const Call& call, const RingPlan& plan, void* scratch, cudaStream_t stream);

extern template cudaError_t ring_of_turns<DType::kHalf>(const Call&, const RingPlan&, void*, cudaStream_t);
extern template cudaError_t ring_of_turns<DType::kBFloat16>(const Call&, const RingPlan&, void*, cudaStream_t);
extern template cudaError_t ring_of_turns<DType::kFloat>(const Call&, const RingPlan&, void*, cudaStream_t);
extern template cudaError_t ring<DType::kHalf>(const Call&, const RingPlan&, void*, cudaStream_t);
extern template cudaError_t ring<DType::kBFloat16>(const Call&, const RingPlan&, void*, cudaStream_t);
extern template cudaError_t ring<DType::kFloat>(const Call&, const RingPlan&, void*, cudaStream_t);
extern template cudaError_t ring<DType::kDouble>(const Call&, const RingPlan&, void*, cudaStream_t);

}  // namespace l1norm::cuda
