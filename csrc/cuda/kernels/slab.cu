#include "slab.cuh"

namespace l1norm::cuda {
template cudaError_t slab<DType::kHalf>(const Call&, const SlabPlan&, cudaStream_t);
template cudaError_t slab<DType::kBFloat16>(const Call&, const SlabPlan&, cudaStream_t);
template cudaError_t slab<DType::kFloat>(const Call&, const SlabPlan&, cudaStream_t);
template cudaError_t slab<DType::kDouble>(const Call&, const SlabPlan&, cudaStream_t);
}  // namespace l1norm::cuda
