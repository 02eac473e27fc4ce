// Whole columns, in the registers of a thread each or of a few lanes of a warp.
#pragma once

#include "access.cuh"
#include "column_tally.cuh"
#include "lattice.cuh"

namespace l1norm::cuda {

// Of N neighbours those that are read or written together, where they are at a pack's start.
template <typename V, int N>
constexpr int kBeside = N * sizeof(V) < kPackBytes ? N : kPackBytes / static_cast<int>(sizeof(V));

// V neighbours of what rows have one of; packed: they are neighbours in memory, at a pack's start.
template <int N, typename V>
__device__ __forceinline__ void load_beside(const V* from, int64_t step, bool packed, V (&to)[N]) {
  if (N > 1 && packed) {
    constexpr int kPack = kBeside<V, N>;
#pragma unroll
    for (int k = 0; k < N; k += kPack) {
      const Pack<V, kPack> pack = *reinterpret_cast<const Pack<V, kPack>*>(from + k);
#pragma unroll
      for (int e = 0; e < kPack; ++e) to[k + e] = pack.units[e];
    }
  } else {
#pragma unroll
    for (int k = 0; k < N; ++k) to[k] = from[k * step];
  }
}

// The same way back.
template <int N, typename V>
__device__ __forceinline__ void store_beside(const V (&from)[N], V* to, int64_t step, bool packed) {
  if (N > 1 && packed) {
    constexpr int kPack = kBeside<V, N>;
#pragma unroll
    for (int k = 0; k < N; k += kPack) {
      *reinterpret_cast<Pack<V, kPack>*>(to + k) = make_pack<V, kPack>([&](int e) { return from[k + e]; });
    }
  } else {
#pragma unroll
    for (int k = 0; k < N; ++k) to[k * step] = from[k];
  }
}

// What lanes share of columns that several have: nothing, sums, or what gradients are made with as well, each lane
// making that of some columns for the others.
enum class Sharing { kNothing, kSums, kSlopes };

// kUnits units of kColumns columns each, of up to kSteps elements. kShared: lanes have as many each of one unit, by
// turns.
template <typename T, bool kBackward, int kSteps, int kColumns, int kUnits, bool kShared>
struct Columns {
  using UnitPack = Pack<T, kColumns>;
  // What is worked on at a time: one column, or a pair of halves.
  static constexpr int kFews = UnitPack::kUnits, kFew = kColumns / kFews;
  using Few = Pack<T, kFew>;
  static_assert(kUnits * kSteps * kFews <= 64);
  static_assert(!kShared || kUnits == 1);

  const Call& c;
  const Tiling& t;
  int64_t first_unit;  // the thread's others follow, 32 apart
  UnitPack x[kUnits][kSteps];
  std::conditional_t<kBackward, UnitPack[kUnits][kSteps], Empty> g;

  __device__ __forceinline__ Columns(const Call& c_, const Tiling& t_, int64_t first_unit_)
      : c(c_), t(t_), first_unit(first_unit_) {}

  __device__ __forceinline__ bool exists(int j) const { return first_unit + 32 * j < c.geometry.rows.count; }
  __device__ __forceinline__ int64_t unit(int j) const { return exists(j) ? first_unit + 32 * j : 0; }
  __device__ __forceinline__ Offsets offsets(int j) const { return offsets_of(t, c.geometry.rows, unit(j)); }
  __device__ __forceinline__ void all_offsets(Offsets (&o)[kUnits]) const {
#pragma unroll
    for (int j = 0; j < kUnits; ++j) o[j] = offsets(j);
  }
  // The thread's first step.
  __device__ __forceinline__ int first_step() const {
    return kShared ? static_cast<int>(threadIdx.x % 32) >> t.lane_bits : 0;
  }
  __device__ __forceinline__ int sharers() const { return kShared ? t.step_lanes() : 1; }
  __device__ __forceinline__ Way way(int j) const {
    const Walk& steps = c.geometry.row;
    const int first = first_step(), end = exists(j) ? static_cast<int>(steps.count) : first;
    return Way(t, steps, first, end - first, sharers(), kShared ? t.outer_step : steps.dims > 1 ? 0 : 1);
  }

  __device__ __forceinline__ void load(int j, const Offsets& o) {
    const auto fetch = [](UnitPack& pack, const T* from, bool there) {
      pack = load_pack<Access::kOnce>(reinterpret_cast<const UnitPack*>(from), there);
    };
    if constexpr (kBackward) {
      visit<&Offsets::grad, kSteps>(way(j), c.geometry.row, static_cast<const T*>(c.grad) + o.grad,
                                    [&](int u, const T* from, bool there) { fetch(g[j][u], from, there); });
    }
    visit<&Offsets::input, kSteps>(way(j), c.geometry.row, static_cast<const T*>(c.input) + o.input,
                                   [&](int u, const T* from, bool there) { fetch(x[j][u], from, there); });
  }

  // What x holds.
  __device__ __forceinline__ void store(int j, int64_t output) const {
    visit<&Offsets::output, kSteps>(way(j), c.geometry.row, static_cast<T*>(c.output) + output,
                                    [&](int u, T* to, bool there) {
                                      if (there) *reinterpret_cast<UnitPack*>(to) = x[j][u];
                                    });
  }

  // Calls join(other) for each turn in which sums of a column become one, other(v) being what another lane has.
  template <typename Join>
  __device__ __forceinline__ void each_other(const Join& join, unsigned lanes = 0xffffffffu) const {
#pragma unroll 1
    for (int bit = t.lanes; bit < 32; bit *= 2) join([&](auto v) { return __shfl_xor_sync(lanes, v, bit); });
  }

  __device__ __forceinline__ ColumnTally<T> tally(int j, int k) const {
    Pack<T, 1> elements[kSteps];
#pragma unroll
    for (int u = 0; u < kSteps; ++u) elements[u].units[0] = x[j][u][k];
    ColumnTally<T> tally;
    tally.template set<kSteps>(elements);
    return tally;
  }
};

}  // namespace l1norm::cuda
