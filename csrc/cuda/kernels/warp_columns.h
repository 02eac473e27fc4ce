// Short dense runs of memory in which rows take turns, as those of a dim in front of a short one: a run in the
// registers of a warp, a part of one or two, read once, written once. Without a cast; not of doubles.
#pragma once

#include <cuda_runtime.h>

#include "../../call.h"
#include "../plan.h"

namespace l1norm::cuda {

// Launches on the current device.
template <DType T>
cudaError_t warp_columns(const Call& call, const WarpColumnsPlan& plan, cudaStream_t stream);

extern template cudaError_t warp_columns<DType::kHalf>(const Call&, const WarpColumnsPlan&, cudaStream_t);
extern template cudaError_t warp_columns<DType::kBFloat16>(const Call&, const WarpColumnsPlan&, cudaStream_t);
extern template cudaError_t warp_columns<DType::kFloat>(const Call&, const WarpColumnsPlan&, cudaStream_t);

}  // namespace l1norm::cuda
