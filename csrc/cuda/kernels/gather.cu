#include "gather.cuh"

namespace l1norm::cuda {
template cudaError_t gather<DType::kHalf>(const Call&, const GatherPlan&, cudaStream_t);
template cudaError_t gather<DType::kBFloat16>(const Call&, const GatherPlan&, cudaStream_t);
template cudaError_t gather<DType::kFloat>(const Call&, const GatherPlan&, cudaStream_t);
template cudaError_t gather<DType::kDouble>(const Call&, const GatherPlan&, cudaStream_t);
}  // namespace l1norm::cuda
