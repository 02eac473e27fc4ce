// Columns longer than a cluster holds: all blocks walk over windows of them in step, each with the same steps in a ring
// of shared memory, so that each element is read once. Float32, of steps that lie alike in packs in all operands, and
// halves whose windows are whole.
#pragma once

#include <cuda_runtime.h>

#include "../../call.h"
#include "../plan.h"

namespace l1norm::cuda {

// Launches on the current device; scratch: of the plan's bytes, aligned to 16. cudaErrorCooperativeLaunchTooLarge where
// the device does not take all blocks at once.
template <DType T>
cudaError_t column_ring(const Call& call, const ColumnRingPlan& plan, void* scratch, cudaStream_t stream);

extern template cudaError_t column_ring<DType::kHalf>(const Call&, const ColumnRingPlan&, void*, cudaStream_t);
extern template cudaError_t column_ring<DType::kBFloat16>(const Call&, const ColumnRingPlan&, void*, cudaStream_t);
extern template cudaError_t column_ring<DType::kFloat>(const Call&, const ColumnRingPlan&, void*, cudaStream_t);

}  // namespace l1norm::cuda
