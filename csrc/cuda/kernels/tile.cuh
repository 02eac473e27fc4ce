// The tile kernel, instantiated for one dtype by each tile_*.cu.
#pragma once

#include "../bulk.cuh"
#include "../early.cuh"
#include "../gradient.cuh"
#include "../launch.h"
#include "../packed_rows.cuh"
#include "tile.h"

#include <utility>

namespace l1norm::cuda {
namespace tile_kernel {

// Some kernels take a few registers more there, and would spill.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1200
constexpr int kBlocksFewer = 1;
#else
constexpr int kBlocksFewer = 0;
#endif
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
constexpr int kBlocksOfTwelve = 6;
#else
constexpr int kBlocksOfTwelve = 8;  // it asks ahead, and would take a register more than leaves room for them
#endif

// Blocks of the most threads on a multiprocessor that registers are shared between.
template <typename T, bool kBackward>
constexpr int tile_blocks(int length) {
  if (sizeof(T) == 8) return kBackward ? (length > 0 && length <= 5 ? 6 : 4) : 5;
  if (kBackward) return length > 8 && length <= 12 ? 6 : length > (sizeof(T) == 2 ? 14 : 19) ? 5 - kBlocksFewer : 5;
  if (sizeof(T) == 4 && length == 12) return kBlocksOfTwelve;
  return sizeof(T) == 2 && length == 8 ? 8 : 6;
}

// A warp a tile of tile_rows rows, backward with one of their results' gradients ahead of it; a thread a row at a time.
// kLength: 0 for any.
template <typename T, bool kBackward, int kUnitBytes, int kLength>
__global__ void __launch_bounds__(kMostTileThreads, tile_blocks<T, kBackward>(kLength))
    kernel(const __grid_constant__ Call c, const int tile_rows, const int tile_bytes) {
  using Row = TileRow<T, kUnitBytes>;
  constexpr int kOperands = kBackward ? 2 : 1;
  extern __shared__ __align__(kSharedLine) unsigned char tiles[];
  __shared__ uint64_t barriers[kOperands * kMostTileThreads / 32];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int length = kLength > 0 ? kLength : static_cast<int>(c.geometry.row.count);
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * (blockDim.x / 32) + warp) * tile_rows;
  ask_ahead<kBackward>(c);
  if (first >= c.geometry.rows.count) return;
  const int rows = static_cast<int>(min(static_cast<int64_t>(tile_rows), c.geometry.rows.count - first));
  const int bytes = rows * length * static_cast<int>(sizeof(T));
  unsigned char* const tile = tiles + kOperands * warp * tile_bytes;  // the result's as well
  const WarpCopy copy(&barriers[kOperands * warp]);
  const T* const x = static_cast<const T*>(c.input) + first * length;
  const auto row_of = [&](unsigned char* from, int r) { return Row(from, r, length, lane); };
  int r = lane;
  // Rows of a thread that are taken at a time, of which those that there are not stand for the first.
  constexpr int kRows = rows_at_a_time<T, kBackward>(kLength);
  const auto there = [&] { return r + 32 < rows ? kRows : 1; };
  const auto at = [&](int i) { return r + 32 * i < rows ? r + 32 * i : r; };
  const auto denominator = [&](int i) { return denominator_of(c, first + r + 32 * i); };
  await_stream();
  if constexpr (kBackward) {
    unsigned char* const tile_x = tile + tile_bytes;
    const WarpCopy copy_x(&barriers[kOperands * warp + 1]);
    // Of rows that repeat themselves the first tile's are all that there are.
    const T* const grad = static_cast<const T*>(c.grad) + first * c.geometry.rows.stride[0].grad;
    const int whole = copy.load(tile, grad, bytes);
    const int whole_x = copy_x.load(tile_x, x, bytes);
    // Divisors are a step ahead, so that no thread waits for its own.
    constexpr bool kReads = reads_divisors<T>(kLength);
    const auto divisor_of = [&](int row) { return RowDivisor<T>(c, denominator_of(c, first + min(row, rows - 1))); };
    RowDivisor<T> next{};
    if constexpr (kReads) next = divisor_of(lane);
    copy.wait(whole);
    copy_x.wait(whole_x);
    for (; r < rows; r += 32 * kRows) {
      const RowDivisor<T> divisor = next;
      if constexpr (kReads) next = divisor_of(r + 32);
      if constexpr (kLength == 1) {
        differentiate_lone<T>(row_of(tile_x, r), row_of(tile, r), c, first + r);
      } else if constexpr (kLength > 1) {
        differentiate_known<T, kLength, kRows>([&](int i) { return row_of(tile_x, at(i)); },
                                               [&](int i) { return row_of(tile, at(i)); }, there(), c, denominator,
                                               divisor);
      } else {
        differentiate<T>(row_of(tile_x, r), row_of(tile, r), c, divisor);
      }
    }
  } else {
    copy.wait(copy.load(tile, x, bytes));
    if constexpr (constexpr int kNeighbours = neighbours_a_lane(sizeof(T), kLength); kNeighbours > 1) {
      // Behind a tile's last row, in its room, there may be others that nobody asks for.
      const FloatCount count(c.count, c.eps);
      for (r *= kNeighbours; r < rows; r += 32 * kNeighbours) {
        normalize_neighbours<T, kLength, kNeighbours>(reinterpret_cast<T*>(tile) + r * kLength, rows - r, count, c,
                                                      first + r);
      }
    } else {
      for (; r < rows; r += 32 * kRows) {
        if constexpr (kLength > 0) {
          normalize_known<T, kLength, kRows>([&](int i) { return row_of(tile, at(i)); }, there(), c, denominator);
        } else {
          normalize<T>(row_of(tile, r), c, denominator_of(c, first + r));
        }
      }
    }
  }
  copy.store(static_cast<T*>(c.output) + first * length, tile, bytes);
}

template <typename T, bool kBackward, int kUnitBytes, int kLength>
cudaError_t launch(const Call& c, const TilePlan& plan, cudaStream_t stream) {
  const auto function = kernel<T, kBackward, kUnitBytes, kLength>;
  const int tile_bytes =
      (plan.rows * static_cast<int>(c.geometry.row.count) * static_cast<int>(sizeof(T)) + 127) / 128 * 128;
  const int warps = plan.threads / 32, shared_bytes = warps * (kBackward ? 2 : 1) * tile_bytes;
  static Prepared prepared;
  const cudaError_t error = prepared.for_launch(c.device, reinterpret_cast<const void*>(function), shared_bytes);
  if (error != cudaSuccess) return error;
  const int64_t rows_a_block = static_cast<int64_t>(plan.rows) * warps;
  const int64_t blocks = (c.geometry.rows.count + rows_a_block - 1) / rows_a_block;
  return launch_in_stream(c, function, blocks, plan.threads, static_cast<size_t>(shared_bytes), 1, stream, c, plan.rows,
                          tile_bytes);
}

// A thread some packs of rows of kLength floats each, a block's threads apart.
template <bool kBackward, int kLength, bool kDivisors>
__global__ void __launch_bounds__(kPackedThreads, kPackedBlocks)
    packed_kernel(const __grid_constant__ Call c, const int64_t whole) {
  ask_ahead<kBackward>(c);
  const int64_t first = static_cast<int64_t>(blockIdx.x) * (kPackedThreads * kPackedPacks) + threadIdx.x;
  await_stream();
  const auto rows_of = [&](int p) { return PackOfRows<kBackward, kLength>(c, first + p * kPackedThreads, whole); };
  static_assert(kPackedPacks == 2);
  const PackOfRows<kBackward, kLength> rows[] = {rows_of(0), rows_of(1)};
#pragma unroll
  for (int p = 0; p < kPackedPacks; ++p) {
    if constexpr (kBackward) {
      rows[p].differentiate(c);
    } else {
      rows[p].template normalize<kDivisors>(c);
    }
  }
}

template <bool kBackward>
cudaError_t launch_packed(const Call& c, cudaStream_t stream) {
  constexpr int kPack = kPackBytes / sizeof(float);
  constexpr int64_t kPacks = kPackedThreads * kPackedPacks;
  const int64_t elements = c.geometry.rows.count * c.geometry.row.count, whole = elements / kPack;
  const int64_t blocks = (elements + kPack * kPacks - 1) / (kPack * kPacks);
  const auto of_length = [&](auto length) {
    constexpr int kLength = decltype(length)::value;
    const auto launch = [&](auto function) {
      return launch_in_stream(c, function, blocks, kPackedThreads, 0, 1, stream, c, whole);
    };
    if (kBackward || c.denominator == nullptr) return launch(packed_kernel<kBackward, kLength, false>);
    return launch(packed_kernel<false, kLength, true>);
  };
  if (c.geometry.row.count == kPack) return of_length(std::integral_constant<int, kPack>{});
  if (c.geometry.row.count == kPack / 2) return of_length(std::integral_constant<int, kPack / 2>{});
  return cudaErrorInvalidValue;
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
    if constexpr (std::is_same_v<T, float>) {
      if (plan.packed) return launch_packed<kBackward>(call, stream);
    }
    if (call.geometry.row.count > kKnownLengths<T>) return launch_any<T, kBackward>(call, plan, stream);
    return launch_known<T, kBackward>(call, plan, stream, std::make_integer_sequence<int, kKnownLengths<T>>{});
  };
  return call.grad == nullptr ? either(std::false_type{}) : either(std::true_type{});
}

}  // namespace l1norm::cuda
