// A geometry as kernels see it that go across rows: units of 16 bytes or of one element, side by side, and steps along
// them. Pure and host-only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <numeric>

#include "call.h"
#include "geometry.h"

namespace l1norm {

// What a thread holds of neighbours in memory: a pack of as many rows, a pack of one row, or elements one by one.
enum class Unit { kColumns, kSegment, kElement };

// Whether steps lie closer together than units in one of input and output alone: in the input, whose rows become
// columns, or in the output. Lanes go along the output, whose sectors are written whole, while the cache keeps the
// input's until others want the rest of them (on an H100, of a copy's speed: 189 x 1182 rows of 339 float32 that become
// columns 2.1, along the input 0.56; 3680 x 89 of 224 float16 2.6, 0.5; columns of 634 float32 that become rows 1.5,
// 0.5; but of 111, in groups of lanes beside each other, 0.36, along the output 0.27).
enum class Turned { kNot, kToColumns, kToRows };

// Columns that come round and are all in a block at a time, which has a thread for each; and elements that their runs
// should have.
constexpr int64_t kMostPeriod = 512;
constexpr int64_t kShortestRun = 4096;

constexpr int64_t kWholeBytes = 256;

// Columns side by side in memory, whose steps lie alike in packs in all operands. No columns: there are none that lie
// so.
struct Beside {
  int64_t columns = 0;
  bool gapless = false;  // all of them, and those behind them, follow each other without a gap
  int64_t jump = 0;      // elements that the walk over steps jumps besides, from run to run
  // Elements: what the columns, and in the output the distances of steps and planes and the first column's from a
  // multiple of kWholeBytes, are multiples of.
  int64_t multiple = 1;
};

// A dense run of memory in which columns come round: element i of it is that of `period` columns, of which `fold`
// neighbours, `apart` elements from each other, are one row's. No period: there is no such run.
struct Rounds {
  int64_t period = 0;
  int64_t repeats = 0;  // of the period
  int64_t runs = 1;     // of the same columns
  int64_t fold = 1;
  int64_t apart = 1;

  constexpr int64_t columns() const { return period / fold; }  // rows
  constexpr int64_t elements() const { return period * repeats; }
  // Whether all elements of several rows, each of which has several neighbours or groups of them, are in one run.
  constexpr bool is_folded_slab() const { return fold > 1 && runs == 1; }
};

struct Lattice {
  Geometry geometry;  // of units and steps, in place of rows and their elements
  Unit unit;
  int columns;               // rows that a unit is of
  int64_t denominator_step;  // from one of them to the next
  int64_t inner;             // units side by side before the walk over them jumps
  bool along;                // steps lie closer together than units
  bool walkable;             // two nested loops at the most lead along a row
  // Elements that lie in packs alike in all operands: those packs begin elsewhere from step to step, or steps follow
  // each other without a gap.
  bool skewed;
  bool interleaved;
  Turned turned;
  Beside beside;
  Rounds rounds;  // of elements

