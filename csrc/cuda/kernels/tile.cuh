// The tile kernel, instantiated for one dtype by each tile_*.cu.
#pragma once

#include "../bulk.cuh"
#include "../early.cuh"
#include "../gradient.cuh"
#include "../launch.h"
#include "../tile_row.cuh"
#include "tile.h"

#include <utility>

namespace l1norm::cuda {
namespace tile_kernel {

template <typename Row, typename T>
__device__ __forceinline__ void divide_single(const Row& row, const Quotient<T>& quotient, const Sum& total,
                                              const Call& c) {
  const Pack<T, 1> value = *row.single();
  Pack<T, 1> result;
  if (!quotient.divide(value, result)) result.units[0] = exact_quotient(value[0], exact_divisor<T>(total, c));
  *row.single() = result;
}

// Any length: two passes over shared memory.
template <typename T, typename Row>
__device__ __forceinline__ void normalize(const Row& row, const Call& c, int64_t index) {
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
  if (c.denominator != nullptr) write_denominator<T>(c, c.geometry.rows.at(index).denominator, total);

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

// A row of one element: its sign, where no special value and no clamp says otherwise (0.84 by way of a divisor).
template <typename T, typename Row>
__device__ __forceinline__ bool normalize_lone(const Row& row, const Call& c) {
  Pack<T, 1>* const place = [&] {
    if constexpr (Row::kSingle) {
      return row.single();
    } else {
      return row.first();
    }
  }();
  const auto value = widen((*place)[0]);
  const auto magnitude = value < 0 ? -value : value;
  if (!(magnitude > 0 && magnitude < INFINITY && magnitude >= c.eps) || c.denominator != nullptr) return false;
  place->units[0] = narrow<T>(value < 0 ? -1.0f : 1.0f);
  return true;
}

// A length that is known: in registers, several rows at a time. False, and nothing done, where a divisor is not plain.
// index: of the first row; the others follow 32 apart.
template <typename T, int kLength, typename Row, int kRows>
__device__ __forceinline__ bool normalize_short(const Row (&rows)[kRows], const Call& c, int64_t index) {
  constexpr int kUnits = kLength / Row::kUnit;
  if constexpr (kLength == 1) {
    if (normalize_lone<T>(rows[0], c)) return true;
  }
  typename Row::RowUnit units[kRows][kUnits > 0 ? kUnits : 1];
  Least<T> least[kRows];
  Sum totals[kRows];
  Quotient<T> quotients[kRows];
  bool plain = true;
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    if constexpr (kUnits > 0) {
      Batch<Row>::load(rows[i], 0, units[i]);
      note_each<kUnits>(least[i], units[i]);
    }
    if constexpr (Row::kSingle) least[i].note(*rows[i].single());
  }
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    Tally<T> tally;
    if constexpr (Row::kSingle) {
      tally.template set<1>(rows[i].single());
      if constexpr (kUnits > 0) tally.template add<kUnits>(units[i]);
    } else {
      tally.template set<kUnits>(units[i]);
    }
    totals[i] = tally.sum();
    quotients[i] = Quotient<T>(totals[i], c.count, c.eps, Plain{});
    plain &= tally.is_exact(least[i]) & quotients[i].settle_for(least[i]);
  }
  if (!plain) return false;
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    if (c.denominator != nullptr) {
      write_denominator<T>(c, c.geometry.rows.at(index + 32 * i).denominator, totals[i]);
    }
    if constexpr (Row::kSingle) divide_single(rows[i], quotients[i], totals[i], c);
    if constexpr (kUnits > 0) Batch<Row>::divide(rows[i], 0, units[i], quotients[i], least[i], totals[i], c);
  }
  return true;
}

// Lengths that kernels are compiled for.
constexpr int kKnownLengths = 8;

