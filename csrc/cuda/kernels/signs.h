// Gradients that are one number for all elements, of rows of neighbours: a block reads a row once and keeps nothing but
// its signs, two bits an element, as no more of it counts once its dot product is known.
#pragma once

#include <cuda_runtime.h>

#include "../../call.h"
#include "../device.h"

namespace l1norm::cuda {

// Whether it is the fastest kernel for them, where rows are of neighbours and input and output lie alike in packs.
bool takes_signs(const Geometry& g, int64_t element_size, const Device& device);

// Launches on the current device.
cudaError_t signs(const Call& call, cudaStream_t stream);

}  // namespace l1norm::cuda
