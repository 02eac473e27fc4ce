// A row in the registers of one block, or of a cluster of blocks: read once, written once. Rows whose elements are
// neighbours in memory, without a cast. Clusters need compute capability 9.0.
#pragma once

#include <cuda_runtime.h>

#include "../../call.h"
#include "../plan.h"

namespace l1norm::cuda {

// Launches on the current device.
template <DType T>
cudaError_t resident(const Call& call, const ResidentPlan& plan, cudaStream_t stream);

extern template cudaError_t resident<DType::kHalf>(const Call&, const ResidentPlan&, cudaStream_t);
extern template cudaError_t resident<DType::kBFloat16>(const Call&, const ResidentPlan&, cudaStream_t);
extern template cudaError_t resident<DType::kFloat>(const Call&, const ResidentPlan&, cudaStream_t);
extern template cudaError_t resident<DType::kDouble>(const Call&, const ResidentPlan&, cudaStream_t);

}  // namespace l1norm::cuda
