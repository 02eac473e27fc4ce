#include "gather.cuh"

namespace l1norm::cuda {
template cudaError_t gather<DType::kBFloat16>(const Call&, const GatherPlan&, cudaStream_t);
}
