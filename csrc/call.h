// One call of an operator, checked: all that a device needs to run it, and nothing of PyTorch.
#pragma once

#include <cstdint>

#include "dtype.h"
#include "exact.h"
#include "geometry.h"

namespace l1norm {

struct Call {
  Geometry geometry;
  DType input_dtype;
  DType dtype;
  const void* input;
  void* output;
  void* denominator;  // one a row, double for double and float otherwise; null where nobody asks
  Count count;
  double eps;
  int32_t device;
  bool fresh_output;  // allocated for this call
};

}  // namespace l1norm
