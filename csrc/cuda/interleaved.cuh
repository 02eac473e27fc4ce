// Columns that come round in a dense run of memory, every so many elements. Threads take packs of it that lie a
// multiple of that apart, whose columns stay.
#pragma once

#include "loose.cuh"

namespace l1norm::cuda {

template <typename T>
struct InterleavedTile;

struct Interleaving {
  template <typename T>
  using Tile = InterleavedTile<T>;

  int64_t run;  // elements
  Turns turns;  // of its columns
  Turns rows;   // of a tile: as many as columns, or fewer, which have several each
  Folds folds;
  int units;  // threads of a block that have packs: whole turns
  int packs;  // of a thread, at the most
  int parts;  // of a run
  Divider by_units, by_parts;

  Interleaving(const Rounds& rounds, int units_, int packs_, int parts_)
      : run(rounds.elements()),
        turns(static_cast<int>(rounds.period)),
        rows(static_cast<int>(rounds.columns())),
        folds(rounds),
        units(units_),
        packs(packs_),
        parts(parts_),
        by_units(static_cast<uint32_t>(units)),
        by_parts(static_cast<uint32_t>(parts)) {}
};

template <typename T>
struct InterleavedPlace;

// A run of rows and a block's part of it.
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
    offsets = offsets_of(c.geometry.rows, static_cast<int64_t>(tile) * s.rows.columns);
    const unsigned of_run = s.by_parts.quotient(part);
    if (of_run > 0) offsets.add(of_run, c.geometry.row.stride[0]);
    shift = elements_past<T>(c.output, offsets.output, kPack);
    const int64_t all = int64_t{s.units} * s.packs;
    begin = static_cast<int64_t>(part - of_run * static_cast<unsigned>(s.parts)) * all;
    end = min(begin + all, (s.run + shift + kPack - 1) / kPack);
  }

  // Of one of the tile's rows.
  __device__ __forceinline__ int64_t denominator(int row) const {
    return offsets.denominator + s.folds.denominator(c.geometry.rows, s.folds.row(row));
  }

  __device__ __forceinline__ int width() const { return s.rows.columns; }
  // Slots of a pack follow each other in results. They are numbered from the pack's start: at the run's start is
  // slot `shift`.
  __device__ __forceinline__ int results() const { return s.turns.columns + kPack; }
  // The row of a slot.
  __device__ __forceinline__ int column_of(int slot) const {
    const int column = s.turns.column_of(slot + s.turns.columns * kPack - shift);
    if (s.rows.columns == s.turns.columns) return column;
    return s.folds.number(s.folds.row_of_column(column));
  }
  static __device__ __forceinline__ bool owns(int) { return true; }
  // A row's columns are added up where they are summed.
  static __device__ __forceinline__ bool is_folded() { return false; }
  static __device__ __forceinline__ bool leads(int) { return false; }
  static __device__ __forceinline__ Sum await_columns(const double2*, int, int, int) { return {}; }
  // What threads hand in.
  __device__ __forceinline__ int slots() const { return s.units * kPack; }

  // Calls done(slot, sum) for what the block's threads handed in; mine: room for a sum a thread.
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

  // The same of rows: done(row, sum).
  template <typename Done>
  __device__ __forceinline__ void each_row(const Parts<T>& parts, double2* mine, const Done& done) const {
    if (s.rows.columns == s.turns.columns) {
      each_sum(parts, mine, [&](int slot, const Sum& sum) { done(column_of(slot), sum); });
      return;
    }
    each_sum(parts, mine, [&](int slot, const Sum& sum) {
      mine[s.turns.column_of(slot + s.turns.columns * kPack - shift)] = both_words(sum);
    });
    __syncthreads();
    // As many threads a row as there are.
    const int depth = s.rows.turn_of(static_cast<int>(blockDim.x)), thread = static_cast<int>(threadIdx.x);
    const int member = s.rows.turn_of(thread), row = s.rows.column_of(thread);
    const int first = s.folds.first_column(s.folds.row(row)), step = s.folds.apart.columns;
    Sum sum;
    for (int at = member * step; member < depth && at < s.folds.columns.columns; at += depth * step) {
      const double2 part = mine[first + at];
      sum = sum + Sum{part.x, part.y};
    }
    __syncthreads();
    sum = add_members(sum, depth, s.rows.columns, mine);
    if (member == 0) done(row, sum);
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
  __device__ __forceinline__ int64_t denominator(int k) const {
    return exists ? tile.denominator(tile.column_of(slot + k)) : -1;
  }

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
