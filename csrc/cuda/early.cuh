// Kernels that start early: their blocks are there before what the stream did before has ended.
#pragma once

#include "../call.h"
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

// Asks memory for an operand, which arrives in the L2 cache while the kernels ahead still run. What those write to it
// goes there, too. Each block asks for as much, which is its own where blocks take rows in turn. A function of its own:
// inlined, some kernels take more registers for all the rest, and some would spill.
static __device__ __noinline__ void ask_ahead(const char* operand, unsigned runs, unsigned bytes, int64_t stride) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  const unsigned lines = (bytes - 1) / kLineBytes + 1, all = runs * lines;
  // Rounded up, or one more: a division of integers would take twice as long.
  const float quotient = __fdividef(static_cast<float>(all - 1), static_cast<float>(gridDim.x));
  const unsigned share = static_cast<unsigned>(quotient) + 1;
  const unsigned first = blockIdx.x * share, end = min(first + share, all);
#pragma unroll 1
  for (unsigned k = first + threadIdx.x; k < end; k += blockDim.x) {
    const unsigned run = runs == 1 ? 0 : k / lines;
    asm volatile("prefetch.global.L2 [%0];" ::"l"(operand + run * stride + (k - run * lines) * kLineBytes));
  }
#endif
}

// As above, of a call, if it asks for any: ahead of everything else, while registers are free.
template <bool kBackward>
__device__ __forceinline__ void ask_ahead(const Call& c) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  const auto ask = [](const void* operand, const Ahead& ahead) {
    if (ahead.runs == 0) return;
    ask_ahead(static_cast<const char*>(operand), static_cast<unsigned>(ahead.runs), static_cast<unsigned>(ahead.bytes),
              ahead.stride);
  };
  ask(c.input, c.input_ahead);
  if constexpr (kBackward) ask(c.grad, c.grad_ahead);
#endif
}

// Blocks that hold all that they read until its sum is known load, wait and store in step if they begin together, and
// memory idles while they wait. So each of the first ones begins when those before it have read what is theirs.
__device__ __forceinline__ void wait_for_turn(const Stagger& stagger, unsigned group) {
  if (group >= stagger.groups) return;
  const unsigned wait = group * stagger.cycles, begin = static_cast<unsigned>(clock());
  while (static_cast<unsigned>(clock()) - begin < wait) __nanosleep(100);
}

}  // namespace l1norm::cuda
