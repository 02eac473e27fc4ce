// Rows in tiles, of a length that the compiler knows: in a thread's registers from their read to the write of their
// results, one or two at a time.
#pragma once

#include "any_row.cuh"
#include "gradient.cuh"

namespace l1norm::cuda::tile_kernel {

// Lengths that kernels are compiled for: up to this one.
template <typename T>
constexpr int kKnownLengths = longest_known_row(sizeof(T));

// How many a thread takes at a time, other than neighbours. The arithmetic of the shortest halves takes longer than
// memory, and that of one row waits for itself.
template <typename T, bool kBackward>
constexpr int rows_at_a_time(int length) {
  return sizeof(T) == 2 && length > 1 && length <= (kBackward ? 4 : 6) ? 2 : 1;
}

// Whether gradients take the divisors that forward left. Else they are made from the rows anew, as they are a part of
// all bytes where rows are tiny (3 float32: 0.92 with them, 1.11 without). Those of doubles take longer to make.
template <typename T>
constexpr bool reads_divisors(int length) {
  return length == 0 || (sizeof(T) == 8 && length > 1);
}

template <typename Row, int kLength>
constexpr int kUnitsOf = (kLength + Row::kUnit - 1) / Row::kUnit;

// Where a row's divisor lies: of rows that follow each other, one stride leads from each to the next.
__device__ __forceinline__ int64_t denominator_of(const Call& c, int64_t index) {
  return index * c.geometry.rows.stride[0].denominator;
}

template <typename Row, int kUnits>
__device__ __forceinline__ void load_units(const Row& row, typename Row::RowUnit (&units)[kUnits]) {
#pragma unroll
  for (int k = 0; k < kUnits; ++k) units[k] = row.unit(k);
}

// Adds each as a term of its own, whatever it is.
template <typename T>
__device__ __forceinline__ void add_each(Sum& total, const T* elements, int count) {
#pragma unroll 1
  for (int e = 0; e < count; ++e) accumulate(total, static_cast<double>(fabs(widen(elements[e]))));
}

// A row's sum, whatever its elements are.
template <typename T, int kUnits, typename Row>
__device__ __forceinline__ Sum careful_sum(const Row& row) {
  Sum total;
#pragma unroll 1
  for (int k = 0; k < kUnits; ++k) {
#pragma unroll 1
    for (int e = 0; e < row.size(k); ++e) accumulate(total, static_cast<double>(fabs(widen(row.element(k, e)))));
  }
  return total;
}

// The quotients of those of the row's units whose bits are set.
template <typename T, typename Row>
__device__ __forceinline__ void divide_units_again(const Row& row, uint32_t units, const Quotient<T>& quotient,
                                                   const Exactly<T>& exactly) {
#pragma unroll 1
  for (; units != 0; units &= units - 1) {
    const int k = __ffs(static_cast<int>(units)) - 1;
#pragma unroll 1
    for (int e = 0; e < row.size(k); ++e) {
      T& element = row.element(k, e);
      element = divide_again(element, quotient, exactly);
    }
  }
}

// A row of one element: its sign, where no special value and no clamp says otherwise (0.84 by way of a divisor).
template <typename T, typename Row>
__device__ __forceinline__ bool normalize_lone(const Row& row, const Call& c) {
  T* const place = row.at(0);
  const auto value = widen(*place), magnitude = value < 0 ? -value : value;
  if (!(magnitude > 0 && magnitude < INFINITY && magnitude >= c.eps) || c.denominator != nullptr) return false;
  *place = narrow<T>(value < 0 ? -1.0f : 1.0f);
  return true;
}

// Makes a row's units their quotients. The bits of what is not proven are set in `unproven`, all of them where the row
// is not plain: then total and quotient are not those of the row.
template <typename T, int kUnits, int N>
__device__ __forceinline__ bool divide_plainly(Pack<T, N> (&units)[kUnits], const Call& c, Sum& total,
                                               Quotient<T>& quotient, uint32_t& unproven) {
  constexpr uint32_t kAll = (1u << kUnits) - 1;
  // Quotients of halves are proven even if a sum loses bits.
  constexpr bool kMayLose = std::is_same_v<T, __nv_bfloat16>;
  Tally<T> tally;
  tally.template set<kUnits>(units);
  total = tally.finite_sum();
  quotient = Quotient<T>(total, c.count, c.eps, Plain{});
  Least<T> least;
  bool plain = true;
  if constexpr (sizeof(T) == 2) plain = total.hi < Tally<T>::kFinite;
  if (!kMayLose || c.denominator != nullptr) {
    note_each<kUnits>(least, units);
    plain &= tally.is_exact(least);
  }
  plain &= quotient.settle_for(least);
  unproven = plain ? 0 : kAll;
#pragma unroll
  for (int k = 0; k < kUnits; ++k) {
    Pack<T, N> result;
    if (!quotient.divide(units[k], result, least)) unproven |= 1u << k;
    units[k] = result;
  }
  return plain;
}

// row_of(i): the rows that are taken at a time, `there` of them; in the place of one that is not there, the first.
// denominator(i): where their divisors go.
template <typename T, int kLength, int kRows, typename RowOf, typename Denominator>
__device__ __forceinline__ void normalize_known(const RowOf& row_of, int there, const Call& c,
                                                const Denominator& denominator) {
  using Row = decltype(row_of(0));
  constexpr int kUnits = kUnitsOf<Row, kLength>;
  if constexpr (kLength == 1) {
    if (normalize_lone<T>(row_of(0), c)) return;
  }
  typename Row::RowUnit units[kRows][kUnits];
#pragma unroll
  for (int i = 0; i < kRows; ++i) load_units(row_of(i), units[i]);
  // Else made again where they are asked for: of doubles that is next to never, and sums of bfloat16 may lose bits.
  constexpr bool kKeepsTotals = sizeof(T) < 8 && !std::is_same_v<T, __nv_bfloat16>;
  Sum totals[kRows];
  Quotient<T> quotients[kRows];
  uint32_t unproven[kRows], plain = 0;  // units of rows, and rows
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const bool is_plain = divide_plainly(units[i], c, totals[i], quotients[i], unproven[i]);
    plain |= is_plain ? 1u << i : 0;
    if (is_plain && i < there && c.denominator != nullptr) {
      write_denominator<T>(c, denominator(i), totals[i]);
    }
  }
  // Ahead of the others' stores, as a row may be summed again.
  if ((unproven[0] | unproven[kRows - 1]) != 0) {
#pragma unroll 1
    for (int i = 0; i < there; ++i) {
      const uint32_t mine = i == 0 ? unproven[0] : unproven[kRows - 1];
      if (mine == 0) continue;
      const Row row = row_of(i);
      const bool is_plain = (plain >> i & 1) != 0;
      Sum total = i == 0 ? totals[0] : totals[kRows - 1];
      Quotient<T> quotient = i == 0 ? quotients[0] : quotients[kRows - 1];
      if (!kKeepsTotals || !is_plain) total = careful_sum<T, kUnits>(row);
      if (!is_plain) {
        quotient = Quotient<T>(total, c.count, c.eps);
        if (c.denominator != nullptr) write_denominator<T>(c, denominator(i), total);
      }
      divide_units_again(row, mine, quotient, Exactly<T>(total, c));
    }
  }
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
#pragma unroll
    for (int k = 0; k < kUnits; ++k) {
      if (i < there && (unproven[i] >> k & 1) == 0) row_of(i).set_unit(k, units[i][k]);
    }
  }
}

