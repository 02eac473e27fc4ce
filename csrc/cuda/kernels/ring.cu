#include "ring.cuh"

namespace l1norm::cuda {
template cudaError_t ring<DType::kHalf>(const Call&, const RingPlan&, void*, cudaStream_t);
template cudaError_t ring<DType::kBFloat16>(const Call&, const RingPlan&, void*, cudaStream_t);
template cudaError_t ring<DType::kFloat>(const Call&, const RingPlan&, void*, cudaStream_t);
template cudaError_t ring<DType::kDouble>(const Call&, const RingPlan&, void*, cudaStream_t);
}  // namespace l1norm::cuda
