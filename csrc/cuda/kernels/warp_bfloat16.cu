#include "warp.cuh"

namespace l1norm::cuda {
template cudaError_t warp<DType::kBFloat16>(const Call&, const WarpPlan&, cudaStream_t);
}
