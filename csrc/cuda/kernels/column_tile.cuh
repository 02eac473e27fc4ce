// The column tile kernel, instantiated for one dtype by each column_tile_*.cu.
#pragma once

#include "../access.cuh"
#include "../any_row.cuh"
#include "../column_row.cuh"
#include "../early.cuh"
#include "../known_row.cuh"
#include "../launch.h"
#include "column_tile.h"

#include <utility>

namespace l1norm::cuda {
namespace column_tile_kernel {

// What a warp takes at a time.
template <typename T>
struct Tile {
  static constexpr int kPack = kPackBytes / static_cast<int>(sizeof(T));
  using TilePack = Pack<T, kPack>;

  __device__ __forceinline__ Tile(const Call& c, const ColumnTiling& t_, int64_t index) : t(t_) {
    const Walk& rows = c.geometry.rows;
    int64_t first;
    if (!t.gapless) {
      const int64_t group = index / t.in_a_group, column = (index - group * t.in_a_group) * t.width;
      columns = static_cast<int>(min(static_cast<int64_t>(t.width), t.columns - column));
      first = group * t.columns + column;
      offsets = rows.at(first);
      step = c.geometry.row.stride[0];
      elements = columns;
    } else {
      first = index * t.width;
      columns = static_cast<int>(min(static_cast<int64_t>(t.width), rows.count - first));
      offsets.input = offsets.grad = offsets.output = first * t.length;
      offsets.denominator = first * rows.stride[rows.dims - 1].denominator;
      step = {};
      elements = columns * t.length;
    }
    past = elements_past<T>(c.output, offsets.output, kPack);
    denominator_step = rows.stride[rows.dims - 1].denominator;
  }

  // Where column r begins in shared memory, and at which of its units: those of neighbouring groups at others, or lanes
  // would hit the same banks.
  __device__ __forceinline__ int place(int r, int& start) const {
    const int group = static_cast<int>(t.by_columns.quotient(static_cast<uint32_t>(r)));
    start = group & t.rotation;
    return past + r + group * (t.length - 1) * t.apart;
  }

  // Calls visit(element in memory, element in shared memory, first, last) for each of the warp's packs that are a
  // thread's: from which element of theirs to which they are the tile's. Segments are so far apart in shared memory
  // that their steps are as far from a pack there as in memory.
  template <typename Visit>
  __device__ __forceinline__ void each_pack(int64_t offset, int64_t stride, const Visit& visit) const {
    const int lane = static_cast<int>(threadIdx.x) % 32, mine = lane & ((1 << t.lane_bits) - 1);
#pragma unroll 4
    for (int s = lane >> t.lane_bits; s < t.segments; s += 32 >> t.lane_bits) {
      const int place = past + s * t.apart, begin = place & (kPack - 1), end = begin + elements;
      const int64_t start = offset + s * stride - begin;
      for (int p = mine * kPack; p < end; p += kPack << t.lane_bits) {
        visit(start + p, place - begin + p, max(begin - p, 0), min(end - p, kPack));
      }
    }
  }

  // Starts to load. What lies beside the tile in its packs comes along, but for what lies outside of the operand.
  __device__ __forceinline__ void load(const void* operand, int64_t offset, int64_t stride, int64_t span,
                                       T* tile) const {
    const T* const from = static_cast<const T*>(operand);
    each_pack(offset, stride, [&](int64_t at, int to, int first, int last) {
      if (at >= 0 && at + kPack <= span) {
        copy_async<Access::kOnce>(tile + to, from + at);
      } else {
#pragma unroll 1
        for (int e = first; e < last; ++e) tile[to + e] = from[at + e];
      }
    });
  }

