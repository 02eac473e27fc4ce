// Runs in which few columns take turns, as where a point's coordinates are neighbours: lines of vectors across a run,
// each so long that the same lanes are of the same columns in all of them. Part of vector_kernels.h.

namespace l1norm::cpu {
namespace {

// Which column each lane of a line is of.
class Turns {
 public:
  static constexpr int64_t kMost = kMostTurns * 2 * kWide;  // elements of a line
  // As many more have numbers, as a line of the cache may begin behind a run's first element.
  static constexpr int64_t kAhead = 64 / sizeof(uint16_t);
  static constexpr int64_t kSpace = kMost + kAhead;

  // vector: elements that an operation may store at once.
  Turns(int64_t columns, int64_t vector) : columns_(columns), line_(columns) {
    while (line_ % vector != 0) line_ *= 2;
    uint32_t next = 0;
    for (int64_t i = 0; i < line_ + kAhead; ++i) {
      column_[i] = next++;
      if (next == columns) next = 0;
    }
  }

  int64_t columns() const { return columns_; }
  int64_t line() const { return line_; }
  int64_t column(int64_t i) const { return column_[i]; }

  // Gives each lane its column's number.
  template <typename Number>
  L1NORM_INLINE void deal(const Number* numbers, Number* to) const {
    const int64_t n = line_ + kAhead;
#if defined(__x86_64__) && L1NORM_VECTOR_BYTES == 64
    constexpr int kWidth = L1NORM_VECTOR_BYTES / sizeof(Number);
    if constexpr (sizeof(Number) == 4) {
      const __m512i v = load<__m512i>(numbers);
      for (int64_t i = 0; i < n; i += kWidth) {
        store(to + i, _mm512_maskz_permutexvar_epi32(0xffff, load<__m512i>(column_ + i), v));
      }
    } else {
      const __m512i low = load<__m512i>(numbers), high = columns_ > kWidth ? load<__m512i>(numbers + kWidth) : low;
      for (int64_t i = 0; i < n; i += kWidth) {
        const __m512i from = _mm512_maskz_cvtepu32_epi64(0xff, load<__m256i>(column_ + i));
        store(to + i, _mm512_maskz_permutex2var_epi64(0xff, low, from, high));
      }
    }
#else
#if defined(__x86_64__) && L1NORM_VECTOR_BYTES == 32
    constexpr int kWidth = L1NORM_VECTOR_BYTES / 4;
    if (sizeof(Number) == 4 && columns_ <= kWidth) {
      const __m256i v = load<__m256i>(numbers);
      for (int64_t i = 0; i < n; i += kWidth) {
        store(to + i, _mm256_permutevar8x32_epi32(v, load<__m256i>(column_ + i)));
      }
      return;
    }
#endif
    for (int64_t i = 0; i < n; ++i) to[i] = numbers[column_[i]];
#endif
  }

 private:
  const int64_t columns_;
  int64_t line_;
  alignas(64) uint32_t column_[kSpace];
};

// Makes the sums of a run's columns.
template <typename Terms, typename... Elements>
L1NORM_INLINE void sum_turns(const Turns& turns, const Terms& terms, int64_t n, Sums sums, const Elements*... in) {
  alignas(64) double numbers[2][Turns::kMost + 2 * kLanes];
  const Sums all{numbers[0], numbers[1]};
  const int64_t columns = turns.columns(), line = turns.line(), lines = n / line, rest = n % line;
  if (lines > 0) {
    make_sums(terms, lines, line, all, Places<Elements>{in, line}...);
  } else {
    __builtin_memset(numbers, 0, sizeof numbers);
  }
  if (rest > 0) add_lines<1, false>(terms, rest, all, Places<Elements>{in + lines * line, line}...);
  // Lanes behind the last column are of no effect.
  for (double* behind : {all.hi + line, all.lo + line}) {
    for (int k = 0; k < 2 * kLanes; k += kLanes) store(behind + k, Doubles{});
  }
  for (int64_t i = 0; i < columns; i += kLanes) {
    Accumulator a, b;
    const auto at = [&](int64_t k) { return Accumulator{load<Doubles>(all.hi + k), load<Doubles>(all.lo + k)}; };
    int64_t k = i;
    for (; k + columns < line; k += 2 * columns) a.add(at(k)), b.add(at(k + columns));
    if (k < line) a.add(at(k));
    a.add(b);
    store(sums.hi + i, a.hi);
    store(sums.lo + i, a.lo);
  }
}

// The columns' divisors, of lanes. What vectors divide by has been dealt.
template <typename Columns>
struct TurnedDivisors : Divisors {
  const Turns& turns;
  Columns columns;

