// Rows that take turns in dense runs of memory, as those of a dim in the middle or in front: a run in the shared memory
// of a block or a cluster of blocks, read once and written once by the copy engine. Without a cast; no gradients of
// doubles.
#pragma once

#include <cuda_runtime.h>

#include "../../call.h"
#include "../plan.h"

namespace l1norm::cuda {

// Launches on the current device.
template <DType T>
cudaError_t slab(const Call& call, const SlabPlan& plan, cudaStream_t stream);

extern template cudaError_t slab<DType::kHalf>(const Call&, const SlabPlan&, cudaStream_t);
extern template cudaError_t slab<DType::kBFloat16>(const Call&, const SlabPlan&, cudaStream_t);
extern template cudaError_t slab<DType::kFloat>(const Call&, const SlabPlan&, cudaStream_t);
extern template cudaError_t slab<DType::kDouble>(const Call&, const SlabPlan&, cudaStream_t);

}  // namespace l1norm::cuda
