// A column in a tile of shared memory, which a thread has to itself, as rows in tiles are taken.
#pragma once

#include "divider.h"
#include "tile_row.cuh"

namespace l1norm::cuda {

// How a launch cuts columns that lie side by side in memory into tiles.
struct ColumnTiling {
  int64_t tiles;
  int64_t in_a_group;             // tiles over columns side by side; 1 where a tile is of whole groups
  int64_t columns;                // of a group
  int64_t span_input, span_grad;  // elements from an operand's first to behind its last
  int width;
  int segments;
  int length;    // steps
  int apart;     // elements from step to step in shared memory
  int rotation;  // where columns of several groups begin in turn, of their units: a power of two less 1
  int tile_bytes;
  bool gapless;   // a tile is one segment, of whole groups
  int lane_bits;  // logarithm of the lanes that copy a segment
  Divider by_columns;
};

namespace column_tile_kernel {

// Elements one by one, or of halves two by two, which arithmetic takes at once, and the last one of an odd number.
// kLength: 0 for any.
template <typename T, int kLength, bool kOdd>
class Column {
 public:
  static constexpr int kUnit = sizeof(T) == 2 ? 2 : 1;
  static constexpr bool kSingle = kOdd;
  static_assert(!kOdd || kUnit == 2);
  using RowUnit = Pack<T, kUnit>;

  // Its steps lie so far apart. start: the unit that comes first.
  __device__ __forceinline__ Column(T* first, int length, int apart, int start)
      : first_(first), length_(kLength > 0 ? kLength : length), apart_(apart), start_(kLength > 0 ? 0 : start) {}

  __device__ __forceinline__ int count() const { return length_ / kUnit; }

  __device__ __forceinline__ RowUnit load(int k) const {
    const int u = turned(k);
    return make_pack<T, kUnit>([&](int e) { return *at(u * kUnit + e); });
  }

  __device__ __forceinline__ void store(int k, const RowUnit& unit) const {
    const int u = turned(k);
#pragma unroll
    for (int e = 0; e < kUnit; ++e) *at(u * kUnit + e) = unit[e];
  }

  __device__ __forceinline__ static constexpr bool has_single() { return true; }
  __device__ __forceinline__ Pack<T, 1>* single() const { return reinterpret_cast<Pack<T, 1>*>(at(length_ - 1)); }

  // The single element is a unit, too.
  __device__ __forceinline__ RowUnit unit(int k) const {
    if constexpr (kOdd) {
      if (k == count()) return make_pack<T, kUnit>([&](int e) { return e == 0 ? *at(k * kUnit) : T{}; });
    }
    return load(k);
  }

  __device__ __forceinline__ void set_unit(int k, const RowUnit& unit) const {
    if (kOdd && k == count()) {
      *at(k * kUnit) = unit[0];
    } else {
      store(k, unit);
    }
  }

  __device__ __forceinline__ int size(int k) const { return kOdd && k == count() ? 1 : kUnit; }
  __device__ __forceinline__ T& element(int k, int e) const { return *at(k * kUnit + e); }

 private:
  __device__ __forceinline__ T* at(int k) const { return first_ + k * apart_; }

  __device__ __forceinline__ int turned(int k) const {
    if constexpr (kLength > 0) return k;
    const int u = k + start_;
    return u < count() ? u : u - count();
  }

  T* first_;
  int length_;
  int apart_;
  int start_;
};

}  // namespace column_tile_kernel
}  // namespace l1norm::cuda
