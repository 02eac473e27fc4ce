#include "warp.cuh"

namespace l1norm::cuda {
template cudaError_t warp<DType::kFloat>(const Call&, const WarpPlan&, cudaStream_t);
}