  template <typename Type>
  L1NORM_INLINE Divisor at(int64_t i) const {
    return columns.template at<Type>(turns.column(i));
  }
  template <typename Type>
  L1NORM_INLINE Doubles highs(int64_t i) const {
    return each(i, [&](int64_t k) { return columns.template highs<Type>(k); });
  }
  template <typename Type>
  L1NORM_INLINE Doubles inverses(int64_t i) const {
    if constexpr (sizeof(typename Type::Element) > 2) return load<Doubles>(inverse + i);
    return each(i, [&](int64_t k) { return load<Doubles>(columns.inverse + k); });
  }

 private:
  template <typename Of>
  L1NORM_INLINE Doubles each(int64_t i, const Of& of) const {
    double all[kMostTurns + kLanes];
    for (int64_t k = 0; k < turns.columns(); k += kLanes) store(all + k, of(k));
    Doubles lanes;
    for (int k = 0; k < kLanes; ++k) lanes[k] = all[turns.column(i + k)];
    return lanes;
  }
};

// The columns' gradients, of lanes; as above.
template <typename Type>
struct TurnedGradients : ColumnGradients<Type> {
  const Turns& turns;
  ColumnGradients<Type> columns;

  L1NORM_INLINE Gradient at(int64_t i) const { return columns.at(turns.column(i)); }
};

// An operation on a run's n elements, which asks memory for those that are so far ahead.
template <typename Operation, typename Element, typename... Inputs>
L1NORM_INLINE void run_turns(const Operation& operation, int64_t line, int64_t n, int64_t ahead, bool streaming,
                             Element* y, const Inputs*... in) {
  constexpr int64_t kLine = 64 / sizeof(Element);
  const bool streams = streaming && repay_streaming(y, n);
  const int64_t head = streams ? first_line(y) : 0;
  const auto run = [&](auto streams) {
    int64_t l = 0;
    for (; l + head + line <= n; l += line) {
      (ask_for(in + l + ahead, line), ...);
      run_body<streams, false>(operation, head, head + line, 0, y + l, (in + l)...);
    }
    const int64_t end = head + (n - l - head) / kLine * kLine;
    run_body<streams, false>(operation, head, end, 0, y + l, (in + l)...);
    run_body<false>(operation, end, n - l, 0, y + l, (in + l)...);
  };
  run_body<false>(operation, 0, head, 0, y, in...);
  streams ? run(std::true_type{}) : run(std::false_type{});
}

// Whether groups are runs in which columns take turns.
template <typename... Operands>
L1NORM_INLINE bool take_turns(const Extent& e, const Operands&... operands) {
  return repay_turns(e.n, e.lines) && ((operands.step == e.n) && ...);
}

template <typename Type>
struct OfTurns {
  using Element = typename Type::Element;
  // Elements that lines are multiples of: what is stored at once, and with AVX2 twice that, so that steps are long.
  static constexpr int64_t kVector = std::is_same_v<Type, BFloat16Type> || kLanes == 4 ? 2 * kWide : kWide;

  static void normalize(const Lines& x, const LinesTo& y, const Extent& e, Sums sums, Count count, double eps,
                        bool streaming) {
    constexpr int64_t kColumns = kAtOnce + kMostTurns;
    alignas(64) double exact[4][kColumns], dealt_exact[3][Turns::kSpace];
    alignas(64) float floats[3][kColumns], dealt_floats[3][Turns::kSpace];
    alignas(64) uint32_t least[kColumns], dealt_least[Turns::kSpace];
    const Divisors d{exact[0], exact[1], exact[2], exact[3], floats[0], floats[1], floats[2], least};
    const Divisors dealt{dealt_exact[0],  dealt_exact[1],  dealt_exact[2],  nullptr,
                         dealt_floats[0], dealt_floats[1], dealt_floats[2], dealt_least};
    const Turns turns(e.n, kVector);
    const int64_t n = e.lines * e.n;
    each_batch(e, 1, [&](int64_t g, int64_t groups) {
      const Sums s = sums.from(g * e.n);
      const int64_t columns = groups * e.n;
      for (int64_t k = 0; k < groups; ++k) {
        sum_turns(turns, Magnitudes<Type>{}, n, s.from(k * e.n), group<Element>(x, g + k).p);
      }
      divide_by_sums<Type>(s, columns, count, eps, d, [&](const auto& divisors_from) {
        for (int64_t k = 0; k < groups; ++k) {
          const auto of = divisors_from(k * e.n);
          if constexpr (kByFloats<Type>) {
            turns.deal(of.first, dealt.first);
            turns.deal(of.second, dealt.second);
            turns.deal(of.least, dealt.least);
          }
          if constexpr (!kByFloats<Type> && sizeof(Element) > 2) turns.deal(of.inverse, dealt.inverse);
          if constexpr (kOfDoubles<Type>) {
            turns.deal(of.hi, dealt.hi);
            turns.deal(of.lo, dealt.lo);
          } else {
            turns.deal(of.reciprocal, dealt.reciprocal);
          }
          using Turned = TurnedDivisors<std::remove_const_t<decltype(of)>>;
          run_turns(Quotients<Type, Turned>{{dealt, turns, of}}, turns.line(), n, groups * n, streaming,
                    group<Element>(y, g + k), group<Element>(x, g + k).p);
        }
      });
    });
  }