  // Of elements: the dense run in which rows take turns.
  Rounds slab() const { return rounds.is_folded_slab() ? rounds : Rounds{inner, geometry.row.count}; }
};

namespace lattice {

template <typename Test>
bool all_strides(const Walk& walk, int dims, const Test& test) {
  for (int d = 0; d < dims; ++d) {
    const Offsets& s = walk.stride[d];
    if (!test(s.input) || !test(s.grad) || !test(s.output)) return false;
  }
  return true;
}

// Whether the innermost loop goes over whole packs of neighbours, which other loops leave whole.
inline bool in_packs(const Walk& walk, const Walk& other, int64_t pack) {
  const auto whole = [&](int64_t stride) { return stride % pack == 0; };
  const int last = walk.dims - 1;
  if (last < 0 || walk.size[last] % pack != 0 || !all_strides(walk, last, whole)) return false;
  const Offsets& s = walk.stride[last];
  return s.input == 1 && s.grad == 1 && s.output == 1 && all_strides(other, other.dims, whole);
}

// The walk over packs in place of elements.
inline Walk over_packs(Walk walk, int64_t pack) {
  const int last = walk.dims - 1;
  Offsets& s = walk.stride[last];
  walk.count /= pack;
  walk.size[last] /= pack;
  s = {s.input * pack, s.grad * pack, s.output * pack, s.denominator * pack};
  return walk;
}

// A walk of no loop as one of a single round.
inline void fill(Walk& walk) {
  if (walk.dims > 0) return;
  walk.dims = 1;
  walk.size[0] = walk.count;
  walk.stride[0] = {0, 0, 0, 0};
}

// How far apart the innermost loop's neighbours lie.
inline int64_t distance(const Walk& walk) {
  const Offsets& s = walk.stride[walk.dims - 1];
  return std::llabs(s.input) + std::llabs(s.grad) + std::llabs(s.output);
}

// How far apart a walk's nearest neighbours lie in one operand.
template <int64_t Offsets::* kOf>
int64_t nearest(const Walk& walk) {
  int64_t least = INT64_MAX;
  for (int d = 0; d < walk.dims; ++d) least = std::min<int64_t>(least, std::llabs(walk.stride[d].*kOf));
  return least;
}

// Whether the first loops lead from packs to packs that lie alike in all operands.
inline bool are_alike(const Walk& walk, int dims, int64_t pack) {
  for (int d = 0; d < dims; ++d) {
    const Offsets& s = walk.stride[d];
    if ((s.input - s.output) % pack != 0 || (s.grad - s.output) % pack != 0) return false;
  }
  return true;
}

// Whether elements side by side are neighbours, and lie in packs alike in all operands.
inline bool are_beside(const Lattice& l, int64_t pack) {
  const Walk &units = l.geometry.rows, &steps = l.geometry.row;
  return l.unit == Unit::kElement && !l.along && l.inner > 1 && units.has_stride(units.dims - 1, 1) &&
         steps.dims == 1 && are_alike(units, units.dims, pack) && are_alike(steps, steps.dims, pack);
}

// alike: input, grad and output start equally far from a pack; start: as make_lattice() has it.
inline Beside beside_of(const Geometry& g, int64_t pack, bool alike, int64_t start) {
  const Walk &rows = g.rows, &row = g.row;
  const int last = rows.dims - 1;
  if (!alike || last < 0 || row.dims < 1 || row.dims > 2 || !rows.has_stride(last, 1)) return {};
  if (!are_alike(rows, last, pack) || !are_alike(row, row.dims, pack)) return {};
  const int64_t columns = rows.size[last];
  int64_t multiple = std::gcd(columns, start);
  for (int d = 0; d < last; ++d) multiple = std::gcd(multiple, rows.stride[d].output);
  for (int d = 0; d < row.dims; ++d) multiple = std::gcd(multiple, row.stride[d].output);
  if (row.dims == 2) {
    const int64_t jump =
        std::max<int64_t>(std::llabs(row.jump(&Offsets::input)), std::llabs(row.jump(&Offsets::output)));
    return {columns, false, jump, multiple};
  }
  const bool follow = last == 0 || (last == 1 && rows.has_stride(0, columns * row.count) &&
                                    rows.stride[0].denominator == columns * rows.stride[1].denominator);
  return {columns, row.has_stride(0, columns) && follow, 0, multiple};
}

// Of the periods after which columns come round the longest of up to kMostPeriod, or, where runs of that are short, the
// shortest one beyond of columns that are some a row's: others are steps.
inline Rounds rounds_of(const Geometry& g, int64_t pack) {
  int kept = g.rows.dims - 1, reduced = g.row.dims - 1;
  int64_t dense = 1;
  const auto goes_on = [&](const Walk& walk, int d) { return d >= 0 && walk.has_stride(d, dense); };
  const auto take = [&](const Walk& walk, int& d) {
    dense *= walk.size[d];
    return walk.size[d--];
  };
  Rounds best, r;
  if (goes_on(g.row, reduced)) r.fold = take(g.row, reduced);
  while (goes_on(g.rows, kept)) {
    const int64_t columns = take(g.rows, kept);
    const bool wide = dense > kMostPeriod;
    if (!goes_on(g.row, reduced)) break;
    r.period = dense;
    r.repeats = take(g.row, reduced);
    r.runs = reduced == 0 ? g.row.size[0] : 1;
    const bool alike = are_alike(g.rows, kept + 1, pack) && are_alike(g.row, reduced + 1, pack);
    const bool is_long = best.period > 0 && (best.runs == 1 || best.elements() >= kShortestRun);
    if (alike && reduced <= 0 && (!wide || (r.fold > 1 && r.runs == 1 && !is_long))) best = r;
    if (r.fold > 1) break;
    r.fold = r.repeats;
    r.apart = columns;
  }
  return best;
}

}  // namespace lattice

// aligned: input, grad and output start at multiples of a pack, which is `pack` elements; alike: as far from one;
// start: elements from a multiple of kWholeBytes to the output's.
inline Lattice make_lattice(const Geometry& g, int64_t pack, bool aligned, bool alike, int64_t start = 0) {
  Lattice l{
      g, Unit::kElement, 1, 0, 1, false, false, false, false, Turned::kNot, lattice::beside_of(g, pack, alike, start),
      {}};
  Walk &units = l.geometry.rows, &steps = l.geometry.row;
  if (aligned && lattice::in_packs(g.rows, g.row, pack)) {
    l.unit = Unit::kColumns;
    l.columns = static_cast<int>(pack);
    l.denominator_step = units.stride[units.dims - 1].denominator;
    units = lattice::over_packs(units, pack);
  } else if (aligned && lattice::in_packs(g.row, g.rows, pack)) {
    l.unit = Unit::kSegment;
    steps = lattice::over_packs(steps, pack);
  }
  lattice::fill(units);
  lattice::fill(steps);
  l.inner = units.size[units.dims - 1];
  l.along = l.unit == Unit::kSegment ||
            (l.unit == Unit::kElement && (units.count == 1 || lattice::distance(steps) < lattice::distance(units)));
  l.walkable = steps.dims <= 2;
  using lattice::nearest;
  if (l.unit == Unit::kElement) {
    const bool input_along = nearest<&Offsets::input>(steps) < nearest<&Offsets::input>(units);
    const bool output_along = nearest<&Offsets::output>(steps) < nearest<&Offsets::output>(units);
    if (input_along != output_along) l.turned = input_along ? Turned::kToColumns : Turned::kToRows;
    if (l.turned == Turned::kToColumns) l.along = false;
    if (l.turned == Turned::kToRows && steps.count >= (pack > 2 ? 160 : 192)) l.along = true;
  }
  if (alike && lattice::are_beside(l, pack)) {
    const auto next = [&](int64_t stride) { return stride == l.inner; };
    l.skewed = l.inner >= 2 * pack;
    l.interleaved = lattice::all_strides(steps, 1, next);
  }
  if (alike) {
    const Rounds rounds = lattice::rounds_of(g, pack);
    if (l.unit != Unit::kColumns || (rounds.runs == 1 && rounds.fold == 1)) l.rounds = rounds;
  }
  return l;
}

// Runs of rows that take turns in them, in the place of rows: of elements, whatever packs they are in.
struct RunsOfTurns {
  Geometry geometry;
  int64_t columns;  // of a run: rows
  int64_t beside;   // from the denominator of one of those to the next

