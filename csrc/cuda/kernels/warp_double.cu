#include "warp.cuh"

namespace l1norm::cuda {
template cudaError_t warp<DType::kDouble>(const Call&, const WarpPlan&, cudaStream_t);
}
