// The CPU's kernels: one table of functions for each instruction set, the best one chosen at run time.
#pragma once

#include <cstdint>

#include "../dtype.h"
#include "../exact.h"
#include "../gradient.h"

namespace l1norm::cpu {

// Lines of neighbours in memory, `step` elements apart, and groups of lines, `group` elements apart.
struct Lines {
  const void* p;
  int64_t step, group;
  int64_t ahead = 0;  // from an element of a row to one that is worked on soon after; 0 where nobody knows
};
struct LinesTo {
  void* p;
  int64_t step, group;
};

// How many groups of lines of n elements.
struct Extent {
  int64_t groups, lines, n;
  bool wraps = false;  // behind the last column's numbers are kWrapped more, of the first columns again
};

// Sums of columns, hi + lo.
struct Sums {
  double* hi;
  double* lo;

  Sums from(int64_t i) const { return {hi + i, lo + i}; }
};

// What columns are divided by: a Divisor's fields, and what vectors divide by, NaN where they cannot.
struct Divisors {
  double *hi, *lo;
  double* inverse;    // not of floats
  double* shift;      // of doubles alone
  float* reciprocal;  // of floats and half types
  // Of floats: the divisor as a sum of two, and twice the least bits that are divided by it, less one.
  float *first, *second;
  uint32_t* least;

  Divisors from(int64_t i) const {
    return {hi + i, lo + i, inverse + i, shift + i, reciprocal + i, first + i, second + i, least + i};
  }
};

// A Gradient's fields.
struct Gradients {
  double *inverse, *inverse_low, *through, *through_low, *m;  // the low ones of doubles alone
  // Of half types: a FloatGradient's, whose inverse is 0 where it has no room.
  float *float_inverse, *float_through;

  // Floats have the place of low parts.
  Gradients(double* inverse_, double* inverse_low_, double* through_, double* through_low_, double* m_)
      : inverse(inverse_),
        inverse_low(inverse_low_),
        through(through_),
        through_low(through_low_),
        m(m_),
        float_inverse(reinterpret_cast<float*>(inverse_low)),
        float_through(reinterpret_cast<float*>(through_low)) {}

  Gradients from(int64_t i) const {
    Gradients g = *this;
    for (double** p : {&g.inverse, &g.inverse_low, &g.through, &g.through_low, &g.m}) *p += i;
    for (float** p : {&g.float_inverse, &g.float_through}) *p += i;
    return g;
  }
};

// Kernels for elements of one type. Pointers need the type's own alignment only. They take lines of n elements: each
// line is of a row of its own, in one group; or the lines of a group are across n columns of its own. A row or column
// has its number in every array. Arrays are kColumnPadding longer than that, and what is there is used without effect.
constexpr int64_t kColumnPadding = 8;
constexpr int64_t kWrapped = 32;  // halves of a line of the cache

struct LineKernels {
  // Adds the magnitudes to the sums.
  void (*sum)(const Lines& x, const Extent& extent, Sums sums);
  // y = x / divisor, rounded once; y may be x. With streaming, y bypasses the cache and the caller orders what follows
  // by a fence.
  void (*divide)(const Lines& x, const LinesTo& y, const Extent& extent, const Divisors& divisors, bool streaming);
  // The same of rows of one element: signs, but NaN of zeros, infinities and NaN.
  void (*divide_by_itself)(const Lines& x, const LinesTo& y, const Extent& extent, bool streaming);
  // Adds g * x * scale to the sums, where scales are powers of two that are 1 but for doubles.
  void (*dot)(const Lines& g, const Lines& x, const Extent& extent, const double* scales, Sums sums);
  // y = input_gradient(g, x); y may be g or x. Streaming as above.
  void (*differentiate)(const Lines& g, const Lines& x, const LinesTo& y, const Extent& extent,
                        const Gradients& gradients, bool streaming);
};

// Casts and copies between layouts: the element in row i and column j of a block is p[i * row + j * column].
struct Block {
  int64_t rows, columns;
  int64_t from_row, from_column;
  int64_t to_row, to_column;
  int64_t unit = 1;  // neighbours that are copied together, up to kMostUnit; without a cast
};
constexpr int kMostUnit = 7;
// Whether normalize() takes columns in turns, where one line of them follows the other: few lines, or few lines of more
// columns, do not repay vectors of a run alone.
constexpr int kMostTurns = 16;
constexpr bool repay_turns(int64_t columns, int64_t lines) {
  return columns <= kMostTurns && columns * lines >= (columns < 8 ? 64 : 1200);
}
using Copy = void (*)(const void* from, void* to, const Block& block);

struct Kernels {
  LineKernels rows;     // a line is of one row
  LineKernels columns;  // a line is across rows
  // All steps for columns of few lines, or of groups that are runs of few columns, so that numbers and elements stay in
  // the first cache, or nearly so. The sums are left behind.
  void (*normalize)(const Lines& x, const LinesTo& y, const Extent& extent, Sums sums, Count count, double eps,
                    bool streaming);
  // m, h and scales as below and above.
  void (*normalize_backward)(const Lines& g, const Lines& x, const LinesTo& y, const Extent& extent,
                             const double* scales, const double* m, const double* h, Count count, double eps,
                             bool streaming);
  // The sums of n times `part` columns become those of n.
  void (*add_parts)(Sums sums, int64_t n, int64_t part);
  // The sums' arrays may be the divisors'.
  void (*make_divisors)(Sums sums, int64_t n, Count count, double eps, const Divisors& divisors);
  // Divisors, but of doubles, rounded once to float. There is room for n up to a multiple of kColumnPadding.
  void (*round_divisors)(const Divisors& divisors, int64_t n, float* rounded);
  // dot_scale() of n divisors of doubles, with room as above.
  void (*make_dot_scales)(const double* m, int64_t n, Count count, double* scales);
  // m: the divisors; h: their gradients.
  void (*make_gradients)(Sums dots, const double* m, const double* h, int64_t n, Count count, double eps,
                         Gradients gradients);
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
