// The gather kernel, instantiated for each dtype by gather.cu.
#pragma once

#include "../any_row.cuh"
#include "../divider.h"
#include "../early.cuh"
#include "../launch.h"
#include "../reduce.cuh"
#include "gather.h"

#include <algorithm>
#include <cstdlib>
#include <type_traits>

namespace l1norm::cuda {
namespace gather_kernel {

// How a tile's elements follow each other in one operand: `run` steps of every row, then as many further ones.
struct Order {
  int run;   // the inner one of two loops along a row, where its steps lie closer together than rows, else 1
  int step;  // bytes from one of them to the next
  Divider by_run;
  int64_t outer, inner;  // bytes from step to step, in those loops
};

struct Gathering {
  int64_t tiles;
  int width;
  int length;
  int pitch;
  int warp_bytes;
  int lane_bits;  // logarithm of the lanes that share a row
  int inner;      // steps of the inner loop
  Divider by_inner;
  Order input, grad, output;
};

// A lane's part of a row in shared memory: every so many units, which are of halves two that arithmetic takes at once.
// The last one of an odd number of halves is its first lane's.
template <typename T, bool kOdd>
class RowPart {
 public:
  static constexpr int kUnit = sizeof(T) == 2 ? 2 : 1;
  static constexpr bool kSingle = kOdd;
  static_assert(!kOdd || kUnit == 2);
  using RowUnit = Pack<T, kUnit>;

  // length: 0 where there is no row.
  __device__ __forceinline__ RowPart(T* row, int length, int lane, int lane_bits)
      : units_(reinterpret_cast<RowUnit*>(row) + lane),
        single_(kOdd && length > 0 && lane == 0 ? reinterpret_cast<Pack<T, 1>*>(row + length - 1) : nullptr),
        count_((length / kUnit - lane + (1 << lane_bits) - 1) >> lane_bits),
        lane_bits_(lane_bits) {}

  __device__ __forceinline__ int count() const { return count_; }
  __device__ __forceinline__ RowUnit load(int k) const { return units_[k << lane_bits_]; }
  __device__ __forceinline__ void store(int k, const RowUnit& unit) const { units_[k << lane_bits_] = unit; }
  __device__ __forceinline__ bool has_single() const { return single_ != nullptr; }
  __device__ __forceinline__ Pack<T, 1>* single() const { return single_; }

 private:
  RowUnit* units_;
  Pack<T, 1>* single_;
  int count_;
  int lane_bits_;
};

// What a warp takes at a time.
template <typename T, bool kBackward, bool kOdd>
class Tile {
  static constexpr int kBatch = 8, kSmallBatch = 2;  // elements of a lane that are under way
  static constexpr int kStarts = kBackward ? 4 : 3;
  using Part = RowPart<T, kOdd>;

 public:
  __device__ __forceinline__ Tile(const Call& c, const Gathering& t, int64_t first, int64_t* memory)
      : t_(t),
        lane_(static_cast<int>(threadIdx.x) % 32),
        rows_(static_cast<int>(min(static_cast<int64_t>(t.width), c.geometry.rows.count - first))),
        starts_(memory),
        elements_(reinterpret_cast<T*>(memory + kStarts * t.width)) {
    const Walk& rows = c.geometry.rows;
    for (int r = lane_; r < rows_; r += 32) {
      const Offsets o = rows.count <= INT32_MAX ? rows.at_small(static_cast<int>(first + r)) : rows.at(first + r);
      constexpr int64_t kSize = sizeof(T);
      starts_[r] = o.input * kSize;
      starts_[t.width + r] = o.output * kSize;
      starts_[2 * t.width + r] = o.denominator;
      if constexpr (kBackward) starts_[3 * t.width + r] = o.grad * kSize;
    }
    __syncwarp();
  }

  __device__ __forceinline__ int64_t denominator(int r) const { return starts_[2 * t_.width + r]; }

  __device__ __forceinline__ void load(const Call& c) const {
    move(static_cast<const T*>(c.input), t_.input, starts_, values());
    if constexpr (kBackward) move(static_cast<const T*>(c.grad), t_.grad, starts_ + 3 * t_.width, results());
    __syncwarp();
  }

