// Short columns, a thread a column: tiles of columns that lie side by side pass through shared memory, so that memory
// sees 16-byte accesses wherever in a pack columns and steps begin. Without a cast.
#pragma once

#include <cuda_runtime.h>

#include "../../call.h"
#include "../plan.h"

namespace l1norm::cuda {

// Launches on the current device.
template <DType T>
cudaError_t column_tile(const Call& call, const ColumnTilePlan& plan, cudaStream_t stream);

extern template cudaError_t column_tile<DType::kHalf>(const Call&, const ColumnTilePlan&, cudaStream_t);
extern template cudaError_t column_tile<DType::kBFloat16>(const Call&, const ColumnTilePlan&, cudaStream_t);
extern template cudaError_t column_tile<DType::kFloat>(const Call&, const ColumnTilePlan&, cudaStream_t);
extern template cudaError_t column_tile<DType::kDouble>(const Call&, const ColumnTilePlan&, cudaStream_t);

}  // namespace l1norm::cuda
