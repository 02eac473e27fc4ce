// The kernels, compiled once for each instruction set by kernels_*.cpp.
// No include guards, no standard headers in what is included here: the including file sets L1NORM_CAPABILITY,
// L1NORM_CAPABILITY_NAME and L1NORM_VECTOR_BYTES, and selects the instruction set.

#include "vectors.h"

#include "vector_types.h"

#include "vector_terms.h"

#include "vector_sums.h"

#include "vector_copy.h"
#include "vector_differences.h"
#include "vector_divisors.h"
#include "vector_lines.h"

#include "vector_quotients.h"

#include "vector_signs.h"

#include "vector_few.h"

#include "vector_turns.h"

namespace l1norm::cpu {
namespace {

template <typename Type>
struct OfRows {
  using Element = typename Type::Element;

  static void sum(const Lines& x, const Extent& e, Sums sums) {
    sum_lines(e, sums, [](int64_t) { return Magnitudes<Type>{}; }, places<Element>(x));
  }

  static void divide(const Lines& x, const LinesTo& to, const Extent& e, const Divisors& m, bool streaming) {
    const Places<Element> from = places<Element>(x);
    for (int64_t l = 0; l < e.lines; ++l) {
      Element* const y = static_cast<Element*>(to.p) + l * to.step;
      run_any_line(Quotients<Type, RowDivisor>{RowDivisor::make<Type>(m, l)}, e.n, x.ahead, streaming, y, from.at(l));
    }
  }

  static void dot(const Lines& g, const Lines& x, const Extent& e, const double* scales, Sums sums) {
    const auto products = [&](int64_t l) { return Products<Type, false>{scales + l}; };
    sum_lines(e, sums, products, places<Element>(g), places<Element>(x));
  }

  static void differentiate(const Lines& g, const Lines& x, const LinesTo& y, const Extent& e, const Gradients& d,
                            bool streaming) {
    const Places<Element> of_g = places<Element>(g), of_x = places<Element>(x);
    for (int64_t l = 0; l < e.lines; ++l) {
      const RowGradient<Type> gradient{d, l};
      const Differences<Type, RowGradient<Type>> differences{gradient};
      Element* const to = static_cast<Element*>(y.p) + l * y.step;
      const auto run_line_of = [&](const auto& operation) {
        run_any_line(operation, e.n, g.ahead == x.ahead ? x.ahead : 0, streaming, to, of_g.at(l), of_x.at(l));
      };
      if constexpr (std::is_same_v<Element, float>) {
        if (is_finite(d.through[l])) {
          run_line_of(FiniteDifferences{Doubles{} + d.inverse[l], Doubles{} + d.through[l]});
        } else {
          differences.each(0, of_g.at(l), of_x.at(l), to, e.n);
        }
      } else {
        if constexpr (kInFloats<Type>) {
          if (d.float_inverse[l] != 0.0f) {
            run_line_of(
                FloatDifferences<Type, RowGradient<Type>, float>{gradient, d.float_inverse[l], d.float_through[l]});
            continue;
          }
        }
        run_line_of(differences);
      }
    }
  }

 private:
  // Adds terms(line) of each to its sum.
  template <typename Terms, typename... Inputs>
  static L1NORM_INLINE void sum_lines(const Extent& e, Sums sums, const Terms& terms, const Inputs&... in) {
    const int64_t ahead = lines_ahead(e.n);
    for (int64_t l = 0; l < e.lines; l += kLanes) {
      const int64_t lines = e.lines - l < kLanes ? e.lines - l : kLanes;
      Accumulator rows[kLanes];
      for (int64_t k = 0; k < lines; ++k) {
        if (ahead > 0) (ask_for(in.at(l + k + ahead), e.n), ...);
        rows[k] = sum_row(terms(l + k), e.n, in.at(l + k)...);
      }
      if (lines == kLanes) {
        Accumulator all{load<Doubles>(sums.hi + l), load<Doubles>(sums.lo + l)};
        all.add(totals(rows));
        store(sums.hi + l, all.hi);
        store(sums.lo + l, all.lo);
        continue;
      }
      for (int64_t k = l; k < e.lines; ++k) {
        const Sum all = Sum{sums.hi[k], sums.lo[k]} + total(rows[k - l]);
        sums.hi[k] = all.hi;
        sums.lo[k] = all.lo;
      }
    }
  }

