#include "column_ring.cuh"

namespace l1norm::cuda {
template cudaError_t column_ring<DType::kFloat>(const Call&, const ColumnRingPlan&, void*, cudaStream_t);
}
