// The CPU's row kernels: one table of functions for each instruction set, the best one chosen at run time.
#pragma once

#include <cstdint>

#include "../dtype.h"
#include "../exact.h"
#include "../gradient.h"

namespace l1norm::cpu {

// Kernels for contiguous elements of one type. Pointers need the type's own alignment only.
struct RowKernels {
  // The sum of the magnitudes of n elements.
  Sum (*sum)(const void* x, int64_t n);
  // y[i] = x[i] / divisor, rounded once; y may be x. With streaming, y bypasses the cache.
  void (*divide)(const void* x, void* y, int64_t n, Divisor divisor, bool streaming);
  // The sum of g[i] * x[i] * scale, a power of two that is 1 but for doubles.
  Sum (*dot)(const void* g, const void* x, int64_t n, double scale);
  // y[i] = input_gradient(g[i], x[i]); y may be g or x. With streaming, y bypasses the cache.
  void (*differentiate)(const void* g, const void* x, void* y, int64_t n, const Gradient& gradient, bool streaming);
};

struct Capability {
  const char* name;
  RowKernels half, bfloat16, float32, float64;

  const RowKernels& of(DType t) const {
    switch (t) {
      case DType::kHalf:
        return half;
      case DType::kBFloat16:
        return bfloat16;
      case DType::kFloat:
        return float32;
      default:
        return float64;
    }
  }
};

extern const Capability kDefault;
#if defined(__x86_64__)
extern const Capability kAvx2;
extern const Capability kAvx512;
#endif

// The best of this processor, or the one that L1NORM_CPU_CAPABILITY names where the processor has it.
const Capability& capability();

}  // namespace l1norm::cpu
