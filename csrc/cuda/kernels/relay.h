// Rows that no block or cluster holds, cut into chunks: blocks that sum, and behind them blocks that divide, which find
// the row in the L2 cache where it is not too long. Rows whose elements are neighbours in memory, without a cast.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

#include "../../call.h"
#include "../plan.h"

namespace l1norm::cuda {

// What a launch needs of device memory, aligned to 16 bytes: a sum a chunk and a row.
inline size_t relay_scratch_bytes(const RelayPlan& plan, int64_t rows) {
  return static_cast<size_t>(rows) * (static_cast<size_t>(plan.chunks) + 1) * 2 * sizeof(double);
}

// Launches on the current device.
template <DType T>
cudaError_t relay(const Call& call, const RelayPlan& plan, void* scratch, cudaStream_t stream);

extern template cudaError_t relay<DType::kHalf>(const Call&, const RelayPlan&, void*, cudaStream_t);
extern template cudaError_t relay<DType::kBFloat16>(const Call&, const RelayPlan&, void*, cudaStream_t);
extern template cudaError_t relay<DType::kFloat>(const Call&, const RelayPlan&, void*, cudaStream_t);
extern template cudaError_t relay<DType::kDouble>(const Call&, const RelayPlan&, void*, cudaStream_t);

}  // namespace l1norm::cuda