  static void normalize_backward(const Lines& g, const Lines& x, const LinesTo& y, const Extent& e,
                                 const double* scales, const double* m, const double* h, Count count, double eps,
                                 bool streaming) {
    alignas(64) double numbers[7][kAtOnce + kMostTurns], dealt_numbers[5][Turns::kSpace];
    const Sums s{numbers[0], numbers[1]};
    const Gradients d{numbers[2], numbers[3], numbers[4], numbers[5], numbers[6]};
    const Gradients dealt{dealt_numbers[0], dealt_numbers[1], dealt_numbers[2], dealt_numbers[3], nullptr};
    const Turns turns(e.n, kVector);
    const int64_t n = e.lines * e.n;
    each_batch(e, 2, [&](int64_t first, int64_t groups) {
      const int64_t column = first * e.n, columns = groups * e.n;
      for (int64_t k = 0; k < groups; ++k) {
        double* const dealt_scales = dealt_numbers[4];
        if constexpr (kOfDoubles<Type>) turns.deal(scales + column + k * e.n, dealt_scales);
        sum_turns(turns, Products<Type, true>{dealt_scales}, n, s.from(k * e.n), group<Element>(g, first + k).p,
                  group<Element>(x, first + k).p);
      }
      make_gradients<Type>(s, m + column, from(h, column), columns, count, eps, d);
      for (int64_t k = 0; k < groups; ++k) {
        const Gradients of = d.from(k * e.n);
        const auto run = [&](const auto& differences) {
          run_turns(differences, turns.line(), n, groups * n, streaming, group<Element>(y, first + k),
                    group<Element>(g, first + k).p, group<Element>(x, first + k).p);
        };
        if constexpr (kInFloats<Type>) {
          turns.deal(of.float_inverse, dealt.float_inverse);
          turns.deal(of.float_through, dealt.float_through);
          bool fit = true;
          for (int64_t i = 0; i < e.n; ++i) fit &= of.float_inverse[i] != 0.0f;
          if (fit) {
            run(FloatDifferences<Type, TurnedGradients<Type>, const float*>{
                {{dealt}, turns, {of}}, dealt.float_inverse, dealt.float_through});
            continue;
          }
        }
        turns.deal(of.inverse, dealt.inverse);
        turns.deal(of.through, dealt.through);
        if constexpr (kOfDoubles<Type>) {
          turns.deal(of.inverse_low, dealt.inverse_low);
          turns.deal(of.through_low, dealt.through_low);
        }
        run(Differences<Type, TurnedGradients<Type>>{{{dealt}, turns, {of}}});
      }
    });
  }

 private:
  // work(group, groups) for some whose elements stay in the cache together.
  template <typename Work>
  static L1NORM_INLINE void each_batch(const Extent& e, int64_t operands, const Work& work) {
    constexpr int64_t kBytes = 16 << 10;
    const int64_t bytes = operands * e.lines * e.n * static_cast<int64_t>(sizeof(Element));
    const int64_t fit = kBytes / bytes < kAtOnce / e.n ? kBytes / bytes : kAtOnce / e.n, most = fit > 1 ? fit : 1;
    for (int64_t g = 0; g < e.groups; g += most) work(g, e.groups - g < most ? e.groups - g : most);
  }
};

}  // namespace
}  // namespace l1norm::cpu
