#include "warp_columns.cuh"

namespace l1norm::cuda {
template cudaError_t warp_columns<DType::kHalf>(const Call&, const WarpColumnsPlan&, cudaStream_t);
template cudaError_t warp_columns<DType::kBFloat16>(const Call&, const WarpColumnsPlan&, cudaStream_t);
template cudaError_t warp_columns<DType::kFloat>(const Call&, const WarpColumnsPlan&, cudaStream_t);
}  // namespace l1norm::cuda
