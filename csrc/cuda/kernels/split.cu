#include "split.cuh"

namespace l1norm::cuda {
template cudaError_t split<DType::kHalf>(const Call&, const SplitPlan&, void*, cudaStream_t);
template cudaError_t split<DType::kBFloat16>(const Call&, const SplitPlan&, void*, cudaStream_t);
template cudaError_t split<DType::kFloat>(const Call&, const SplitPlan&, void*, cudaStream_t);
template cudaError_t split<DType::kDouble>(const Call&, const SplitPlan&, void*, cudaStream_t);
}  // namespace l1norm::cuda
