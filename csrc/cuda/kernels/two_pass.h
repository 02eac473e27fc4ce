// The portable kernel: one block a row, two passes over it, any length, strides and dtypes, any GPU.
#pragma once

#include <cuda_runtime.h>

#include "../../call.h"
#include "../plan.h"

namespace l1norm::cuda {

// Launches on the current device. T is the result's type; the input's is in the call.
template <DType T>
cudaError_t two_pass(const Call& call, const TwoPassPlan& plan, cudaStream_t stream);

extern template cudaError_t two_pass<DType::kHalf>(const Call&, const TwoPassPlan&, cudaStream_t);
extern template cudaError_t two_pass<DType::kBFloat16>(const Call&, const TwoPassPlan&, cudaStream_t);
extern template cudaError_t two_pass<DType::kFloat>(const Call&, const TwoPassPlan&, cudaStream_t);
extern template cudaError_t two_pass<DType::kDouble>(const Call&, const TwoPassPlan&, cudaStream_t);

}  // namespace l1norm::cuda