  __device__ __forceinline__ void store(const Call& c) const {
    __syncwarp();
    move(static_cast<T*>(c.output), t_.output, starts_ + t_.width, results());
  }

  // Calls take(row, whether the lane is its first one, its part in a tile of rows) for the lane's rows, in all lanes as
  // often: where there is no row with the first row, of which it has no part.
  template <typename Take>
  __device__ __forceinline__ void each_row(const Take& take) const {
    const int lane = lane_ & ((1 << t_.lane_bits) - 1);
#pragma unroll 1
    for (int first = 0; first < rows_; first += 32 >> t_.lane_bits) {
      const int row = first + (lane_ >> t_.lane_bits);
      const bool exists = row < rows_;
      const int r = exists ? row : 0;
      take(r, exists && lane == 0,
           [&](T* tile) { return Part(tile + r * t_.pitch, exists ? t_.length : 0, lane, t_.lane_bits); });
    }
  }

  // A row's, of those of its lanes.
  __device__ __forceinline__ Sum together(Sum sum) const {
#pragma unroll 1
    for (int lanes = 1 << t_.lane_bits >> 1; lanes > 0; lanes /= 2) sum = sum + shuffled(sum, lanes);
    return sum;
  }

  // Elements, or their results' gradients, which results take the place of.
  __device__ __forceinline__ T* results() const { return elements_; }
  __device__ __forceinline__ T* values() const { return elements_ + (kBackward ? t_.width * t_.pitch : 0); }

 private:
  // Moves the lane's elements between an operand and a tile of rows, from the one of them that is constant.
  template <typename Element>
  __device__ __forceinline__ void move(Element* operand, const Order& order, const int64_t* starts, T* tile) const {
    const int total = rows_ * order.run;
#pragma unroll 1
    for (int before = 0; before < t_.length; before += order.run) {
      const int outer = quotient(t_.by_inner, before);
      Element* const from = moved(operand, outer * order.outer + (before - outer * t_.inner) * order.inner);
      int e = lane_;
#pragma unroll 1
      for (; e + 32 * (kBatch - 1) < total; e += 32 * kBatch) {
        move_some<kBatch>(from, order, starts, tile + before, e, total - 1);
      }
#pragma unroll 1
      for (; e < total; e += 32 * kSmallBatch) {
        move_some<kSmallBatch>(from, order, starts, tile + before, e, total - 1);
      }
    }
  }

  // A small batch has the last one again where there are none.
  template <int kCount, typename Element>
  __device__ __forceinline__ void move_some(Element* operand, const Order& order, const int64_t* starts, T* tile,
                                            int first, int last) const {
    Element* memory[kCount];
    T* shared[kCount];
    T values[kCount];
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      const int e = kCount == kBatch ? first + 32 * j : min(first + 32 * j, last);
      const int r = quotient(order.by_run, e), step = e - r * order.run;
      memory[j] = moved(operand, starts[r] + static_cast<int64_t>(step) * order.step);
      shared[j] = tile + r * t_.pitch + step;
    }
    constexpr bool kLoads = std::is_const_v<Element>;
#pragma unroll
    for (int j = 0; j < kCount; ++j) values[j] = kLoads ? *memory[j] : *shared[j];
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      if constexpr (kLoads) {
        *shared[j] = values[j];
      } else {
        *memory[j] = values[j];
      }
    }
  }

  template <typename Element>
  static __device__ __forceinline__ Element* moved(Element* from, int64_t bytes) {
    using Byte = std::conditional_t<std::is_const_v<Element>, const char, char>;
    return reinterpret_cast<Element*>(reinterpret_cast<Byte*>(from) + bytes);
  }

  static __device__ __forceinline__ int quotient(const Divider& by, int n) {
    return static_cast<int>(by.quotient(static_cast<uint32_t>(n)));
  }

  const Gathering& t_;
  int lane_, rows_;
  int64_t* starts_;  // of rows: bytes in the input, in the output; divisors; bytes in the results' gradients
  T* elements_;
};

// Blocks of the most threads on a multiprocessor that registers are shared between.
template <typename T>
constexpr int kGatherBlocks = sizeof(T) == 8 ? 5 : 8;

