#include "column_tile.cuh"

namespace l1norm::cuda {
template cudaError_t column_tile<DType::kFloat>(const Call&, const ColumnTilePlan&, cudaStream_t);
}
