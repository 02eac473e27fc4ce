// The CPU's kernels: one table of functions for each instruction set, the best one chosen at run time.
#pragma once

#include <cstdint>

#include "../dtype.h"
#include "../exact.h"
#include "../gradient.h"

namespace l1norm::cpu {

// Lines of neighbours in memory, `step` elements apart.
struct Lines {
  const void* p;
  int64_t step;
};

// Sums of columns, hi + lo.
struct Sums {
  double* hi;
  double* lo;
};

// What columns are divided by: a Divisor's fields, and 1 / hi, or NaN where the vectors cannot divide.
struct Divisors {
  double *hi, *lo, *shift, *inverse;
};

// A Gradient's fields.
struct Gradients {
  double *inverse, *inverse_low, *through, *through_low, *m;
  double* pairs;  // not 0 where pairs have room
};

// Kernels for elements of one type. Pointers need the type's own alignment only. A row's kernels take n elements that
// share a sum and a divisor; those of columns take lines of n elements, the i-th of each of column i. Arrays of numbers
// of columns are kColumnPadding longer than n, and what is there is used without effect.
constexpr int64_t kColumnPadding = 8;

struct RowKernels {
  // The sum of the magnitudes of n elements.
  Sum (*sum)(const void* x, int64_t n);
  // y[i] = x[i] / divisor, rounded once; y may be x. With streaming, y bypasses the cache
  // and the caller orders what follows by a fence.
  void (*divide)(const void* x, void* y, int64_t n, Divisor divisor, bool streaming);
  // The sum of g[i] * x[i] * scale, a power of two that is 1 but for doubles.
  Sum (*dot)(const void* g, const void* x, int64_t n, double scale);
  // y[i] = input_gradient(g[i], x[i]); y may be g or x. Streaming as above.
  void (*differentiate)(const void* g, const void* x, void* y, int64_t n, const Gradient& gradient, bool streaming);
};

// As a row's, of columns.
struct ColumnKernels {
  void (*sum)(Lines x, int64_t lines, int64_t n, Sums sums);  // adds to the sums
  void (*make_divisors)(Sums sums, int64_t n, Count count, double eps, Divisors divisors);
  void (*divide)(Lines x, void* y, int64_t y_step, int64_t lines, int64_t n, const Divisors& divisors, bool streaming);
  void (*dot)(Lines g, Lines x, int64_t lines, int64_t n, const double* scales, Sums sums);  // adds to the sums
  // m: the divisors; h: their gradients.
  void (*make_gradients)(Sums dots, const double* m, const double* h, int64_t n, Count count, double eps,
                         Gradients gradients);
  void (*differentiate)(Lines g, Lines x, void* y, int64_t y_step, int64_t lines, int64_t n, const Gradients& gradients,
                        bool streaming);
};

// Casts and copies between layouts: the element in row i and column j of a block is p[i * row + j * column].
struct Block {
  int64_t rows, columns;
  int64_t from_row, from_column;
  int64_t to_row, to_column;
};
using Copy = void (*)(const void* from, void* to, const Block& block);

struct Kernels {
  RowKernels row;
  ColumnKernels columns;
  Copy copy_from[4];  // by index_of(DType)
};

constexpr int index_of(DType t) {
  return t == DType::kHalf ? 0 : t == DType::kBFloat16 ? 1 : t == DType::kFloat ? 2 : 3;
}

struct Capability {
  const char* name;
  Kernels kernels[4];

  const Kernels& of(DType t) const { return kernels[index_of(t)]; }
};

extern const Capability kDefault;
#if defined(__x86_64__)
extern const Capability kAvx2;
extern const Capability kAvx512;
#endif

// The best of this processor, or the one that L1NORM_CPU_CAPABILITY names where the processor has it.
const Capability& capability();

}  // namespace l1norm::cpu
