#include "tile.cuh"

namespace l1norm::cuda {
template cudaError_t tile<DType::kBFloat16>(const Call&, const TilePlan&, cudaStream_t);
}
