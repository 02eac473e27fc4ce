// PyTorch's current CUDA stream, by a symbol that only a PyTorch with CUDA has.
#pragma once

#include <torch/csrc/inductor/aoti_torch/c/shim.h>

#include <cstdint>

// Weak, so that the binary loads where PyTorch has no CUDA.
extern "C" __attribute__((weak)) AOTITorchError aoti_torch_get_current_cuda_stream(int32_t device_index,
                                                                                   void** ret_stream);

namespace l1norm::cuda {

inline bool has_stream_entry_point() { return aoti_torch_get_current_cuda_stream != nullptr; }

}  // namespace l1norm::cuda
