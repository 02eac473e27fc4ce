// Kernels that start early: their blocks are there before what the stream did before has ended.
#pragma once

#include "pack.cuh"

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

// Few enough that all of them are there while they wait.
constexpr unsigned kFewBlocks = 256;

// Asks memory for what a group of threads is about to read, bytes from `from` on, where a launch has few blocks: it
// arrives in the L2 cache while the kernels ahead still run. What those write to it goes there, too.
__device__ __forceinline__ void ask_ahead(const void* from, int64_t bytes, int thread, int threads) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  if (gridDim.x > kFewBlocks) return;
  const char* const start = static_cast<const char*>(from);
#pragma unroll 1
  for (int64_t at = thread * int64_t{kLineBytes}; at < bytes; at += threads * int64_t{kLineBytes}) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(start + at));
  }
#endif
}

}  // namespace l1norm::cuda
