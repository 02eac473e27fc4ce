// Rows whose elements are no neighbours in memory and that no cluster holds: side by side and cut into chunks, as relay
// cuts a row. Without a cast.
#pragma once

#include <cuda_runtime.h>

#include "../../call.h"
#include "../plan.h"

namespace l1norm::cuda {

// Launches on the current device. scratch: plan.scratch_bytes of its memory, aligned to 16.
template <DType T>
cudaError_t strided_relay(const Call& call, const StridedRelayPlan& plan, void* scratch, cudaStream_t stream);

extern template cudaError_t strided_relay<DType::kHalf>(const Call&, const StridedRelayPlan&, void*, cudaStream_t);
extern template cudaError_t strided_relay<DType::kBFloat16>(const Call&, const StridedRelayPlan&, void*, cudaStream_t);
extern template cudaError_t strided_relay<DType::kFloat>(const Call&, const StridedRelayPlan&, void*, cudaStream_t);
extern template cudaError_t strided_relay<DType::kDouble>(const Call&, const StridedRelayPlan&, void*, cudaStream_t);

}  // namespace l1norm::cuda
