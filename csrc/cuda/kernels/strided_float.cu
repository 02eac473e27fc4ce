#include "strided.cuh"

namespace l1norm::cuda {
template cudaError_t strided<DType::kFloat>(const Call&, const StridedPlan&, cudaStream_t);
}
