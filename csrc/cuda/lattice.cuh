// Where a thread stands in a tile of a lattice, and the way that it takes there.
#pragma once

#include "../lattice.h"
#include "divider.h"
#include "pack.cuh"

namespace l1norm::cuda {

// How a launch spreads its threads over a lattice. lanes and across are powers of two.
struct Tiling {
  int64_t denominator_step;
  int columns;    // of a unit
  int lanes;      // of a warp that lie side by side, a unit each; the others follow each other along the steps
  int across;     // warps that lie side by side
  int width;      // units of a tile, at most as many as lanes side by side
  int loaded;     // units that it reads: its own, and the next one where tiles own whole sectors
  int warps;      // of a block that share a tile's units, along the steps; one warp alone: each has a tile of its own
  int part;       // steps of a block
  int shared;     // cells of a thread that are in shared memory
  bool along;     // neighbouring lanes follow each other along the steps
  bool packed;    // a unit's denominators are neighbours at a pack's start
  int lane_bits;  // logarithms of lanes and across
  int across_bits;
  int outer_step;      // of the outer of two loops over steps, from a thread's cell to its next
  Divider inner_unit;  // by the units, and the steps, of the innermost loops
  Divider inner_step;

  Tiling(const Lattice& l, int lanes_, int across_, int width_, int warps_, int part_, int shared_, bool packed_,
         bool own_sectors = false)
      : denominator_step(l.denominator_step),
        columns(l.columns),
        lanes(lanes_),
        across(across_),
        width(width_),
        loaded(width_ + (own_sectors ? 1 : 0)),
        warps(warps_),
        part(part_),
        shared(shared_),
        along(l.along),
        packed(packed_),
        lane_bits(bits_of(static_cast<uint32_t>(lanes)) - 1),
        across_bits(bits_of(static_cast<uint32_t>(across)) - 1) {
    const Walk &units = l.geometry.rows, &steps = l.geometry.row;
    const int64_t inner_steps = steps.dims > 1 ? steps.size[1] : steps.count;
    const int step = warps * (32 / lanes);
    outer_step = steps.dims > 1 ? static_cast<int>(step / inner_steps) : step;
    if (units.count <= INT32_MAX) inner_unit = Divider(static_cast<uint32_t>(units.size[units.dims - 1]));
    if (inner_steps <= INT32_MAX) inner_step = Divider(static_cast<uint32_t>(inner_steps));
  }

  __host__ __device__ __forceinline__ int side() const { return lanes * across; }
  __device__ __forceinline__ int step_lanes() const { return 32 >> lane_bits; }
  // Columns of a tile, existing or not.
  __host__ __device__ __forceinline__ int count() const { return columns * side(); }
  __host__ __device__ __forceinline__ int tile_threads() const { return warps * across * 32; }
  __host__ __device__ __forceinline__ bool tile_a_warp() const { return warps * across == 1; }
};

// Where a thread stands, and how it goes on: by `step` steps from one cell, or element of one, to the next.
struct Way {
  int first;  // its first step
  int left;   // steps from there to the end; not positive where it has none
  int step;
  int outer, outer_step;              // of the outer of two loops, or of the only one
  int inner, inner_step, inner_size;  // of the inner one; 0, 0 and 1 where there is none

  // That way without its first steps.
  __device__ __forceinline__ Way(const Tiling& t, const Way& way, const Walk& steps, int without)
      : Way(t, steps, way.first + without, way.left - without, way.step, way.outer_step) {}

  __device__ __forceinline__ Way(const Tiling& t, const Walk& steps, int first_, int left_, int step_, int outer_step_)
      : first(first_),
        left(left_),
        step(step_),
        outer(first),
        outer_step(outer_step_),
        inner(0),
        inner_step(0),
        inner_size(1) {
    if (steps.dims > 1) {
      inner_size = static_cast<int>(steps.size[1]);
      outer = static_cast<int>(t.inner_step.quotient(static_cast<uint32_t>(first)));
      inner = first - outer * inner_size;
      inner_step = step - outer_step * inner_size;
    }
  }
};

// Visits the elements of a thread's way in one operand, in order.
template <int64_t Offsets::* kOf, typename T>
class Stroll {
 public:
  __device__ __forceinline__ Stroll(const Way& way, const Walk& steps, T* start)
      : p_(start + way.outer * steps.stride[0].*kOf),
        left_(way.left),
        inner_(way.inner),
        bump_(way.outer_step * steps.stride[0].*kOf),
        carry_(0) {
    if (steps.dims > 1) {
      const int64_t inner = steps.stride[1].*kOf;
      p_ += way.inner * inner;
      bump_ += way.inner_step * inner;
      carry_ = steps.stride[0].*kOf - way.inner_size * inner;
    }
    p_ = settled(p_);
  }

  __device__ __forceinline__ bool there() const { return left_ > 0; }
  __device__ __forceinline__ T* at() const { return p_; }

  __device__ __forceinline__ void go_on(const Way& way) {
    left_ -= way.step;
    inner_ += way.inner_step;
    p_ += bump_;
    if (inner_ >= way.inner_size) {
      inner_ -= way.inner_size;
      p_ += carry_;
    }
    p_ = settled(p_);
  }

