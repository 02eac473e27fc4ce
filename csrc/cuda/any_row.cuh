// Rows of any length in shared memory, a thread a row: read twice there.
#pragma once

#include "gradient.cuh"
#include "tile_row.cuh"

namespace l1norm::cuda::tile_kernel {

template <typename Row, typename T>
__device__ __forceinline__ void divide_single(const Row& row, const Quotient<T>& quotient, const Sum& total,
                                              const Call& c) {
  const Pack<T, 1> value = *row.single();
  Pack<T, 1> result;
  if (!quotient.divide(value, result)) result.units[0] = exact_quotient(value[0], exact_divisor<T>(total, c));
  *row.single() = result;
}

// denominator: where its divisor goes, if anywhere.
template <typename T, typename Row>
__device__ __forceinline__ void normalize(const Row& row, const Call& c, int64_t denominator) {
  constexpr int kLarge = kLargeBatch<T, Row::kUnit>, kSmall = kSmallBatch<T, Row::kUnit>;
  typename Row::RowUnit large[kLarge], small[kSmall];
  int k = 0;
  Least<T> least;
  if constexpr (Row::kSingle) least.note(*row.single());
  const Sum total = sum_of<Tally<T>>(least, [&](auto& tally) {
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
    if constexpr (Row::kSingle) tally.template add<1>(row.single());
  });
  if (c.denominator != nullptr) write_denominator<T>(c, denominator, total);

  const Quotient<T> quotient(total, c.count, c.eps);
  if constexpr (Row::kSingle) divide_single(row, quotient, total, c);
  for (k = 0; k + kLarge <= row.count(); k += kLarge) {
    Batch<Row>::load(row, k, large);
    Batch<Row>::divide(row, k, large, quotient, least, total, c);
  }
  for (; k < row.count(); k += kSmall) {
    Batch<Row>::load(row, k, small);
    Batch<Row>::divide(row, k, small, quotient, least, total, c);
  }
}

// The gradients of a row, in place of those of its result.
template <typename T, typename Row>
__device__ __forceinline__ void differentiate(const Row& x, const Row& g, const Call& c, const RowDivisor<T>& divisor) {
  constexpr int kBatch = kLargeBatch<T, Row::kUnit> / 2;
  const GradientScale scale = divisor.scale(c);
  const double by = dot_scale<Wide<T>>(scale.m, c.count);
  typename Row::RowUnit values[kBatch], grads[kBatch];
  const Sum dot = dot_of<T>([&](auto& tally) {
    if constexpr (Row::kSingle) tally.template add<1>(g.single(), x.single(), by);
    for (int k = 0; k < x.count(); k += kBatch) {
      Batch<Row>::load(x, k, values);
      Batch<Row>::load(g, k, grads);
      tally.template add<kBatch>(grads, values, by);
    }
  });
  with_gradient<T>(make_gradient<Wide<T>>(dot, scale), [&](const auto& d) {
    if constexpr (Row::kSingle) *g.single() = input_gradients(*g.single(), *x.single(), d);
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

}  // namespace l1norm::cuda::tile_kernel