// The gradients of a row, in place of those of its result.
template <typename T, typename Row>
__device__ __forceinline__ void differentiate(const Row& x, const Row& g, const Call& c, const RowDivisor<T>& divisor) {
  constexpr int kBatch = kLargeBatch<T, Row::kUnit> / 2;
  const GradientScale scale = divisor.scale(c);
  const double by = dot_scale<Wide<T>>(scale.m, c.count);
  typename Row::RowUnit values[kBatch], grads[kBatch];
  const Sum dot = sum_of<DotTally<T>>(Least<T>{}, [&](auto& tally) {
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

// Of a length that is known: in registers, several rows at a time.
template <typename T, int kLength, typename Row, int kRows>
__device__ __forceinline__ void differentiate_short(const Row (&x)[kRows], const Row (&g)[kRows], const Call& c,
                                                    const RowDivisor<T> (&divisors)[kRows]) {
  constexpr int kUnits = kLength / Row::kUnit;
  typename Row::RowUnit values[kRows][kUnits > 0 ? kUnits : 1], grads[kRows][kUnits > 0 ? kUnits : 1];
  Pack<T, 1> value[kRows], grad[kRows];  // with kSingle
  GradientScale scales[kRows];
  double by[kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    scales[i] = divisors[i].scale_at_once(c);
    by[i] = dot_scale<Wide<T>>(scales[i].m, c.count);
    if constexpr (Row::kSingle) {
      value[i] = *x[i].single();
      grad[i] = *g[i].single();
    }
    if constexpr (kUnits > 0) {
      Batch<Row>::load(x[i], 0, values[i]);
      Batch<Row>::load(g[i], 0, grads[i]);
    }
  }
  Gradient gradients[kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const Sum dot = sum_of<DotTally<T>>(Least<T>{}, [&](auto& tally) {
      if constexpr (!Row::kSingle) {
        tally.template set<kUnits>(grads[i], values[i], by[i]);
      } else {
        tally.template set<1>(&grad[i], &value[i], by[i]);
        if constexpr (kUnits > 0) tally.template add<kUnits>(grads[i], values[i], by[i]);
      }
    });
    gradients[i] = make_gradient<Wide<T>>(dot, scales[i]);
  }
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    with_gradient<T>(gradients[i], [&](const auto& d) {
      if constexpr (Row::kSingle) *g[i].single() = input_gradients(grad[i], value[i], d);
      if constexpr (kUnits > 0) {
#pragma unroll
        for (int j = 0; j < kUnits; ++j) g[i].store(j, input_gradients(grads[i][j], values[i][j], d));
      }
    });
  }
}

// Whether a thread takes two rows at a time, as the arithmetic of one waits for itself (gradients of 3 float32: 0.86
// and 0.76; 3 float16: 0.69 and 0.65). Forward, it is halves' alone that takes longer than memory; gradients of doubles
// take too many registers.
template <typename T, bool kBackward, int kLength>
constexpr bool kTwoAtATime = kBackward ? kLength > 0 && sizeof(T) < 8 : kLength > 1 && sizeof(T) == 2;

// Blocks on a multiprocessor that registers are shared between.
template <typename T, bool kBackward>
constexpr int kTileBlocks = 6 - (kBackward ? 1 : 0) - (sizeof(T) == 8 ? 1 : 0);

// A warp a tile of tile_rows rows, backward with one of their results' gradients ahead of it; a thread a row at a time.
// kLength: 0 for any.
template <typename T, bool kBackward, int kUnitBytes, int kLength>
__global__ void __launch_bounds__(kTileKernelThreads, kTileBlocks<T, kBackward>)
    kernel(const __grid_constant__ Call c, const int tile_rows, const int tile_bytes) {
  using Row = TileRow<T, kUnitBytes>;
  constexpr int kOperands = kBackward ? 2 : 1;
  extern __shared__ __align__(kSharedLine) unsigned char tiles[];
  __shared__ uint64_t barriers[kOperands * kTileKernelThreads / 32];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int length = kLength > 0 ? kLength : static_cast<int>(c.geometry.row.count);
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * (kTileKernelThreads / 32) + warp) * tile_rows;
  if (first >= c.geometry.rows.count) return;
  const int rows = static_cast<int>(min(static_cast<int64_t>(tile_rows), c.geometry.rows.count - first));
  const int bytes = rows * length * static_cast<int>(sizeof(T));
  unsigned char* const tile = tiles + kOperands * warp * tile_bytes;  // the result's as well
  const WarpCopy copy(&barriers[kOperands * warp]);
  const T* const x = static_cast<const T*>(c.input) + first * length;
  const auto row_of = [&](unsigned char* from, int r) { return Row(from, r, length, lane); };
  constexpr bool kTwo = kTwoAtATime<T, kBackward, kLength>;
  int r = lane;
  await_stream();
  if constexpr (kBackward) {
    unsigned char* const tile_x = tile + tile_bytes;
    const WarpCopy copy_x(&barriers[kOperands * warp + 1]);
    const int whole = copy.load(tile, static_cast<const T*>(c.grad) + first * length, bytes);
    const int whole_x = copy_x.load(tile_x, x, bytes);
    // Divisors are a step ahead, so that no thread waits for its own.
    const auto divisor_of = [&](int row) {
      return RowDivisor<T>(c, c.geometry.rows.at(first + min(row, rows - 1)).denominator);
    };
    RowDivisor<T> divisor = divisor_of(lane), second;
    if constexpr (kTwo) second = divisor_of(lane + 32);
    copy.wait(whole);
    copy_x.wait(whole_x);
    if constexpr (kTwo) {
      for (; r + 32 < rows; r += 64) {
        const Row rows_x[] = {row_of(tile_x, r), row_of(tile_x, r + 32)};
        const Row rows_g[] = {row_of(tile, r), row_of(tile, r + 32)};
        const RowDivisor<T> divisors[] = {divisor, second};
        divisor = divisor_of(r + 64);
        second = divisor_of(r + 96);
        differentiate_short<T, kLength>(rows_x, rows_g, c, divisors);
      }
    }
    for (; r < rows; r += 32) {
      const Row rows_x[] = {row_of(tile_x, r)}, rows_g[] = {row_of(tile, r)};
      const RowDivisor<T> divisors[] = {divisor};
      divisor = divisor_of(r + 32);
      if constexpr (kLength > 0) {
        differentiate_short<T, kLength>(rows_x, rows_g, c, divisors);
      } else {
        differentiate<T>(rows_x[0], rows_g[0], c, divisors[0]);
      }
    }
  } else {
    copy.wait(copy.load(tile, x, bytes));
    for (; r < rows; r += 32) {
      if constexpr (kTwo) {
        const Row two[] = {row_of(tile, r), row_of(tile, min(r + 32, rows - 1))};
        if (r + 32 < rows && normalize_short<T, kLength>(two, c, first + r)) {
          r += 32;
          continue;
        }
      }
      if constexpr (kLength > 0) {
        const Row one[] = {row_of(tile, r)};
        if (normalize_short<T, kLength>(one, c, first + r)) continue;
      }
      normalize<T>(row_of(tile, r), c, first + r);
    }
  }
  copy.store(static_cast<T*>(c.output) + first * length, tile, bytes);
}

template <typename T, bool kBackward, int kUnitBytes, int kLength>
cudaError_t launch(const Call& c, const TilePlan& plan, cudaStream_t stream) {
  constexpr int kWarps = kTileKernelThreads / 32;
  const auto function = kernel<T, kBackward, kUnitBytes, kLength>;
  const int tile_bytes =
      (plan.rows * static_cast<int>(c.geometry.row.count) * static_cast<int>(sizeof(T)) + 127) / 128 * 128;
  const int shared_bytes = kWarps * (kBackward ? 2 : 1) * tile_bytes;
  static Prepared prepared;
  const cudaError_t error = prepared.for_launch(c.device, reinterpret_cast<const void*>(function), shared_bytes);
  if (error != cudaSuccess) return error;
  const int64_t rows_a_block = static_cast<int64_t>(plan.rows) * kWarps;
  const int64_t blocks = (c.geometry.rows.count + rows_a_block - 1) / rows_a_block;
  return launch_in_stream(c, function, blocks, kTileKernelThreads, static_cast<size_t>(shared_bytes), 1, stream, c,
                          plan.rows, tile_bytes);
}

// The largest power of two, up to 16, that divides a row's bytes.
template <typename T>
constexpr int unit_bytes(int64_t length) {
  const int64_t bytes = length * static_cast<int64_t>(sizeof(T));
  return bytes % 16 == 0 ? 16 : bytes % 8 == 0 ? 8 : bytes % 4 == 0 ? 4 : 2;
}

template <typename T, bool kBackward, int... kLess>
cudaError_t launch_known(const Call& c, const TilePlan& plan, cudaStream_t stream,
                         std::integer_sequence<int, kLess...>) {
  cudaError_t error = cudaErrorInvalidValue;
  ((c.geometry.row.count == kLess + 1
        ? static_cast<void>(error = launch<T, kBackward, unit_bytes<T>(kLess + 1), kLess + 1>(c, plan, stream))
        : static_cast<void>(0)),
   ...);
  return error;
}

template <typename T, bool kBackward>
cudaError_t launch_any(const Call& c, const TilePlan& plan, cudaStream_t stream) {
  const int unit = unit_bytes<T>(c.geometry.row.count);
  if (unit == 16) return launch<T, kBackward, 16, 0>(c, plan, stream);
  if (unit == 8) return launch<T, kBackward, 8, 0>(c, plan, stream);
  if constexpr (sizeof(T) <= 4) {
    if (unit == 4) return launch<T, kBackward, 4, 0>(c, plan, stream);
  }
  if constexpr (sizeof(T) == 2) return launch<T, kBackward, 2, 0>(c, plan, stream);
  return cudaErrorInvalidValue;
}

}  // namespace tile_kernel

template <DType D>
cudaError_t tile(const Call& call, const TilePlan& plan, cudaStream_t stream) {
  using T = typename ElementOf<D>::type;
  using namespace tile_kernel;
  const auto either = [&](auto backward) {
    constexpr bool kBackward = decltype(backward)::value;
    if (call.geometry.row.count > kKnownLengths) return launch_any<T, kBackward>(call, plan, stream);
    return launch_known<T, kBackward>(call, plan, stream, std::make_integer_sequence<int, kKnownLengths>{});
  };
  return call.grad == nullptr ? either(std::false_type{}) : either(std::true_type{});
}

}  // namespace l1norm::cuda
