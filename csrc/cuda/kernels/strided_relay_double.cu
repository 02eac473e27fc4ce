#include "strided_relay.cuh"

namespace l1norm::cuda {
template cudaError_t strided_relay<DType::kDouble>(const Call&, const StridedRelayPlan&, void*, cudaStream_t);
}  // namespace l1norm::cuda
