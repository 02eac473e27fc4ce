#include "resident.cuh"

namespace l1norm::cuda {
template cudaError_t resident<DType::kFloat>(const Call&, const ResidentPlan&, cudaStream_t);
}
