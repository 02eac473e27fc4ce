// Kernels that start early: their blocks are there before what the stream did before has ended.
#pragma once

namespace l1norm::cuda {

// Until all of that has ended and can be seen: ahead of a thread's first access to global memory. What the stream does
// next may start early then, and not before: it finds what this kernel waited for.
__device__ __forceinline__ void await_stream() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile(
      "griddepcontrol.wait;\n"
      "griddepcontrol.launch_dependents;" ::
          : "memory");
#endif
}

}  // namespace l1norm::cuda
