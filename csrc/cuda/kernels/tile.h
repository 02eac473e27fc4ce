// Short rows, a thread a row: tiles of neighbouring rows pass through shared memory, so that memory sees 16-byte
// accesses whatever the length, or rows that divide packs come in whole ones. Contiguous rows that follow each other,
// without a cast.
#pragma once

#include <cuda_runtime.h>

#include "../../call.h"
#include "../plan.h"

namespace l1norm::cuda {

// Launches on the current device.
template <DType T>
cudaError_t tile(const Call& call, const TilePlan& plan, cudaStream_t stream);

extern template cudaError_t tile<DType::kHalf>(const Call&, const TilePlan&, cudaStream_t);
extern template cudaError_t tile<DType::kBFloat16>(const Call&, const TilePlan&, cudaStream_t);
extern template cudaError_t tile<DType::kFloat>(const Call&, const TilePlan&, cudaStream_t);
extern template cudaError_t tile<DType::kDouble>(const Call&, const TilePlan&, cudaStream_t);

}  // namespace l1norm::cuda