  // How far ahead memory is asked for lines so short that what each ends with keeps a processor from looking that far
  // itself (131072 x 64 bfloat16: 0.65 of the time, gradients 0.45); 0 for others.
  static L1NORM_INLINE int64_t lines_ahead(int64_t n) {
    constexpr int64_t kShortBytes = 512, kAheadBytes = 2048;
    const int64_t bytes = n * static_cast<int64_t>(sizeof(Element));
    return 0 < bytes && bytes <= kShortBytes ? kAheadBytes / bytes : 0;
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
    if (streaming && repays_windows(x, y, e)) {
      return run_windows(Quotients<Type, ColumnDivisors>{{m}}, e.lines, e.n, static_cast<Element*>(y.p),
                         elements<Element>(x.p));
    }
    for (int64_t g = 0; g < e.groups; ++g) {
      run(Quotients<Type, ColumnDivisors>{{m.from(g * e.n)}}, group<Element>(y, g), y.step, e.lines, e.n, streaming,
          group<Element>(x, g));
    }
  }

  static void divide_by_itself(const Lines& x, const LinesTo& y, const Extent& e, bool streaming) {
    for (int64_t g = 0; g < e.groups; ++g) {
      run(Signs<Type>{}, group<Element>(y, g), y.step, e.lines, e.n, streaming, group<Element>(x, g));
    }
  }

  static void normalize(const Lines& x, const LinesTo& y, const Extent& e, Sums sums, Count count, double eps,
                        bool streaming) {
    if (take_turns(e, x, y)) return OfTurns<Type>::normalize(x, y, e, sums, count, eps, streaming);
    if constexpr (kByFloats<Type> && kLanes >= 4) {
      const auto few = [&](auto lines, auto streams, int64_t g, int64_t i) {
        return normalize_few<Type, lines, streams>(group<Element>(x, g).from(i), group<Element>(y, g) + i, y.step,
                                                   sums.from(g * e.n + i), count, eps);
      };
      const auto rest = [&](int64_t g, int64_t i, int64_t n) {
        normalize_parts({group<Element>(x, g).p + i, x.step, 0}, {group<Element>(y, g) + i, y.step, 0}, {1, e.lines, n},
                        sums.from(g * e.n + i), count, eps, streaming);
      };
      if (repays_few(e.n) && each_few<2>(x, y, e, streaming, few, rest)) return;
    }
    normalize_parts(x, y, e, sums, count, eps, streaming);
  }

  static void normalize_parts(const Lines& x, const LinesTo& y, const Extent& e, Sums sums, Count count, double eps,
                              bool streaming) {
    alignas(64) double exact[4][kAtOnce + kLanes];
    alignas(64) float floats[3][kAtOnce + kLanes];
    alignas(64) uint32_t least[kAtOnce + kLanes];
    const Divisors d{exact[0], exact[1], exact[2], exact[3], floats[0], floats[1], floats[2], least};
    each_part(e, [&](int64_t column, int64_t columns, const auto& each_group) {
      const Sums s = sums.from(column);
      each_group([&](int64_t g, int64_t i, int64_t n, int64_t at) {
        if (e.groups > 1) ask_for_page(e.lines * n, group<Element>(x, g).p + i, group<Element>(y, g) + i);
        make_sums(Magnitudes<Type>{}, e.lines, n, s.from(at), group<Element>(x, g).from(i));
      });
      divide_by_sums<Type>(s, columns, count, eps, d, [&](const auto& divisors_from) {
        each_group([&](int64_t g, int64_t i, int64_t n, int64_t at) {
          run(Quotients<Type, decltype(divisors_from(at))>{divisors_from(at)}, group<Element>(y, g) + i, y.step,
              e.lines, n, streaming, group<Element>(x, g).from(i));
        });
      });
    });
  }

