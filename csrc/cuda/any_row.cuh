// Rows of any length in shared memory, read twice there, that threads have to themselves or share.
#pragma once

#include "gradient.cuh"
#include "tile_row.cuh"

namespace l1norm::cuda::tile_kernel {

// Calls use(elements) with the single elements of rows of one length, where they have them.
template <typename Use, typename Row, typename... Rows>
__device__ __forceinline__ void with_single(const Use& use, const Row& row, const Rows&... rows) {
  if constexpr (Row::kSingle) {
    if (row.has_single()) use(*row.single(), *rows.single()...);
  }
}

template <typename T>
__device__ __forceinline__ void divide_single(Pack<T, 1>& element, const Quotient<T>& quotient, const Sum& total,
                                              const Call& c) {
  const Pack<T, 1> value = element;
  Pack<T, 1> result;
  if (!quotient.divide(value, result)) result.units[0] = exact_quotient(value[0], exact_divisor<T>(total, c));
  element = result;
}

// row: the thread's part. together(sum): that of the whole row; note(sum): sees it.
template <typename T, typename Row, typename Together, typename Note>
__device__ __forceinline__ void normalize_part(const Row& row, const Call& c, const Together& together,
                                               const Note& note) {
  constexpr int kLarge = kLargeBatch<T, Row::kUnit>, kSmall = kSmallBatch<T, Row::kUnit>;
  typename Row::RowUnit large[kLarge], small[kSmall];
  int k = 0;
  Least<T> least;
  with_single([&](const auto& element) { least.note(element); }, row);
  const Sum total = together(sum_of<Tally<T>>(least, [&](auto& tally) {
    for (k = 0; k + kLarge <= row.count(); k += kLarge) {
      Batch<Row>::load(row, k, large);
      note_first<kLarge>(tally, least, large);
      add_packs(tally, large);
    }
    for (; k < row.count(); k += kSmall) {
      Batch<Row>::load(row, k, small);
      note_first<kSmall>(tally, least, small);
      add_packs(tally, small);
    }
    with_single([&](const auto& element) { tally.template add<1>(&element); }, row);
  }));
  note(total);

  const Quotient<T> quotient(total, c.count, c.eps);
  with_single([&](auto& element) { divide_single(element, quotient, total, c); }, row);
  for (k = 0; k + kLarge <= row.count(); k += kLarge) {
    Batch<Row>::load(row, k, large);
    Batch<Row>::divide(row, k, large, quotient, least, total, c);
  }
  for (; k < row.count(); k += kSmall) {
    Batch<Row>::load(row, k, small);
    Batch<Row>::divide(row, k, small, quotient, least, total, c);
  }
}

// denominator: where its divisor goes, if anywhere.
template <typename T, typename Row>
__device__ __forceinline__ void normalize(const Row& row, const Call& c, int64_t denominator) {
  normalize_part<T>(
      row, c, [](const Sum& sum) { return sum; },
      [&](const Sum& total) {
        if (c.denominator != nullptr) write_denominator<T>(c, denominator, total);
      });
}

// The gradients of a row's part, in place of those of its result.
template <typename T, typename Row, typename Together>
__device__ __forceinline__ void differentiate_part(const Row& x, const Row& g, const Call& c,
                                                   const RowDivisor<T>& divisor, const Together& together) {
  constexpr int kBatch = kLargeBatch<T, Row::kUnit> / 2;
  const GradientScale scale = divisor.scale(c);
  const double by = dot_scale<Wide<T>>(scale.m, c.count);
  typename Row::RowUnit values[kBatch], grads[kBatch];
  const Sum dot = together(dot_of<T>([&](auto& tally) {
    with_single([&](const auto& grad, const auto& value) { tally.template add<1>(&grad, &value, by); }, g, x);
    for (int k = 0; k < x.count(); k += kBatch) {
      Batch<Row>::load(x, k, values);
      Batch<Row>::load(g, k, grads);
      tally.template add<kBatch>(grads, values, by);
    }
  }));
  with_gradient<T>(make_gradient<Wide<T>>(dot, scale), [&](const auto& d) {
    with_single([&](auto& grad, const auto& value) { grad = input_gradients(grad, value, d); }, g, x);
    for (int k = 0; k < x.count(); k += kBatch) {
      Batch<Row>::load(x, k, values);
      Batch<Row>::load(g, k, grads);
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        if (j == 0 || k + j < x.count()) g.store(k + j, input_gradients(grads[j], values[j], d));
      }
    }
  });
}

template <typename T, typename Row>
__device__ __forceinline__ void differentiate(const Row& x, const Row& g, const Call& c, const RowDivisor<T>& divisor) {
  differentiate_part<T>(x, g, c, divisor, [](const Sum& sum) { return sum; });
}

}  // namespace l1norm::cuda::tile_kernel
