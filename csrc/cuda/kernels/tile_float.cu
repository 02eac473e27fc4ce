#include "tile.cuh"

namespace l1norm::cuda {
template cudaError_t tile<DType::kFloat>(const Call&, const TilePlan&, cudaStream_t);
}
