#include "slab.cuh"

namespace l1norm::cuda {
template cudaError_t slab<DType::kBFloat16>(const Call&, const SlabPlan&, cudaStream_t);
}
