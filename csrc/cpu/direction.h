// What becomes of rows: sums over them, what those come to, and their results. The sources of tiles and run_tiles() are
// templates over it.
#pragma once

#include <algorithm>

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

// Where denominators of rows lie.
struct Denominators {
  int64_t first;
  const int64_t* at;  // each one's place; null where they are neighbours, in the rows' order

  int64_t operator[](int64_t row) const { return at == nullptr ? first + row : at[row]; }
};

struct Forward {
  static constexpr bool kGrad = false;

  // inverse, shift; two with room for two of floats each.
  static constexpr int64_t kNumbers = 4;

  static Divisors divisors(Sums sums, const Numbers& a) {
    float *const floats = reinterpret_cast<float*>(a[2]), *const more = reinterpret_cast<float*>(a[3]);
    return {sums.hi, sums.lo, a[0], a[1], floats, floats + a.space, more, reinterpret_cast<uint32_t*>(more + a.space)};
  }

  template <typename Value, typename Spread>
  static void open(const Call&, const Denominators&, int64_t, const Numbers&, const Spread&) {}

  static void sum(const LineKernels& kernels, const LinesOf& from, const Extent& extent, const Numbers&, Sums sums) {
    kernels.sum(from.input, extent, sums);
  }

  static void finish(const Call& c, const Kernels& kernels, int64_t columns, Sums sums, const Numbers& a) {
    kernels.make_divisors(sums, columns, c.count, c.eps, divisors(sums, a));
  }

  // Of each `part` columns.
  template <typename Value>
  static void write_denominators(const Call& c, const Kernels& kernels, const Denominators& at, int64_t columns,
                                 int64_t part, Sums sums, const Numbers& a) {
    if (c.denominator == nullptr) return;
    const Divisors d = divisors(sums, a);
    if (part == 1 && sizeof(Value) == sizeof(float)) {
      constexpr int64_t kAtOnce = 64;
      for (int64_t i = 0; i < columns; i += kAtOnce) {
        float* const all = static_cast<float*>(c.denominator);
        const int64_t n = std::min(kAtOnce, columns - i);
        if (at.at == nullptr && n == kAtOnce) {
          kernels.round_divisors(d.from(i), n, all + at[i]);
          continue;
        }
        float rounded[kAtOnce];
        kernels.round_divisors(d.from(i), n, rounded);
        for (int64_t k = 0; k < n; ++k) all[at[i + k]] = rounded[k];
      }
      return;
    }
    for (int64_t i = 0, row = 0; i < columns; i += part, ++row) {
      const Divisor m{d.hi[i], d.lo[i], sizeof(Value) == sizeof(double) ? static_cast<int>(d.shift[i]) : 0};
      static_cast<Value*>(c.denominator)[at[row]] = rounded(m, Value{});
    }
  }

  static void write(const LineKernels& kernels, const LinesOf& from, const LinesTo& y, const Extent& extent, Sums sums,
                    const Numbers& a, bool streaming) {
    kernels.divide(from.input, y, extent, divisors(sums, a), streaming);
  }

  static void at_once(const Call& c, const Kernels& kernels, const LinesOf& from, const LinesTo& y,
                      const Extent& extent, Sums sums, const Numbers&, bool streaming) {
    kernels.normalize(from.input, y, extent, sums, c.count, c.eps, streaming);
  }
};

// Of rows of one element, whose sums nobody asks for.
struct ForwardOfOne : Forward {
  static void sum(const LineKernels&, const LinesOf&, const Extent&, const Numbers&, Sums) {}
  static void finish(const Call&, const Kernels&, int64_t, Sums, const Numbers&) {}

  static void write(const LineKernels& kernels, const LinesOf& from, const LinesTo& y, const Extent& extent, Sums,
                    const Numbers&, bool streaming) {
    kernels.divide_by_itself(from.input, y, extent, streaming);
  }

  static void at_once(const Call&, const Kernels& kernels, const LinesOf& from, const LinesTo& y, const Extent& extent,
                      Sums, const Numbers&, bool streaming) {
    kernels.columns.divide_by_itself(from.input, y, extent, streaming);
  }
};

struct Backward {
  static constexpr bool kGrad = true;

  // Numbers that rows have one each of, at `at`.
  template <typename Value>
  static void read(const void* numbers, const Denominators& at, int64_t rows, double* to) {
    const Value* const from = static_cast<const Value*>(numbers);
    if (at.at == nullptr) {
      constexpr DType kValue = sizeof(Value) == sizeof(double) ? DType::kDouble : DType::kFloat;
      const Copy copy = capability().of(DType::kDouble).copy_from[index_of(kValue)];
      copy(from + at.first, to, {1, rows, rows, 1, rows, 1});
    } else {
      for (int64_t i = 0; i < rows; ++i) to[i] = from[at[i]];
    }
  }

  // inverse, inverse_low, through, through_low, m; the divisors' gradients; scales of products.
  static constexpr int64_t kNumbers = 7;

  static const double* grad_denominators(const Call& c, const Numbers& a) {
    return c.grad_denominator == nullptr ? nullptr : a[5];
  }
  static Gradients gradients(const Numbers& a) { return {a[0], a[1], a[2], a[3], a[4]}; }

  template <typename Value, typename Spread>
  static void open(const Call& c, const Denominators& denominators, int64_t rows, const Numbers& a,
                   const Spread& spread) {
    read<Value>(c.denominator, denominators, rows, a[4]);
    if (c.grad_denominator != nullptr) read<Value>(c.grad_denominator, denominators, rows, a[5]);
    if constexpr (sizeof(Value) == sizeof(double)) {
      capability().of(DType::kDouble).make_dot_scales(a[4], rows, c.count, a[6]);
    }
    spread(a[4]);
    if (c.grad_denominator != nullptr) spread(a[5]);
    if constexpr (sizeof(Value) == sizeof(double)) spread(a[6]);
  }

  static void sum(const LineKernels& kernels, const LinesOf& from, const Extent& extent, const Numbers& a, Sums sums) {
    kernels.dot(from.grad, from.input, extent, a[6], sums);
  }

  static void finish(const Call& c, const Kernels& kernels, int64_t columns, Sums sums, const Numbers& a) {
    kernels.make_gradients(sums, a[4], grad_denominators(c, a), columns, c.count, c.eps, gradients(a));
  }

  template <typename Value>
  static void write_denominators(const Call&, const Kernels&, const Denominators&, int64_t, int64_t, Sums,
                                 const Numbers&) {}

  static void write(const LineKernels& kernels, const LinesOf& from, const LinesTo& y, const Extent& extent, Sums,
                    const Numbers& a, bool streaming) {
    kernels.differentiate(from.grad, from.input, y, extent, gradients(a), streaming);
  }

  static void at_once(const Call& c, const Kernels& kernels, const LinesOf& from, const LinesTo& y,
                      const Extent& extent, Sums, const Numbers& a, bool streaming) {
    kernels.normalize_backward(from.grad, from.input, y, extent, a[6], a[4], grad_denominators(c, a), c.count, c.eps,
                               streaming);
  }
};

}  // namespace l1norm::cpu