 private:
  T* p_;
  int left_, inner_;
  int64_t bump_, carry_;
};

// Calls see(u, p, there) for the first kCount elements of a thread's way in one operand.
template <int64_t Offsets::* kOf, int kCount, typename T, typename See>
__device__ __forceinline__ void visit(const Way& way, const Walk& steps, T* start, const See& see) {
  if (steps.dims == 1) {
    const int64_t stride = steps.stride[0].*kOf, bump = way.step * stride;
    T* p = start + way.first * stride;
#pragma unroll
    for (int u = 0; u < kCount; ++u) {
      see(u, p, u * way.step < way.left);
      p = settled(p + bump);
    }
  } else {
    Stroll<kOf, T> stroll(way, steps, start);
#pragma unroll
    for (int u = 0; u < kCount; ++u) {
      see(u, stroll.at(), stroll.there());
      stroll.go_on(way);
    }
  }
}

__device__ __forceinline__ Offsets offsets_of(const Walk& units, int64_t unit) {
  return units.count <= INT32_MAX ? units.at_small(static_cast<int>(unit)) : units.at(unit);
}
__device__ __forceinline__ Offsets offsets_of(const Tiling& t, const Walk& units, int64_t unit) {
  if (units.count > INT32_MAX) return units.at(unit);
  const int last = units.dims - 1, index = static_cast<int>(unit);
  if (last == 0) return units.at_small(index);
  const int around = static_cast<int>(t.inner_unit.quotient(static_cast<uint32_t>(index)));
  Offsets o = units.around_small(around);
  o.add(index - around * static_cast<int>(units.size[last]), units.stride[last]);
  return o;
}

// The thread's number, which the compiler does not know to be the one that it was: what follows from it is worked out
// again rather than kept in registers.
__device__ __forceinline__ int thread_anew() {
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread;
}

// Which packs of a unit are the tile's to write: all that are `is` under the mask of their address.
struct Ownership {
  unsigned mask, is;
  __device__ __forceinline__ bool operator()(const void* to) const {
    return (static_cast<unsigned>(reinterpret_cast<uintptr_t>(to)) & mask) == is;
  }
};

// A thread's place in a tile. Columns are numbered so that those of one number within their units are neighbours.
struct Place {
  int64_t first_unit;  // the tile's
  int tile;            // of the block's
  int thread;          // of the tile's
  int unit;            // of the tile's
  int64_t index;       // of that unit
  int step_lane;       // the lane's number along the steps
  int step_warp;       // the warp's
  bool exists;         // the unit

  // Of the block's thread; block: the number of the block's tile, or tiles. across: warps may lie side by side.
  __device__ __forceinline__ Place(const Tiling& t, const Walk& units, int thread_, unsigned block, bool across) {
    const int lane = thread_ % 32;
    tile = t.tile_a_warp() ? thread_ / 32 : 0;
    thread = t.tile_a_warp() ? lane : thread_;
    first_unit = (t.tile_a_warp() ? static_cast<int64_t>(block) * (blockDim.x / 32) + tile : block) * t.width;
    unit = t.along ? lane >> (5 - t.lane_bits) : lane & (t.lanes - 1);
    step_lane = t.along ? lane & (t.step_lanes() - 1) : lane >> t.lane_bits;
    step_warp = thread / 32;
    if (across && t.across > 1) {
      unit += (step_warp & (t.across - 1)) * t.lanes;
      step_warp >>= t.across_bits;
    }
    index = first_unit + unit;
    exists = unit < t.loaded && index < units.count;
  }

  // Where two tiles have a unit, each writes the packs that its own units begin a sector with: a sector of which blocks
  // write a part each costs several times as much. A row's first packs begin one for this.
  __device__ __forceinline__ Ownership ownership(const Tiling& t, const Walk& units) const {
    if (t.loaded == t.width || (unit != 0 && unit != t.width)) return {0, 0};
    const int place = static_cast<int>(index), last = units.dims - 1;
    const bool first = t.inner_unit.quotient(static_cast<uint32_t>(place)) * units.size[last] == place;
    if (first) return {0, unit == 0 ? 0u : 1u};
    return {kPackBytes, unit == 0 ? 0u : kPackBytes};
  }

  __device__ __forceinline__ Offsets offsets(const Tiling& t, const Walk& units) const {
    return offsets_of(t, units, exists ? index : 0);
  }

  __device__ __forceinline__ Way way(const Tiling& t, const Walk& steps, int part) const {
    const int step_lanes = t.step_lanes();
    const int first = part * t.part + step_warp * step_lanes + step_lane;
    const int end = min((part + 1) * t.part, static_cast<int>(steps.count));
    return Way(t, steps, exists ? first : 0, exists ? end - first : 0, t.warps * step_lanes, t.outer_step);
  }
};

struct Empty {};

// The offset of a tile's column among denominators, or -1 where there is no such column.
__device__ __forceinline__ int64_t denominator_of(const Tiling& t, const Walk& units, int64_t first_unit, int column) {
  const int unit = column & (t.side() - 1), k = column >> (t.lane_bits + t.across_bits);
  if (unit >= t.width || first_unit + unit >= units.count) return -1;
  return offsets_of(t, units, first_unit + unit).denominator + k * t.denominator_step;
}

}  // namespace l1norm::cuda