// kRows rows of halves that follow each other, `there` of which are asked for, as normalize_known() does one. A sum
// lies between two floats, which are nearly always one: then it is exact, as divisors that are asked for have to be.
template <typename T, int kLength, int kRows>
__device__ __forceinline__ void normalize_neighbours(T* rows, int there, const FloatCount& count, const Call& c,
                                                     int64_t index) {
  constexpr int kWords = kRows * kLength / 2, kUnit = kWords % 4 == 0 ? 8 : kWords % 2 == 0 ? 4 : 2;
  using Unit = Pack<T, kUnit>;
  constexpr auto words_of = [](int row) {
    const int first = row * kLength / 2, last = ((row + 1) * kLength - 1) / 2;
    return (2u << last) - (1u << first);
  };
  Unit* const place = reinterpret_cast<Unit*>(rows);
  Unit units[2 * kWords / kUnit];
#pragma unroll
  for (int k = 0; k < 2 * kWords / kUnit; ++k) units[k] = place[k];
  Bounds sums[kRows];
  Quotient<T> quotients[kRows];
  uint32_t unproven = 0;  // words; all of a row that is not plain
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    sums[i] = bounds_of<kLength>([&](int e) {
      const int at = i * kLength + e;
      return fabsf(widen_at(units[at / kUnit], at % kUnit));
    });
    quotients[i] = Quotient<T>(sums[i], count);
    unproven |= quotients[i].settle_for(Least<T>{}) ? 0 : words_of(i);
  }
  if (c.denominator != nullptr) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      if (!sums[i].is_exact()) unproven |= words_of(i);
      if (i >= there || (unproven & words_of(i)) == words_of(i)) continue;
      write_denominator<T>(c, denominator_of(c, index + i), {static_cast<double>(sums[i].low), 0.0});
    }
  }
#pragma unroll
  for (int k = 0; k < kWords; ++k) {
    uint32_t& word = units[2 * k / kUnit].units[k % (kUnit / 2)];
    uint32_t result;
    const Quotient<T>&first = quotients[2 * k / kLength], &second = quotients[(2 * k + 1) / kLength];
    if (Quotient<T>::divide_pair(first, second, word, result) != 0) unproven |= 1u << k;
    word = result;
  }
  if (unproven == 0) {
#pragma unroll
    for (int k = 0; k < 2 * kWords / kUnit; ++k) place[k] = units[k];
    return;
  }
  // Ahead of other stores, as a row may be summed again.
