#if defined(__x86_64__)
#include "kernels.h"
#include "vector_includes.h"

// Standard headers stay above: their inline functions must not be compiled for this instruction set.
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#endif

#define L1NORM_CAPABILITY kAvx2
#define L1NORM_CAPABILITY_NAME "avx2"
#define L1NORM_VECTOR_BYTES 32
#include "vector_kernels.h"

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
