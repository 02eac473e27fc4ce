// Columns longer than a cluster holds: all blocks walk over windows of them in step, each with the same steps in a ring
// of shared memory, so that each element is read once. Float32, of steps that lie alike in packs in all operands.
#pragma once

#include <cuda_runtime.h>

#include "../../call.h"
#include "../plan.h"

namespace l1norm::cuda {

// Launches on the current device; scratch: of the plan's bytes, aligned to 16. cudaErrorCooperativeLaunchTooLarge where
// the device does not take all blocks at once.
cudaError_t column_ring(const Call& call, const ColumnRingPlan& plan, void* scratch, cudaStream_t stream);

}  // namespace l1norm::cuda
