// A thread's packs of rows side by side that begin at any place of a pack, in registers or in shared memory, and their
// way there and back. loose.cuh says what a Place is.
#pragma once

#include "gradient.cuh"
#include "lattice.cuh"

namespace l1norm::cuda {

// Reads an operand's packs of a place: whole(u, from, there) those that memory has from there on, put(u, pack) others.
template <typename T, int kPacks, int64_t Offsets::* kOf, typename Place, typename Whole, typename Put>
__device__ __forceinline__ void load_loose(const Place& place, const void* operand, const Whole& whole,
                                           const Put& put) {
  constexpr int kPack = kPackBytes / sizeof(T);
  const T* const start = static_cast<const T*>(operand);
  const int64_t at = place.template offset<kOf>(), bump = place.template bump<kOf>();
  const T* p = settled(start + at);
#pragma unroll
  for (int u = 0; u < kPacks; ++u) {
    whole(u, p, place.is_whole(u));
    p = settled(p + bump);
  }
  if (place.all_whole()) return;
  // At the ends of rows packs may hold neighbours of others, but for the operand's ends.
#pragma unroll
  for (int u = 0; u < kPacks; ++u) {
    if (u >= place.packs) break;
    if (place.is_whole(u)) continue;
    const int64_t here = at + u * bump;
    if (here >= 0 && here + kPack <= place.template extent<kOf>()) {
      whole(u, start + here, true);
    } else {
      const int first = place.first(u), last = place.last(u);
      put(u, make_pack<T, kPack>([&](int k) { return k >= first && k < last ? start[here + k] : T{}; }));
    }
  }
}

// Writes packs of a thread, of which `first` is the number of the first one, from `to` on, which goes on with them.
template <Access kAccess, typename T, int M, int N, typename Place>
__device__ __forceinline__ void store_loose(const Place& place, int first, const Pack<T, M> (&packs)[N], T*& to,
                                            int64_t bump) {
  T* const start = to;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    to = settled(to);
    if (place.is_whole(first + i)) store_pack<kAccess>(reinterpret_cast<Pack<T, M>*>(to), packs[i]);
    to += bump;
  }
  if (place.all_whole()) return;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const int u = first + i;
    if (u >= place.packs) break;
    if (place.is_whole(u)) continue;
    const int begin = place.first(u), end = place.last(u);
#pragma unroll
    for (int k = 0; k < M; ++k) {
      if (k >= begin && k < end) start[i * bump + k] = packs[i][k];
    }
  }
}

template <typename T, int kPacks, Access kAccess>
struct LooseCells {
  static constexpr int kPack = kPackBytes / sizeof(T);
  using CellPack = Pack<T, kPack>;
  CellPack held[kPacks];

  template <int64_t Offsets::* kOf, typename Place>
  __device__ __forceinline__ void load(const Place& place, const void* operand) {
    load_loose<T, kPacks, kOf>(
        place, operand,
        [&](int u, const T* from, bool there) {
          held[u] = load_pack<kAccess>(reinterpret_cast<const CellPack*>(from), there);
        },
        [&](int u, const CellPack& pack) { held[u] = pack; });
  }

  template <typename Place>
  __device__ __forceinline__ void store(const Place& place, void* output) const {
    T* to = static_cast<T*>(output) + place.template offset<&Offsets::output>();
    store_loose<kAccess>(place, 0, held, to, place.template bump<&Offsets::output>());
  }

  // The k-th element of each of N packs.
  template <int kFirst, int N>
  __device__ __forceinline__ void column(int k, Pack<T, 1> (&elements)[N]) const {
#pragma unroll
    for (int u = 0; u < N; ++u) elements[u] = element_of(held[kFirst + u], k);
  }
};

// The same in shared memory.
template <typename T, int kPacks>
struct SharedLooseCells {
  static constexpr int kPack = kPackBytes / sizeof(T);
  using CellPack = Pack<T, kPack>;
  InShared<CellPack, kPacks> held;

  template <int64_t Offsets::* kOf, typename Place>
  __device__ __forceinline__ void load(const Place& place, const void* operand) const {
    load_loose<T, kPacks, kOf>(
        place, operand,
        [&](int u, const T* from, bool there) {
          held.template load<Access::kOnce>(u, reinterpret_cast<const CellPack*>(from), there);
        },
        [&](int u, const CellPack& pack) { held.set(u, pack); });
  }
};

}  // namespace l1norm::cuda
