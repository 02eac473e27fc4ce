// Rows of several runs of neighbours that begin at any place of a pack, in pieces that lanes share: in the registers of
// a cluster of blocks, or, where it holds no row, in chunks, of which some blocks sum each and others, behind them,
// divide it. Without a cast; not of doubles.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

#include "../../call.h"
#include "../plan.h"
#include "relay.h"

namespace l1norm::cuda {

// What a launch needs of device memory, aligned to 16 bytes.
inline size_t runs_scratch_bytes(const RunsPlan& plan, int64_t rows) {
  return plan.cluster > 0 ? 0 : relay_scratch_bytes(plan.relay, rows);
}

// Launches on the current device.
template <DType T>
cudaError_t runs(const Call& call, const RunsPlan& plan, void* scratch, cudaStream_t stream);

extern template cudaError_t runs<DType::kHalf>(const Call&, const RunsPlan&, void*, cudaStream_t);
extern template cudaError_t runs<DType::kBFloat16>(const Call&, const RunsPlan&, void*, cudaStream_t);
extern template cudaError_t runs<DType::kFloat>(const Call&, const RunsPlan&, void*, cudaStream_t);

}  // namespace l1norm::cuda