#pragma unroll 1
  for (int i = 0; i < kRows; ++i) {
    uint32_t mine = unproven & words_of(i);
    if (mine == 0) continue;
    T* const row = rows + i * kLength;
    Sum total;
    add_each(total, row, kLength);
    if (c.denominator != nullptr && i < there) write_denominator<T>(c, denominator_of(c, index + i), total);
    const Quotient<T> quotient(total, c.count, c.eps);
    const Exactly<T> exactly(total, c);
#pragma unroll 1
    for (; mine != 0; mine &= mine - 1) {
      const int e = 2 * (__ffs(static_cast<int>(mine)) - 1) - i * kLength;
      if (e >= 0) row[e] = divide_again(row[e], quotient, exactly);
      if (e + 1 < kLength) row[e + 1] = divide_again(row[e + 1], quotient, exactly);
    }
  }
#pragma unroll
  for (int k = 0; k < kWords; ++k) {
    if ((unproven >> k & 1) == 0)
      reinterpret_cast<Pack<T, 2>*>(rows)[k] = {{units[2 * k / kUnit].units[k % (kUnit / 2)]}};
  }
}

// The gradient of a row of one element: none, where no special value and no clamp says otherwise.
template <typename T, typename Row>
__device__ __forceinline__ void differentiate_lone(const Row& x, const Row& g, const Call& c, int64_t index) {
  const auto value = widen(*x.at(0)), magnitude = value < 0 ? -value : value, grad = widen(*g.at(0));
  constexpr bool kDoubles = sizeof(T) == 8;
  const bool plain = magnitude > (kDoubles ? 0x1p-900 : 0.0f) && magnitude < (kDoubles ? 0x1p900 : INFINITY) &&
                     magnitude > static_cast<Wide<T>>(c.eps) && grad - grad == 0 && c.grad_denominator == nullptr;
  // Of a negative zero what input_gradient() makes of it.
  if (plain) {
    *g.at(0) = narrow<T>(!kDoubles && grad == 0 && value > 0 ? grad : 0 * magnitude);
  } else {
    differentiate<T>(x, g, c, RowDivisor<T>(c, denominator_of(c, index)));
  }
}

// What makes the gradients of a row of kLength elements. False where the row is not plain and takes another way.
template <int kLength, typename T, int kUnits, int N>
__device__ __forceinline__ bool find_gradient(const Pack<T, N> (&grads)[kUnits], const Pack<T, N> (&values)[kUnits],
                                              const Call& c, const RowDivisor<T>& divisor, Gradient& gradient) {
  if constexpr (reads_divisors<T>(kLength)) {
    const GradientScale scale = divisor.scale(c);
    const double by = dot_scale<Wide<T>>(scale.m, c.count);
    const Sum dot = dot_of<T>([&](auto& tally) { tally.template set<kUnits>(grads, values, by); });
    gradient = make_gradient<Wide<T>>(dot, scale);
    return true;
  } else {
    Least<T> least;
    note_each<kUnits>(least, values);
    Tally<T> tally;
    tally.template set<kUnits>(values);
    DotTally<T> dot;
    dot.template set<kUnits>(grads, values, 1.0);
    const Sum total = tally.finite_sum();
    double m;
    bool plain = c.grad_denominator == nullptr && total.hi < Tally<T>::kFinite;
    plain &= tally.is_exact(least) & dot.is_exact(least) & rounded_divisor(total, c.count, c.eps, m);
    gradient = make_plain_gradient(dot.finite_sum(), m, near_reciprocal(m), c.count, c.eps);
    return plain & is_finite(gradient.through);
  }
}

// As normalize_known(), of gradients; divisor: of the first row, where divisors are read.
template <typename T, int kLength, int kRows, typename RowOfX, typename RowOfG, typename Denominator>
__device__ __forceinline__ void differentiate_known(const RowOfX& x, const RowOfG& g, int there, const Call& c,
                                                    const Denominator& denominator, const RowDivisor<T>& divisor) {
  using Row = decltype(x(0));
  constexpr int kUnits = kUnitsOf<Row, kLength>;
  typename Row::RowUnit values[kRows][kUnits], grads[kRows][kUnits];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    load_units(x(i), values[i]);
    load_units(g(i), grads[i]);
  }
  Gradient gradients[kRows];
  uint32_t others = 0;  // rows that take another way
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    static_assert(kRows == 1 || !reads_divisors<T>(kLength));
    if (!find_gradient<kLength>(grads[i], values[i], c, divisor, gradients[i]) && i < there) others |= 1u << i;
  }
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    if ((others >> i & 1) != 0 || i >= there) continue;
    with_gradient<T>(gradients[i], [&](const auto& d) {
#pragma unroll
      for (int k = 0; k < kUnits; ++k) g(i).set_unit(k, input_gradients(grads[i][k], values[i][k], d));
    });
  }
#pragma unroll 1
  for (; others != 0; others &= others - 1) {
    const int i = __ffs(static_cast<int>(others)) - 1;
    differentiate<T>(x(i), g(i), c, RowDivisor<T>(c, denominator(i)));
  }
}

}  // namespace l1norm::cuda::tile_kernel
