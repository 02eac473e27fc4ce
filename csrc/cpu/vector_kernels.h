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
  if (i + 4 * kLanes <= n) run_block<4, streaming>(operation, i, y + i, (in + i)...), i += 4 * kLanes;
  if (i + 2 * kLanes <= n) run_block<2, streaming>(operation, i, y + i, (in + i)...), i += 2 * kLanes;
  if (i + kLanes <= n) run_block<1, streaming>(operation, i, y + i, (in + i)...), i += kLanes;
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

template <typename Element>
L1NORM_INLINE Places<Element> group(const Lines& x, int64_t g) {
  return {elements<Element>(x.p) + g * x.group, x.step};
}

template <typename Type>
struct OfRows {
  using Element = typename Type::Element;

  static void sum(const Lines& x, const Extent& e, Sums sums) {
    const Places<Element> from = places<Element>(x);
    for (int64_t l = 0; l < e.lines; ++l) add(sums, l, sum_row(Magnitudes<Type>{}, e.n, from.at(l)));
  }

  static void divide(const Lines& x, const LinesTo& to, const Extent& e, const Divisors& m, bool streaming) {
    const Places<Element> from = places<Element>(x);
    for (int64_t l = 0; l < e.lines; ++l) {
      Element* const y = static_cast<Element*>(to.p) + l * to.step;
      const Quotients<Type, RowDivisor> quotients{{{m.hi[l], m.lo[l], static_cast<int>(m.shift[l])}, m.inverse[l]}};
      if (m.inverse[l] == m.inverse[l]) {
        run_line(quotients, e.n, streaming, y, from.at(l));
      } else {
        quotients.each(0, from.at(l), y, e.n);
      }
    }
  }

  static void dot(const Lines& g, const Lines& x, const Extent& e, const double* scales, Sums sums) {
    const Places<Element> of_g = places<Element>(g), of_x = places<Element>(x);
    for (int64_t l = 0; l < e.lines; ++l) {
      add(sums, l, sum_row(Products<Type, false>{scales + l}, e.n, of_g.at(l), of_x.at(l)));
    }
  }

  static void differentiate(const Lines& g, const Lines& x, const LinesTo& y, const Extent& e, const Gradients& d,
                            bool streaming) {
    const Places<Element> of_g = places<Element>(g), of_x = places<Element>(x);
    for (int64_t l = 0; l < e.lines; ++l) {
      const Differences<Type, RowGradient<Type>> differences{{ColumnGradients{d}.at(l)}};
      run_line(differences, e.n, streaming, static_cast<Element*>(y.p) + l * y.step, of_g.at(l), of_x.at(l));
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

  static void sum(const Lines& x, const Extent& e, Sums sums) {
    for (int64_t g = 0; g < e.groups; ++g) {
      sum_columns(Magnitudes<Type>{}, e.lines, e.n, sums.from(g * e.n), group<Element>(x, g));
    }
  }

  static void divide(const Lines& x, const LinesTo& y, const Extent& e, const Divisors& m, bool streaming) {
    for (int64_t g = 0; g < e.groups; ++g) {
      run(Quotients<Type, ColumnDivisors>{{m.from(g * e.n)}}, y, g, e, streaming, group<Element>(x, g));
    }
  }

  static void dot(const Lines& g, const Lines& x, const Extent& e, const double* scales, Sums sums) {
    for (int64_t k = 0; k < e.groups; ++k) {
      sum_columns(Products<Type, true>{scales + k * e.n}, e.lines, e.n, sums.from(k * e.n), group<Element>(g, k),
                  group<Element>(x, k));
    }
  }

  static void differentiate(const Lines& g, const Lines& x, const LinesTo& y, const Extent& e, const Gradients& d,
                            bool streaming) {
    for (int64_t k = 0; k < e.groups; ++k) {
      run(Differences<Type, ColumnGradients>{{d.from(k * e.n)}}, y, k, e, streaming, group<Element>(g, k),
          group<Element>(x, k));
    }
  }

 private:
  template <typename Operation, typename... Inputs>
  static L1NORM_INLINE void run(const Operation& operation, const LinesTo& y, int64_t group, const Extent& e,
                                bool streaming, const Inputs&... in) {
    Element* const to = static_cast<Element*>(y.p) + group * y.group;
    for (int64_t l = 0; l < e.lines; ++l) run_line(operation, e.n, streaming, to + l * y.step, in.at(l)...);
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