  static void normalize_backward(const Lines& g, const Lines& x, const LinesTo& y, const Extent& e,
                                 const double* scales, const double* m, const double* h, Count count, double eps,
                                 bool streaming) {
    if (take_turns(e, g, x, y)) {
      return OfTurns<Type>::normalize_backward(g, x, y, e, scales, m, h, count, eps, streaming);
    }
    if constexpr (sizeof(Element) == sizeof(float) && kLanes >= 4) {
      const auto few = [&](auto lines, auto streams, int64_t k, int64_t i) {
        return differentiate_few<lines, streams>(group<Element>(g, k).from(i), group<Element>(x, k).from(i),
                                                 group<Element>(y, k) + i, y.step, m + k * e.n + i,
                                                 from(h, k * e.n + i), count, eps);
      };
      const auto rest = [&](int64_t k, int64_t i, int64_t n) {
        differentiate_parts({group<Element>(g, k).p + i, g.step, 0}, {group<Element>(x, k).p + i, x.step, 0},
                            {group<Element>(y, k) + i, y.step, 0}, {1, e.lines, n}, scales, m + k * e.n + i,
                            from(h, k * e.n + i), count, eps, streaming);
      };
      if (repays_few(e.n) && each_few<1>(x, y, e, streaming, few, rest)) return;
    }
    differentiate_parts(g, x, y, e, scales, m, h, count, eps, streaming);
  }

  static void differentiate_parts(const Lines& g, const Lines& x, const LinesTo& y, const Extent& e,
                                  const double* scales, const double* m, const double* h, Count count, double eps,
                                  bool streaming) {
    alignas(64) double numbers[7][kAtOnce + kLanes];
    const Sums s{numbers[0], numbers[1]};
    const Gradients d{numbers[2], numbers[3], numbers[4], numbers[5], numbers[6]};
    each_part(e, [&](int64_t column, int64_t columns, const auto& each_group) {
      each_group([&](int64_t k, int64_t i, int64_t n, int64_t at) {
        make_sums(Products<Type, true>{scales + column + at}, e.lines, n, s.from(at), group<Element>(g, k).from(i),
                  group<Element>(x, k).from(i));
      });
      make_gradients<Type>(s, m + column, from(h, column), columns, count, eps, d);
      each_group([&](int64_t k, int64_t i, int64_t n, int64_t at) {
        run(Differences<Type, ColumnGradients<Type>>{{d.from(at)}}, group<Element>(y, k) + i, y.step, e.lines, n,
            streaming, group<Element>(g, k).from(i), group<Element>(x, k).from(i));
      });
    });
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
      run(Differences<Type, ColumnGradients<Type>>{{d.from(k * e.n)}}, group<Element>(y, k), y.step, e.lines, e.n,
          streaming, group<Element>(g, k), group<Element>(x, k));
    }
  }

 private:
  // Whether lines follow each other that would not be streamed one by one.
  static bool repays_windows(const Lines& x, const LinesTo& y, const Extent& e) {
    constexpr int64_t kLine = 64 / sizeof(Element);
    return e.wraps && x.step == e.n && y.step == e.n && e.n >= kLine && e.n % kLine != 0 &&
           e.n < kLeastStreamed<Element>;
  }

  // Of so many columns a line.
  static constexpr bool repays_few(int64_t n) { return n % kFewAtOnce == 0 || n >= 8 * kFewAtOnce; }

  // work(lines, streaming, group, i) for kFewAtOnce columns of a group from the i-th on, of few lines; where it returns
  // false, and for the last columns, rest(group, i, n). False where there are more lines: of 7 and 8 it is no faster.
  template <int lines, typename Work, typename Rest>
  static bool each_few(const Lines& x, const LinesTo& y, const Extent& e, bool streaming, const Work& work,
                       const Rest& rest) {
    if constexpr (lines > kFewLines) {
      return false;
    } else {
      if (e.lines != lines) return each_few<lines + 1>(x, y, e, streaming, work, rest);
      constexpr std::integral_constant<int, lines> kLines;
      const bool aligned =
          ((reinterpret_cast<uintptr_t>(y.p) | static_cast<uintptr_t>(y.step | y.group) * sizeof(Element)) & 63) == 0;
      const int64_t end = e.n / kFewAtOnce * kFewAtOnce;
      for (int64_t g = 0; g < e.groups; ++g) {
        for (int64_t i = 0; i < end; i += kFewAtOnce) {
          if (e.groups > 1 && (i == 0 || e.n > kAtOnce)) {
            ask_for_page(lines * (e.n > kAtOnce ? kFewAtOnce : e.n), group<Element>(x, g).p + i,
                         group<Element>(y, g) + i);
          }
          const bool done =
              streaming && aligned ? work(kLines, std::true_type{}, g, i) : work(kLines, std::false_type{}, g, i);
          if (!done) rest(g, i, kFewAtOnce);
        }
        if (end < e.n) rest(g, end, e.n - end);
      }
      return true;
    }
  }

