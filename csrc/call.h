// One call of an operator, checked: all that a device needs to run it, and nothing of PyTorch.
#pragma once

#include <cstdint>

#include "ahead.h"
#include "dtype.h"
#include "exact.h"
#include "geometry.h"
#include "stagger.h"

namespace l1norm {

// Kernels take it by value. What most of them read lies side by side: of a launch's parameters each line is a miss.
struct Call {
  DType input_dtype;
  DType dtype;
  const void* input;
  const void* grad;      // of the result; null in a forward call
  const void* one_grad;  // of all elements of the result, where that is one number: then grad is not read
  void* output;
  void* denominator;  // one a row, double for double and float otherwise; null where nobody asks; read in backward
  const void* grad_denominator;  // alike; null where there is none
  Count count;
  double eps;
  int32_t device;
  bool fresh_output;  // allocated for this call
  bool starts_early;  // before its stream's earlier kernels have ended, for which its own kernel waits
  Stagger stagger;
  Ahead input_ahead;  // what that asks for meanwhile
  Ahead grad_ahead;
  Geometry geometry;
};

}  // namespace l1norm