template <typename T, bool kBackward, bool kOdd>
__global__ void __launch_bounds__(kMostGatherThreads, kGatherBlocks<T>)
    kernel(const __grid_constant__ Call c, const __grid_constant__ Gathering t) {
  extern __shared__ __align__(kSharedLine) unsigned char memory[];
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t index = static_cast<int64_t>(blockIdx.x) * (blockDim.x / 32) + warp;
  ask_ahead<kBackward>(c);
  if (index >= t.tiles) return;
  const Tile<T, kBackward, kOdd> tile(c, t, index * t.width, reinterpret_cast<int64_t*>(memory + warp * t.warp_bytes));
  await_stream();
  tile.load(c);
  const auto together = [&](const Sum& sum) { return tile.together(sum); };
  tile.each_row([&](int row, bool first, const auto& part) {
    if constexpr (kBackward) {
      const RowDivisor<T> divisor(c, tile.denominator(row));
      tile_kernel::differentiate_part<T>(part(tile.values()), part(tile.results()), c, divisor, together);
    } else {
      tile_kernel::normalize_part<T>(part(tile.results()), c, together, [&](const Sum& total) {
        if (c.denominator != nullptr && first) write_denominator<T>(c, tile.denominator(row), total);
      });
    }
  });
  tile.store(c);
}

inline Order order_of(const Geometry& g, int64_t Offsets::* of, int64_t size) {
  Order order{};
  const Walk &rows = g.rows, &row = g.row;
  if (row.dims > 0) order.inner = row.stride[row.dims - 1].*of * size;
  if (row.dims > 1) order.outer = row.stride[0].*of * size;
  const int64_t apart = rows.dims == 0 ? INT64_MAX : std::llabs(rows.stride[rows.dims - 1].*of) * size;
  const bool closer = row.dims > 0 && std::llabs(order.inner) < std::min(apart, int64_t{INT32_MAX});
  order.run = closer ? static_cast<int>(row.size[row.dims - 1]) : 1;
  order.step = closer ? static_cast<int>(order.inner) : 0;
  order.by_run = Divider(static_cast<uint32_t>(order.run));
  return order;
}

template <typename T, bool kBackward, bool kOdd>
cudaError_t launch(const Call& c, const Gathering& t, const GatherPlan& plan, cudaStream_t stream) {
  const auto function = kernel<T, kBackward, kOdd>;
  static Prepared prepared;
  const cudaError_t error = prepared.for_launch(c.device, reinterpret_cast<const void*>(function), plan.shared_bytes());
  if (error != cudaSuccess) return error;
  return launch_in_stream(c, function, ceil_div(plan.tiles, plan.threads / 32), plan.threads,
                          static_cast<size_t>(plan.shared_bytes()), 1, stream, c, t);
}

}  // namespace gather_kernel

template <DType D>
cudaError_t gather(const Call& call, const GatherPlan& plan, cudaStream_t stream) {
  using T = typename ElementOf<D>::type;
  using namespace gather_kernel;
  const Geometry& g = call.geometry;
  const int inner = static_cast<int>(g.row.dims > 0 ? g.row.size[g.row.dims - 1] : 1);
  const Gathering t{plan.tiles,
                    plan.width,
                    static_cast<int>(g.row.count),
                    plan.pitch,
                    plan.warp_bytes,
                    bits_of(static_cast<uint32_t>(plan.lanes)) - 1,
                    inner,
                    Divider(static_cast<uint32_t>(inner)),
                    order_of(g, &Offsets::input, sizeof(T)),
                    order_of(g, &Offsets::grad, sizeof(T)),
                    order_of(g, &Offsets::output, sizeof(T))};
  const auto of_odd = [&](auto odd) {
    constexpr bool kOdd = decltype(odd)::value;
    return call.grad == nullptr ? launch<T, false, kOdd>(call, t, plan, stream)
                                : launch<T, true, kOdd>(call, t, plan, stream);
  };
  if constexpr (sizeof(T) == 2) {
    if (g.row.count % 2 == 1) return of_odd(std::true_type{});
  }
  return of_odd(std::false_type{});
}

}  // namespace l1norm::cuda
