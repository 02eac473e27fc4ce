// Rows whose elements take turns in a dense run of memory, a row every so many elements. Threads take packs of it that
// lie a multiple of that apart, whose columns stay.
#pragma once

#include "loose.cuh"

namespace l1norm::cuda {

template <typename T>
struct InterleavedTile;

struct Interleaving {
  template <typename T>
  using Tile = InterleavedTile<T>;

  int64_t run;  // elements of all rows that take turns
  Turns turns;  // of such rows
  int units;    // threads of a block that have packs: whole turns
  int packs;    // of a thread, at the most
  Divider by_units;

  Interleaving(int64_t run_, int inner, int units_, int packs_)
      : run(run_), turns(inner), units(units_), packs(packs_), by_units(static_cast<uint32_t>(units)) {}
};

template <typename T>
struct InterleavedPlace;

// A run and a block's part of it.
template <typename T>
struct InterleavedTile {
  using Place = InterleavedPlace<T>;
  static constexpr int kPack = kPackBytes / sizeof(T);

  const Call& c;
  const Interleaving& s;
  Offsets offsets;     // of the run
  int shift;           // elements from a pack's start to the run's
  int64_t begin, end;  // packs from there

  __device__ __forceinline__ InterleavedTile(const Call& c_, const Interleaving& s_, unsigned tile, unsigned part)
      : c(c_), s(s_) {
    offsets = offsets_of(c.geometry.rows, static_cast<int64_t>(tile) * s.turns.columns);
    shift = elements_past<T>(c.output, offsets.output, kPack);
    const int64_t all = int64_t{s.units} * s.packs;
    begin = part * all;
    end = min(begin + all, (s.run + shift + kPack - 1) / kPack);
  }

  // Columns are numbered from the pack's start: at the run's start is column `shift`.
  __device__ __forceinline__ int64_t denominator(int column) const {
    const Walk& units = c.geometry.rows;
    const int row = s.turns.column_of(column + s.turns.columns * kPack - shift);
    return offsets.denominator + row * units.stride[units.dims - 1].denominator;
  }

  __device__ __forceinline__ int width() const { return s.turns.columns; }
  // A pack's columns follow each other in results.
  __device__ __forceinline__ int results() const { return s.turns.columns + kPack; }
  __device__ __forceinline__ int column_of(int result) const { return s.turns.column_of(result); }
  static __device__ __forceinline__ bool owns(int) { return true; }
  // What threads hand in.
  __device__ __forceinline__ int slots() const { return s.units * kPack; }

  // Calls done(column, sum) for what the block's threads handed in; mine: room for a sum a thread.
  template <typename Done>
  __device__ __forceinline__ void each_sum(const Parts<T>& parts, double2* mine, const Done& done) const {
    const Turns& turns = s.turns;
    const int depth = turns.turn_of(static_cast<int>(blockDim.x)), thread = static_cast<int>(threadIdx.x);
    const int member = turns.turn_of(thread), column = turns.column_of(thread);
    Sum sum;
    for (int at = thread; member < depth && at < slots(); at += depth * turns.columns) {
      const double2 part = parts[at];
      sum = sum + Sum{part.x, part.y};
    }
    sum = add_members(sum, depth, turns.columns, mine);
    if (member == 0) done(column, sum);
  }
};

template <typename T>
struct InterleavedPlace {
  static constexpr int kPack = kPackBytes / sizeof(T);
  static constexpr bool kSkewed = false;

  const InterleavedTile<T>& tile;
  int64_t at;      // the first pack's first element, counted from the run's
  int head, tail;  // of the first pack and of the last one
  int slot, result, packs;
  bool exists, hands_in;

  __device__ __forceinline__ InterleavedPlace(const InterleavedTile<T>& tile_, bool) : tile(tile_) {
    const Interleaving& s = tile.s;
    const int thread = thread_anew();
    exists = hands_in = thread < s.units;
    const int64_t pack = tile.begin + thread;
    at = pack * kPack - tile.shift;
    const int left = static_cast<int>(tile.end - pack);
    packs = exists && left > 0 ? static_cast<int>(s.by_units.quotient(static_cast<uint32_t>(left + s.units - 1))) : 0;
    slot = thread * kPack;
    result = s.turns.column_of(slot);
    head = static_cast<int>(max(-at, int64_t{0}));
    tail = static_cast<int>(min(s.run - at - int64_t{packs - 1} * s.units * kPack, int64_t{kPack}));
  }

  static __device__ __forceinline__ int lanes() { return 32; }
  __device__ __forceinline__ bool all_whole() const { return (head == 0 && tail == kPack) || packs == 0; }
  __device__ __forceinline__ bool is_whole(int u) const {
    return u < (tail == kPack ? packs : packs - 1) && (u > 0 || head == 0);
  }
  __device__ __forceinline__ int first(int u) const { return u == 0 ? head : 0; }
  __device__ __forceinline__ int last(int u) const { return u == packs - 1 ? tail : kPack; }
  __device__ __forceinline__ int64_t denominator(int k) const { return exists ? tile.denominator(slot + k) : -1; }

  template <int64_t Offsets::* kOf>
  __device__ __forceinline__ int64_t offset() const {
    return tile.offsets.*kOf + at;
  }
  template <int64_t Offsets::* kOf>
  __device__ __forceinline__ int64_t bump() const {
    return int64_t{tile.s.units} * kPack;
  }
  // Neighbours of the run are nobody's columns.
  template <int64_t Offsets::* kOf>
  static __device__ __forceinline__ int64_t extent() {
    return 0;
  }
};

}  // namespace l1norm::cuda
