#include "column_tile.cuh"

namespace l1norm::cuda {
template cudaError_t column_tile<DType::kDouble>(const Call&, const ColumnTilePlan&, cudaStream_t);
}
