#include "split.cuh"

namespace l1norm::cuda {
template cudaError_t split<DType::kFloat>(const Call&, const SplitPlan&, void*, cudaStream_t);
}  // namespace l1norm::cuda