  RunsOfTurns(const Geometry& g, int64_t pack) : geometry(make_lattice(g, pack, false, true).geometry) {
    Walk& rows = geometry.rows;
    beside = rows.stride[--rows.dims].denominator;
    columns = rows.size[rows.dims];
    rows.count /= columns;
    geometry.row.count *= columns;
  }
};

// Whether input, grad and output start at multiples of so many bytes.
inline bool starts_at(const Call& c, int64_t bytes) {
  const auto address = [](const void* p) { return reinterpret_cast<uintptr_t>(p); };
  return (address(c.input) | address(c.grad) | address(c.output)) % static_cast<uintptr_t>(bytes) == 0;
}

// packed: of packs, where all of it is.
inline Lattice lattice_of(const Call& c, int64_t pack_bytes, bool packed = true) {
  const auto address = [](const void* p) { return reinterpret_cast<uintptr_t>(p); };
  const uintptr_t apart =
      (address(c.input) ^ address(c.output)) | (c.grad == nullptr ? 0 : address(c.grad) ^ address(c.output));
  const int64_t size = element_size(c.dtype);
  return make_lattice(c.geometry, pack_bytes / size, packed && starts_at(c, pack_bytes),
                      apart % static_cast<uintptr_t>(pack_bytes) == 0,
                      static_cast<int64_t>(address(c.output) % kWholeBytes) / size);
}

}  // namespace l1norm
