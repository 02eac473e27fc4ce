#include "two_pass.cuh"

namespace l1norm::cuda {
template cudaError_t two_pass<DType::kDouble>(const Call&, const TwoPassPlan&, cudaStream_t);
}
