// Rows whose elements are no neighbours in memory, or no more than a few of them: side by side in the registers of a
// warp, a block or a cluster of blocks, read once, written once. Without a cast.
#pragma once

#include <cuda_runtime.h>

#include "../../call.h"
#include "../plan.h"

namespace l1norm::cuda {

// Launches on the current device.
template <DType T>
cudaError_t strided(const Call& call, const StridedPlan& plan, cudaStream_t stream);

extern template cudaError_t strided<DType::kHalf>(const Call&, const StridedPlan&, cudaStream_t);
extern template cudaError_t strided<DType::kBFloat16>(const Call&, const StridedPlan&, cudaStream_t);
extern template cudaError_t strided<DType::kFloat>(const Call&, const StridedPlan&, cudaStream_t);
extern template cudaError_t strided<DType::kDouble>(const Call&, const StridedPlan&, cudaStream_t);

}  // namespace l1norm::cuda