  __device__ __forceinline__ void store(void* operand, const T* tile) const {
    T* const to = static_cast<T*>(operand);
    each_pack(offsets.output, step.output, [&](int64_t at, int from, int first, int last) {
      if (last - first == kPack) {
        store_pack<Access::kOnce>(reinterpret_cast<TilePack*>(to + at),
                                  *reinterpret_cast<const TilePack*>(tile + from));
      } else {
#pragma unroll 1
        for (int e = first; e < last; ++e) to[at + e] = tile[from + e];
      }
    });
  }

  const ColumnTiling& t;
  Offsets offsets, step;
  int64_t denominator_step;
  int columns, elements;  // of the tile; of a segment
  int past;               // of the first segment in its pack
};

// Columns of up to so many steps stay in registers from their read to the write of their results. Not of more, as
// kernels take room in the binary; gradients of doubles are as fast without.
template <typename T, bool kBackward>
constexpr int kLongestKnownColumn = sizeof(T) < 8 ? 12
                                    : kBackward   ? 1
                                                  : 8;

// Blocks of the most threads on a multiprocessor that registers are shared between.
template <typename T, bool kBackward>
constexpr int column_tile_blocks(int length) {
  return sizeof(T) == 8 || (kBackward && length >= 8) ? 4 : 6;
}

template <typename T, bool kBackward, int kLength, bool kOdd>
__global__ void __launch_bounds__(kMostColumnTileThreads, column_tile_blocks<T, kBackward>(kLength))
    kernel(const __grid_constant__ Call c, const __grid_constant__ ColumnTiling t) {
  using namespace tile_kernel;
  using Row = Column<T, kLength, kOdd>;
  extern __shared__ __align__(kSharedLine) unsigned char tiles[];
  constexpr int kOperands = kBackward ? 2 : 1;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t index = static_cast<int64_t>(blockIdx.x) * (blockDim.x / 32) + warp;
  ask_ahead<kBackward>(c);
  if (index >= t.tiles) return;
  const Tile<T> tile(c, t, index);
  T* const values = reinterpret_cast<T*>(tiles + kOperands * warp * t.tile_bytes);
  T* const grads = reinterpret_cast<T*>(tiles + (kOperands * warp + kOperands - 1) * t.tile_bytes);
  int start = 0;
  const auto row_at = [&](T* from, int place) { return Row(from + place, t.length, t.apart, start); };
  const auto denominator = [&](int r) { return tile.offsets.denominator + r * tile.denominator_step; };
  await_stream();
  tile.load(c.input, tile.offsets.input, tile.step.input, t.span_input, values);
  if constexpr (kBackward) {
    tile.load(c.grad, tile.offsets.grad, tile.step.grad, t.span_grad, grads);
    // Divisors are a step ahead, so that no thread waits for its own.
    constexpr bool kReads = reads_divisors<T>(kLength);
    const auto divisor_of = [&](int r) { return RowDivisor<T>(c, denominator(min(r, tile.columns - 1))); };
    RowDivisor<T> next{};
    if constexpr (kReads) next = divisor_of(lane);
    wait_for_copies();
    __syncwarp();
    for (int r = lane; r < tile.columns; r += 32) {
      const RowDivisor<T> divisor = next;
      if constexpr (kReads) next = divisor_of(r + 32);
      const int place = tile.place(r, start);
      if constexpr (kLength > 0) {
        differentiate_known<T, kLength, 1>([&](int) { return row_at(values, place); },
                                           [&](int) { return row_at(grads, place); }, 1, c,
                                           [&](int) { return denominator(r); }, divisor);
      } else {
        differentiate<T>(row_at(values, place), row_at(grads, place), c, divisor);
      }
    }
  } else {
    wait_for_copies();
    __syncwarp();
    for (int r = lane; r < tile.columns; r += 32) {
      const int place = tile.place(r, start);
      if constexpr (kLength > 0) {
        normalize_known<T, kLength, 1>([&](int) { return row_at(values, place); }, 1, c,
                                       [&](int) { return denominator(r); });
      } else {
        normalize<T>(row_at(values, place), c, denominator(r));
      }
    }
  }
  __syncwarp();
  tile.store(c.output, grads);
}

template <typename T, bool kBackward, int kLength, bool kOdd = sizeof(T) == 2 && kLength % 2 == 1>
cudaError_t launch(const Call& c, const ColumnTiling& t, const ColumnTilePlan& plan, cudaStream_t stream) {
  const auto function = kernel<T, kBackward, kLength, kOdd>;
  const int warps = plan.threads / 32, shared_bytes = warps * (kBackward ? 2 : 1) * t.tile_bytes;
  static Prepared prepared;
  const cudaError_t error = prepared.for_launch(c.device, reinterpret_cast<const void*>(function), shared_bytes);
  if (error != cudaSuccess) return error;
  return launch_in_stream(c, function, ceil_div(plan.tiles, warps), plan.threads, static_cast<size_t>(shared_bytes), 1,
                          stream, c, t);
}

template <typename T, bool kBackward, int... kLess>
cudaError_t launch_known(const Call& c, const ColumnTiling& t, const ColumnTilePlan& plan, cudaStream_t stream,
                         std::integer_sequence<int, kLess...>) {
  cudaError_t error = cudaErrorInvalidValue;
  ((t.length == kLess + 2 ? static_cast<void>(error = launch<T, kBackward, kLess + 2>(c, t, plan, stream))
                          : static_cast<void>(0)),
   ...);
  return error;
}

template <typename T, bool kBackward>
cudaError_t launch(const Call& c, const ColumnTiling& t, const ColumnTilePlan& plan, cudaStream_t stream) {
  constexpr int kLongest = kLongestKnownColumn<T, kBackward>;
  if constexpr (kLongest > 1) {
    if (t.length > 1 && t.length <= kLongest) {
      return launch_known<T, kBackward>(c, t, plan, stream, std::make_integer_sequence<int, kLongest - 1>{});
    }
  }
  if constexpr (sizeof(T) == 2) {
    if (t.length % 2 == 1) return launch<T, kBackward, 0, true>(c, t, plan, stream);
  }
  return launch<T, kBackward, 0>(c, t, plan, stream);
}

}  // namespace column_tile_kernel

template <DType D>
cudaError_t column_tile(const Call& call, const ColumnTilePlan& plan, cudaStream_t stream) {
  using T = typename ElementOf<D>::type;
  const Geometry& g = call.geometry;
  constexpr int64_t kPack = kPackBytes / sizeof(T);
  const int64_t columns = g.rows.size[g.rows.dims - 1];
  ColumnTiling t{};
  t.tiles = plan.tiles;
  t.in_a_group = plan.gapless ? 1 : ceil_div(columns, plan.width);
  t.columns = columns;
  t.span_input = g.span(&Offsets::input);
  t.span_grad = g.span(&Offsets::grad);
  t.width = plan.width;
  t.segments = plan.segments;
  t.gapless = plan.gapless;
  t.length = static_cast<int>(g.row.count);
  t.tile_bytes = plan.tile_bytes;
  t.lane_bits = bits_of(static_cast<uint32_t>(plan.lanes)) - 1;
  if (plan.gapless) {
    t.apart = static_cast<int>(columns);
    t.by_columns = Divider(static_cast<uint32_t>(columns));
    // Of an odd number of steps groups begin in different banks as it is.
    const uint32_t units = static_cast<uint32_t>(sizeof(T) == 2 ? t.length / 2 : t.length);
    t.rotation = t.length % 2 == 0 ? (1 << (bits_of(units) - 1)) - 1 : 0;
  } else {
    t.by_columns = Divider(1u << 31);  // all of one group
    t.apart = plan.pitch + static_cast<int>(g.row.stride[0].output & (kPack - 1));
  }
  return call.grad == nullptr ? column_tile_kernel::launch<T, false>(call, t, plan, stream)
                              : column_tile_kernel::launch<T, true>(call, t, plan, stream);
}

}  // namespace l1norm::cuda
