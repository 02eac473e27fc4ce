#include "slab.cuh"

namespace l1norm::cuda {
template cudaError_t slab<DType::kFloat>(const Call&, const SlabPlan&, cudaStream_t);
}
