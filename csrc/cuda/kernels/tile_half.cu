#include "tile.cuh"

namespace l1norm::cuda {
template cudaError_t tile<DType::kHalf>(const Call&, const TilePlan&, cudaStream_t);
}
