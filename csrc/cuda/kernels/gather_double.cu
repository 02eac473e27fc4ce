#include "gather.cuh"

namespace l1norm::cuda {
template cudaError_t gather<DType::kDouble>(const Call&, const GatherPlan&, cudaStream_t);
}
