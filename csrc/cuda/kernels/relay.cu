#include "relay.cuh"

namespace l1norm::cuda {
template cudaError_t relay<DType::kHalf>(const Call&, const RelayPlan&, void*, cudaStream_t);
template cudaError_t relay<DType::kBFloat16>(const Call&, const RelayPlan&, void*, cudaStream_t);
template cudaError_t relay<DType::kFloat>(const Call&, const RelayPlan&, void*, cudaStream_t);
template cudaError_t relay<DType::kDouble>(const Call&, const RelayPlan&, void*, cudaStream_t);
}  // namespace l1norm::cuda
