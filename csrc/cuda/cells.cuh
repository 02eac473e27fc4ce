// Cells of a pack each that a thread has of one operand, in registers or in shared memory.
#pragma once

#include "access.cuh"
#include "lattice.cuh"

namespace l1norm::cuda {

// kPacks cells of one operand, or none; kElements: a cell's elements are steps of their own.
template <typename T, int kPacks, bool kElements, Access kAccess = Access::kOnce>
struct Cells {
  static constexpr int kPack = kPackBytes / sizeof(T);
  using CellPack = Pack<T, kPack>;
  // What is worked on at a time: one element, or a pair of halves.
  static constexpr int kUnits = CellPack::kUnits, kUnit = kPack / kUnits;
  using Few = Pack<T, kUnit>;
  CellPack held[kPacks > 0 ? kPacks : 1];

  template <int64_t Offsets::* kOf>
  __device__ __forceinline__ void load(const T* start, const Way& way, const Walk& steps) {
    if constexpr (kElements) {
      visit<kOf, kPacks * kPack>(way, steps, start, [&](int i, const T* from, bool there) {
        const T x = load_pack<kAccess>(from, there);
        if constexpr (CellPack::kPairs) {
          unsigned short bits;
          memcpy(&bits, &x, sizeof bits);
          uint32_t& pair = held[i / kPack].units[i % kPack / 2];
          pair = i % 2 == 0 ? bits : pair | static_cast<uint32_t>(bits) << 16;
        } else {
          held[i / kPack].units[i % kPack] = x;
        }
      });
    } else {
      visit<kOf, kPacks>(way, steps, start, [&](int u, const T* from, bool there) {
        held[u] = load_pack<kAccess>(reinterpret_cast<const CellPack*>(from), there);
      });
    }
  }

  __device__ __forceinline__ void store(T* start, const Way& way, const Walk& steps, const Ownership& owns) const {
    if constexpr (kElements) {
      visit<&Offsets::output, kPacks * kPack>(way, steps, start, [&](int i, T* to, bool there) {
        if (there) *to = held[i / kPack][i % kPack];
      });
    } else {
      visit<&Offsets::output, kPacks>(way, steps, start, [&](int u, T* to, bool there) {
        if (there && owns(to)) store_pack<kAccess>(reinterpret_cast<CellPack*>(to), held[u]);
      });
    }
  }

  __device__ __forceinline__ Few few(int cell, int unit) const { return {{held[cell].units[unit]}}; }
  __device__ __forceinline__ void set(int cell, int unit, const Few& few) { held[cell].units[unit] = few.units[0]; }

  // The k-th element of every cell.
  __device__ __forceinline__ void column(int k, Pack<T, 1> (&elements)[kPacks]) const {
#pragma unroll
    for (int u = 0; u < kPacks; ++u) elements[u] = element_of(held[u], k);
  }
};

// Those of one operand in shared memory, in places of the thread's own.
template <typename T, Access kAccess>
struct SharedCells {
  uint4* mine;  // threads' places of one number are neighbours

  // Its cells from `first` to `last`, in batches of kBatch.
  template <int64_t Offsets::* kOf, int kBatch>
  __device__ __forceinline__ void load(const Tiling& t, const T* start, const Way& way, const Walk& steps, int first,
                                       int last) const {
#pragma unroll 1
    for (; first < last; first += kBatch) {
      visit<kOf, kBatch>(Way(t, way, steps, first * way.step), steps, start, [&](int u, const T* from, bool there) {
        uint4* const place = mine + (first + u) * blockDim.x;
        if (there) {
          copy_async<kAccess>(place, from);
        } else {
          *place = uint4{};
        }
      });
    }
  }

  __device__ __forceinline__ void fill(T number, int first, int last) const {
    typename Cells<T, 1, false>::CellPack pack[1];
    fill_packs(pack, number);
#pragma unroll 1
    for (; first < last; ++first) memcpy(mine + first * blockDim.x, pack, sizeof(uint4));
  }

  template <int kBatch>
  __device__ __forceinline__ Cells<T, kBatch, false> batch(int first) const {
    Cells<T, kBatch, false> cells;
#pragma unroll
    for (int u = 0; u < kBatch; ++u) {
      cells.held[u] =
          *reinterpret_cast<const typename Cells<T, kBatch, false>::CellPack*>(mine + (first + u) * blockDim.x);
    }
    return cells;
  }
};

}  // namespace l1norm::cuda
