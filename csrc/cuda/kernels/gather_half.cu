#include "gather.cuh"

namespace l1norm::cuda {
template cudaError_t gather<DType::kHalf>(const Call&, const GatherPlan&, cudaStream_t);
}
