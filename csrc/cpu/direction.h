// What becomes of rows: sums over them, what those come to, and their results. The sources of tiles and run_tiles() are
// templates over it.
#pragma once

#include "../call.h"
#include "../gradient.h"
#include "kernels.h"

namespace l1norm::cpu {

struct LinesOf {
  Lines input, grad;
};

// Arrays of one number a row or column.
struct Numbers {
  double* first;
  int64_t space;

  double* operator[](int64_t i) const { return first + i * space; }
};

struct Forward {
  static constexpr bool kGrad = false;

  // hi, lo, shift, inverse.
  static constexpr int64_t kNumbers = 4;
  static constexpr int64_t kShared = 4;  // the first ones, known once a row's sum is

  static Divisors divisors(const Numbers& a) { return {a[0], a[1], a[2], a[3]}; }

  template <typename Value>
  static void open(const Call&, const int64_t*, int64_t, int64_t, const Numbers&) {}

  static void sum(const LineKernels& kernels, const LinesOf& from, const Extent& extent, const Numbers&, Sums sums) {
    kernels.sum(from.input, extent, sums);
  }

  template <typename Value>
  static void finish(const Call& c, const Kernels& kernels, const int64_t* denominators, int64_t n, Sums sums,
                     const Numbers& a, bool first) {
    kernels.make_divisors(sums, n, c.count, c.eps, divisors(a));
    if (c.denominator == nullptr || !first) return;
    for (int64_t i = 0; i < n; ++i) {
      const Divisor m{a[0][i], a[1][i], static_cast<int>(a[2][i])};
      static_cast<Value*>(c.denominator)[denominators[i]] = rounded(m, Value{});
    }
  }

  static void write(const LineKernels& kernels, const LinesOf& from, const LinesTo& y, const Extent& extent,
                    const Numbers& a, bool streaming) {
    kernels.divide(from.input, y, extent, divisors(a), streaming);
  }
};

struct Backward {
  static constexpr bool kGrad = true;

  template <typename Value>
  static double number(const void* numbers, int64_t denominator) {
    return numbers == nullptr ? 0.0 : static_cast<double>(static_cast<const Value*>(numbers)[denominator]);
  }

  // inverse, inverse_low, through, through_low, m, pairs; the divisors' gradients; scales of products.
  static constexpr int64_t kNumbers = 8;
  static constexpr int64_t kShared = 6;

  static Gradients gradients(const Numbers& a) { return {a[0], a[1], a[2], a[3], a[4], a[5]}; }

  // n columns, of them `rows` different ones.
  template <typename Value>
  static void open(const Call& c, const int64_t* denominators, int64_t rows, int64_t n, const Numbers& a) {
    for (int64_t i = 0; i < rows; ++i) {
      a[4][i] = number<Value>(c.denominator, denominators[i]);
      a[6][i] = number<Value>(c.grad_denominator, denominators[i]);
    }
    for (int64_t i = rows; i < rows + kColumnPadding; ++i) a[4][i] = 1.0, a[6][i] = 0.0;
    if constexpr (sizeof(Value) == sizeof(double)) {
      for (int64_t i = 0; i < rows; ++i) a[7][i] = dot_scale<Value>(a[4][i], c.count);
      for (int64_t i = rows; i < n + kColumnPadding; ++i) a[7][i] = a[7][i - rows];
    }
  }

  static void sum(const LineKernels& kernels, const LinesOf& from, const Extent& extent, const Numbers& a, Sums sums) {
    kernels.dot(from.grad, from.input, extent, a[7], sums);
  }

  template <typename Value>
  static void finish(const Call& c, const Kernels& kernels, const int64_t*, int64_t n, Sums sums, const Numbers& a,
                     bool) {
    kernels.make_gradients(sums, a[4], a[6], n, c.count, c.eps, gradients(a));
  }

  static void write(const LineKernels& kernels, const LinesOf& from, const LinesTo& y, const Extent& extent,
                    const Numbers& a, bool streaming) {
    kernels.differentiate(from.grad, from.input, y, extent, gradients(a), streaming);
  }
};

}  // namespace l1norm::cpu
