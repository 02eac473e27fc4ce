#include "runs.cuh"

namespace l1norm::cuda {
template cudaError_t runs<DType::kFloat>(const Call&, const RunsPlan&, void*, cudaStream_t);
}
