// What becomes of a row: a sum over it, what that comes to, and the row's result. The sources of rows and run_rows()
// are templates over it.
#pragma once

#include "../call.h"
#include "../gradient.h"
#include "kernels.h"

namespace l1norm::cpu {

// Where elements that are neighbours in memory start.
struct Operands {
  const void* input;
  const void* grad;  // null in a forward call
};

struct Forward {
  using Factor = Divisor;
  static constexpr bool kGrad = false;

  static Sum sum(const Call&, const RowKernels& kernels, int64_t, const Operands& from, int64_t n) {
    return kernels.sum(from.input, n);
  }

  template <typename Value>
  static Divisor finish_row(const Call& c, int64_t row, Sum sum) {
    const Divisor m = make_divisor<Value>(sum, c.count, c.eps);
    if (c.denominator != nullptr) {
      static_cast<Value*>(c.denominator)[c.geometry.rows.at(row).denominator] = rounded(m, Value{});
    }
    return m;
  }

  static void write(const RowKernels& kernels, const Operands& from, void* y, int64_t n, const Divisor& m,
                    bool streaming) {
    kernels.divide(from.input, y, n, m, streaming);
  }
};

struct Backward {
  using Factor = Gradient;
  static constexpr bool kGrad = true;

  template <typename Value>
  static double divisor(const Call& c, int64_t denominator) {
    return static_cast<double>(static_cast<const Value*>(c.denominator)[denominator]);
  }

  static Sum sum(const Call& c, const RowKernels& kernels, int64_t denominator, const Operands& from, int64_t n) {
    const double scale = c.dtype == DType::kDouble ? dot_scale<double>(divisor<double>(c, denominator), c.count) : 1.0;
    return kernels.dot(from.grad, from.input, n, scale);
  }

  template <typename Value>
  static Gradient finish_row(const Call& c, int64_t row, Sum sum) {
    const int64_t denominator = c.geometry.rows.at(row).denominator;
    const Value* h = static_cast<const Value*>(c.grad_denominator);
    return make_gradient<Value>(sum,
                                make_gradient_scale<Value>(divisor<Value>(c, denominator), c.count, c.eps,
                                                           h == nullptr ? 0.0 : static_cast<double>(h[denominator])));
  }

  static void write(const RowKernels& kernels, const Operands& from, void* y, int64_t n, const Gradient& d,
                    bool streaming) {
    kernels.differentiate(from.grad, from.input, y, n, d, streaming);
  }
};

}  // namespace l1norm::cpu