  template <typename Operation, typename... Inputs>
  static L1NORM_INLINE void run(const Operation& operation, Element* y, int64_t step, int64_t lines, int64_t n,
                                bool streaming, const Inputs&... in) {
    // Where some of near lines are whole lines of the cache and others are not, none are streamed ((7680, 8, 100)
    // float64 over dim 1: 0.95 ns an element, else 1.24).
    streaming =
        streaming && (step >= kLeastStreamed<Element> || step * static_cast<int64_t>(sizeof(Element)) % 64 == 0);
    for (int64_t l = 0; l < lines; ++l) {
      // The begin of a line: from there on the processor guesses what is next.
      if (n > kShort && l + 1 < lines) (ask_for(in.at(l + 1), 1024 / sizeof(Element)), ...);
      run_any_line(operation, n, 0, streaming, y + l * step, in.at(l)...);
    }
  }

  // What is a page after n elements of x, and the page where their results' successors go: of groups that follow each
  // other a processor guesses what is next up to a page's end, and then waits, also to learn where the next one is.
  static L1NORM_INLINE void ask_for_page(int64_t n, const Element* x, const Element* y) {
    constexpr int64_t kPage = 4096;
    ask_for(x + kPage / sizeof(Element), n);
    const Element* const to = y + kPage / sizeof(Element);
    const uintptr_t begin = reinterpret_cast<uintptr_t>(to) / kPage, end = reinterpret_cast<uintptr_t>(to + n) / kPage;
    if (begin != end) __builtin_prefetch(reinterpret_cast<const void*>(end * kPage));
  }

  // work(column, columns, each_group) for columns that are next to each other in the arrays: some of a group's, or
  // those of several groups; each_group(step) calls step(group, first, n, at) for n columns, the first of which is
  // column + at.
  template <typename Work>
  static L1NORM_INLINE void each_part(const Extent& e, const Work& work) {
    const int64_t groups = e.n < kAtOnce ? kAtOnce / e.n : 1;
    for (int64_t g = 0; g < e.groups; g += groups) {
      const int64_t count = e.groups - g < groups ? e.groups - g : groups;
      for (int64_t i = 0; i < e.n; i += kAtOnce) {
        const int64_t n = e.n - i < kAtOnce ? e.n - i : kAtOnce;
        work(g * e.n + i, count * n, [&](const auto& step) {
          for (int64_t k = 0; k < count; ++k) step(g + k, i, n, k * n);
        });
      }
    }
  }
};

template <typename Type>
constexpr Kernels kernels() {
  using Element = typename Type::Element;
  using Rows = OfRows<Type>;
  using Columns = OfColumns<Type>;
  return {{Rows::sum, Rows::divide, Columns::divide_by_itself, Rows::dot, Rows::differentiate},
          {Columns::sum, Columns::divide, Columns::divide_by_itself, Columns::dot, Columns::differentiate},
          Columns::normalize,
          Columns::normalize_backward,
          add_parts,
          make_divisors<Type>,
          round_divisors,
          make_dot_scales,
          make_gradients<Type>,
          {copy<Element, Half>, copy<Element, BFloat16>, copy<Element, float>, copy<Element, double>}};
}

}  // namespace

const Capability L1NORM_CAPABILITY = {
    L1NORM_CAPABILITY_NAME,
    {kernels<HalfType>(), kernels<BFloat16Type>(), kernels<FloatType>(), kernels<DoubleType>()}};

}  // namespace l1norm::cpu
