// The kernels, compiled once for each instruction set by kernels_*.cpp.
// No include guards, no standard headers in what is included here: the including file sets L1NORM_CAPABILITY,
// L1NORM_CAPABILITY_NAME and L1NORM_VECTOR_BYTES, and selects the instruction set.

#include "vectors.h"

#include "vector_sums.h"

#include "vector_copy.h"
#include "vector_differences.h"
#include "vector_quotients.h"

namespace l1norm::cpu {
namespace {

constexpr int kBlock = 8;  // vectors that a step of a loop handles

template <int vectors, bool streaming, typename Operation, typename Element, typename... Inputs>
L1NORM_INLINE void run_block(const Operation& operation, int64_t i, Element* y, const Inputs*... in) {
  constexpr int kWidth = sizeof(typename Operation::template Result<vectors>) / sizeof(Element);
  typename Operation::template Result<vectors> results[vectors * kLanes / kWidth];
  if (!operation.template block<vectors>(i, in..., results)) return operation.each(i, in..., y, vectors * kLanes);
  for (int k = 0; k < vectors * kLanes / kWidth; ++k) store<streaming>(y + k * kWidth, results[k]);
}

// The elements from i to n; y may be an input.
template <bool streaming, typename Operation, typename Element, typename... Inputs>
L1NORM_INLINE void run_body(const Operation& operation, int64_t i, int64_t n, Element* y, const Inputs*... in) {
  for (; i + kBlock * kLanes <= n; i += kBlock * kLanes) {
    run_block<kBlock, streaming>(operation, i, y + i, (in + i)...);
  }
  for (; i + kLanes <= n; i += kLanes) run_block<1, streaming>(operation, i, y + i, (in + i)...);
  if (i == n) return;
  Part<Element> rest;
  run_block<1, false>(operation, i, rest.elements, Part<Element>(in + i, n - i).elements...);
  rest.copy_to(y + i, n - i);
}

template <typename Operation, typename Element, typename... Inputs>
void run_line(const Operation& operation, int64_t n, bool streaming, Element* y, const Inputs*... in) {
  if (streaming && n >= 2 * kBlock * kLanes) {  // whole cache lines only: what is left of one costs more than it saves
    constexpr int64_t kLine = 64 / sizeof(Element);
    const int64_t head = static_cast<int64_t>((-reinterpret_cast<uintptr_t>(y) & 63) / sizeof(Element));
    const int64_t end = head + (n - head) / kLine * kLine;
    run_body<false>(operation, 0, head, y, in...);
    run_body<true>(operation, head, end, y, in...);
    run_body<false>(operation, end, n, y, in...);
  } else {
    run_body<false>(operation, 0, n, y, in...);
  }
}

template <typename Element>
L1NORM_INLINE const Element* elements(const void* p) {
  return static_cast<const Element*>(p);
}

template <typename Element>
L1NORM_INLINE Places<Element> places(const Lines& x) {
  return {elements<Element>(x.p), x.step};
}

template <typename Type>
struct OfRows {
  using Element = typename Type::Element;

  static void sum(Lines x, int64_t lines, int64_t n, Sums sums) {
    const Places<Element> from = places<Element>(x);
    for (int64_t l = 0; l < lines; ++l) add(sums, l, sum_row(Magnitudes<Type>{}, n, from.at(l)));
  }

  static void divide(Lines x, void* to, int64_t y_step, int64_t lines, int64_t n, const Divisors& m, bool streaming) {
    const Places<Element> from = places<Element>(x);
    for (int64_t l = 0; l < lines; ++l) {
      Element* const y = static_cast<Element*>(to) + l * y_step;
      const Quotients<Type, RowDivisor> quotients{{{m.hi[l], m.lo[l], static_cast<int>(m.shift[l])}, m.inverse[l]}};
      if (m.inverse[l] == m.inverse[l]) {
        run_line(quotients, n, streaming, y, from.at(l));
      } else {
        quotients.each(0, from.at(l), y, n);
      }
    }
  }

  static void dot(Lines g, Lines x, int64_t lines, int64_t n, const double* scales, Sums sums) {
    const Places<Element> of_g = places<Element>(g), of_x = places<Element>(x);
    for (int64_t l = 0; l < lines; ++l) {
      add(sums, l, sum_row(Products<Type, false>{scales + l}, n, of_g.at(l), of_x.at(l)));
    }
  }

  static void differentiate(Lines g, Lines x, void* y, int64_t y_step, int64_t lines, int64_t n, const Gradients& d,
                            bool streaming) {
    const Places<Element> of_g = places<Element>(g), of_x = places<Element>(x);
    for (int64_t l = 0; l < lines; ++l) {
      const Differences<Type, RowGradient<Type>> differences{{ColumnGradients{d}.at(l)}};
      run_line(differences, n, streaming, static_cast<Element*>(y) + l * y_step, of_g.at(l), of_x.at(l));
    }
  }

 private:
  static L1NORM_INLINE void add(Sums sums, int64_t l, const Sum& sum) {
    const Sum all = Sum{sums.hi[l], sums.lo[l]} + sum;
    sums.hi[l] = all.hi;
    sums.lo[l] = all.lo;
  }
};

template <typename Type>
struct OfColumns {
  using Element = typename Type::Element;

  static void sum(Lines x, int64_t lines, int64_t n, Sums sums) {
    sum_columns(Magnitudes<Type>{}, lines, n, sums, places<Element>(x));
  }

  static void divide(Lines x, void* y, int64_t y_step, int64_t lines, int64_t n, const Divisors& m, bool streaming) {
    run(Quotients<Type, ColumnDivisors>{{m}}, y, y_step, lines, n, streaming, places<Element>(x));
  }

  static void dot(Lines g, Lines x, int64_t lines, int64_t n, const double* scales, Sums sums) {
    sum_columns(Products<Type, true>{scales}, lines, n, sums, places<Element>(g), places<Element>(x));
  }

  static void differentiate(Lines g, Lines x, void* y, int64_t y_step, int64_t lines, int64_t n, const Gradients& d,
                            bool streaming) {
    run(Differences<Type, ColumnGradients>{{d}}, y, y_step, lines, n, streaming, places<Element>(g),
        places<Element>(x));
  }

 private:
  template <typename Operation, typename... Inputs>
  static void run(const Operation& operation, void* y, int64_t y_step, int64_t lines, int64_t n, bool streaming,
                  const Inputs&... in) {
    for (int64_t l = 0; l < lines; ++l) {
      run_line(operation, n, streaming, static_cast<Element*>(y) + l * y_step, in.at(l)...);
    }
  }
};

template <typename Type>
constexpr Kernels kernels() {
  using Element = typename Type::Element;
  using Rows = OfRows<Type>;
  using Columns = OfColumns<Type>;
  return {{Rows::sum, Rows::divide, Rows::dot, Rows::differentiate},
          {Columns::sum, Columns::divide, Columns::dot, Columns::differentiate},
          make_divisors<Type>,
          make_gradients<Type>,
          {copy<Element, Half>, copy<Element, BFloat16>, copy<Element, float>, copy<Element, double>}};
}

}  // namespace

const Capability L1NORM_CAPABILITY = {
    L1NORM_CAPABILITY_NAME,
    {kernels<HalfType>(), kernels<BFloat16Type>(), kernels<FloatType>(), kernels<DoubleType>()}};

}  // namespace l1norm::cpu
