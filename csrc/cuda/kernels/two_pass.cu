#include "two_pass.cuh"

namespace l1norm::cuda {
template cudaError_t two_pass<DType::kHalf>(const Call&, const TwoPassPlan&, cudaStream_t);
template cudaError_t two_pass<DType::kBFloat16>(const Call&, const TwoPassPlan&, cudaStream_t);
template cudaError_t two_pass<DType::kFloat>(const Call&, const TwoPassPlan&, cudaStream_t);
template cudaError_t two_pass<DType::kDouble>(const Call&, const TwoPassPlan&, cudaStream_t);
}  // namespace l1norm::cuda
