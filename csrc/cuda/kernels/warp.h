// Short rows in the registers of a warp, or several rows a warp. Rows whose elements are neighbours in memory, without
// a cast. Elements move one a lane: neighbouring lanes and rows keep that coalesced at any alignment and length.
#pragma once

#include <cuda_runtime.h>

#include "../../call.h"
#include "../plan.h"

namespace l1norm::cuda {

// Launches on the current device.
template <DType T>
cudaError_t warp(const Call& call, const WarpPlan& plan, cudaStream_t stream);

extern template cudaError_t warp<DType::kHalf>(const Call&, const WarpPlan&, cudaStream_t);
extern template cudaError_t warp<DType::kBFloat16>(const Call&, const WarpPlan&, cudaStream_t);
extern template cudaError_t warp<DType::kFloat>(const Call&, const WarpPlan&, cudaStream_t);
extern template cudaError_t warp<DType::kDouble>(const Call&, const WarpPlan&, cudaStream_t);

}  // namespace l1norm::cuda
