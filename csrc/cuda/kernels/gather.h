// Short rows that lie anyhow in memory, a thread or some lanes a row: tiles of them pass through shared memory, whose
// elements each operand gives or takes in the order in which they lie there. Without a cast.
#pragma once

#include <cuda_runtime.h>

#include "../../call.h"
#include "../plan.h"

namespace l1norm::cuda {

// Launches on the current device.
template <DType T>
cudaError_t gather(const Call& call, const GatherPlan& plan, cudaStream_t stream);

extern template cudaError_t gather<DType::kHalf>(const Call&, const GatherPlan&, cudaStream_t);
extern template cudaError_t gather<DType::kBFloat16>(const Call&, const GatherPlan&, cudaStream_t);
extern template cudaError_t gather<DType::kFloat>(const Call&, const GatherPlan&, cudaStream_t);
extern template cudaError_t gather<DType::kDouble>(const Call&, const GatherPlan&, cudaStream_t);

}  // namespace l1norm::cuda
