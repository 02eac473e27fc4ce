// Rows of up to a few thousand bytes in the registers of a warp or a part of one: read once, written once, no barrier.
// Rows whose elements are neighbours in memory, without a cast.
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
