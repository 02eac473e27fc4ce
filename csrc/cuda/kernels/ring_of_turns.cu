#include "ring.cuh"

namespace l1norm::cuda {
template cudaError_t ring_of_turns<DType::kHalf>(const Call&, const RingPlan&, void*, cudaStream_t);
template cudaError_t ring_of_turns<DType::kBFloat16>(const Call&, const RingPlan&, void*, cudaStream_t);
template cudaError_t ring_of_turns<DType::kFloat>(const Call&, const RingPlan&, void*, cudaStream_t);
}  // namespace l1norm::cuda
