#include "strided.cuh"

namespace l1norm::cuda {
template cudaError_t strided<DType::kBFloat16>(const Call&, const StridedPlan&, cudaStream_t);
}
