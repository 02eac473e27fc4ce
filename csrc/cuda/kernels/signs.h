// Gradients that are one number for all elements, of rows of neighbours: a cluster of blocks reads a row once and keeps
// nothing but its signs, two bits an element, as no more of it counts once its dot product is known.
#pragma once

#include <cuda_runtime.h>

#include "../../call.h"
#include "../plan_signs.h"

namespace l1norm::cuda {

// Launches on the current device.
cudaError_t signs(const Call& call, const SignsPlan& plan, cudaStream_t stream);

}  // namespace l1norm::cuda
