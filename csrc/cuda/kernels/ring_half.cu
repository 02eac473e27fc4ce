#include "ring.cuh"

namespace l1norm::cuda {
template cudaError_t ring<DType::kHalf>(const Call&, const RingPlan&, void*, cudaStream_t);
}  // namespace l1norm::cuda
