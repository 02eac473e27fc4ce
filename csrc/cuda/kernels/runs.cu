#include "runs.cuh"

namespace l1norm::cuda {
template cudaError_t runs<DType::kHalf>(const Call&, const RunsPlan&, void*, cudaStream_t);
template cudaError_t runs<DType::kBFloat16>(const Call&, const RunsPlan&, void*, cudaStream_t);
template cudaError_t runs<DType::kFloat>(const Call&, const RunsPlan&, void*, cudaStream_t);
}  // namespace l1norm::cuda
