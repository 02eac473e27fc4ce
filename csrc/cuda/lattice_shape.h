// What a lattice is to the plan, and what the strided kernel's launches are made of. Pure and host-only, as the rest of
// the plan.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <numeric>

#include "../lattice.h"
#include "device.h"
#include "divider.h"

namespace l1norm::cuda {

constexpr int kStridedWarps = 4;  // of a block whose warps have a tile each
constexpr int kStridedThreads = 512;
// Cells in a thread's registers, of packs or of as many elements one by one, and blocks of the most threads that a
// multiprocessor has registers for. Two operands share them; halves that are read one by one take a register each until
// they are a pair.
constexpr int strided_cells(bool backward, int64_t bytes, int64_t element_size) {
  if (bytes == 2) return backward ? 3 : 4;
  return backward ? 8 : element_size == 8 ? 12 : 16;
}
// Fewer, of a kernel of their own, or none. Of packs of halves a warp that is few lanes wide has room for 128 steps
// else, or for 64 of a gradient's (bfloat16 over 192 steps on an H200 0.76 of a copy's speed, in twelve packs a thread
// 0.84).
constexpr int fewer_strided_cells(bool backward, int64_t bytes, int64_t element_size) {
  if (bytes != kPackBytes || element_size != 2) return 0;
  return backward ? 6 : 12;
}
// None of them where all are in shared memory.
constexpr int strided_blocks(bool backward, int packs) { return packs == 0 ? 3 : backward || packs > 8 ? 1 : 2; }
constexpr int strided_most_threads(int packs) { return packs == 0 ? kStridedThreads / 2 : kStridedThreads; }
// A thread's further cells are in shared memory, some such batches.
constexpr int shared_batch(bool backward, int64_t element_size) { return backward || element_size == 8 ? 4 : 8; }
template <bool kBackward, int kSize>
constexpr int kSharedBatch = shared_batch(kBackward, kSize);

// Packs in a thread's registers whose columns begin at any place of one.
constexpr int loose_packs(bool backward, int64_t element_size) {
  return element_size == 4 ? (backward ? 8 : 16) : backward ? 6 : 12;
}
// Of those that begin elsewhere from step to step, where a thread has them from their read to their write: the most, or
// fewer, whose kernel loses less where that many hold all steps.
constexpr int skewed_packs(bool backward, int64_t element_size, bool fewer) {
  const int most = element_size == 8 ? 12 : 16;
  return (fewer ? 12 : most) / (backward ? 2 : 1);
}
constexpr bool has_fewer_packs(bool backward, int64_t element_size) {
  return element_size == 2 || (element_size == 4 && !backward);
}
// Whether x is in shared memory then, beside a gradient's own operand in registers: multiprocessors have five blocks of
// four warps so, else four (gradients of (64, 256, 129, 129) float32 on an H200 0.76 to 0.88, of (64, 512, 65, 65) 0.71
// to 0.81). Halves, whose arithmetic takes longer, lose as much by the shorter groups of packs, and quotients of floats
// 0.01 in blocks of four warps.
constexpr bool is_skewed_x_shared(bool backward, int64_t element_size) { return backward && element_size == 4; }
// Threads that a multiprocessor has registers for then.
constexpr int kSharingThreads = 5 * 128;
template <bool kBackward, int kSize>
constexpr int kLoosePacks = loose_packs(kBackward, kSize);

// Threads, of so many, that take packs of `inner` rows that take turns: as many as make whole turns.
constexpr int64_t interleaved_units(int64_t inner, int64_t pack, int64_t threads) {
  const int64_t turn = inner / std::gcd(inner, pack);
  return threads / turn * turn;
}

// Bytes side by side that memory is fastest with where steps lie so many bytes apart: a copy of tiles of 1024 or more
// steps runs at 0.90 to 0.95 there, with 128 at 0.81 to 0.88, with 64 at 0.65 to 0.77.
constexpr int kWideLine = 256;
constexpr int64_t kFar = 32 << 10;
constexpr int64_t kFarther = 128 << 10;
constexpr int64_t kApart = 8 << 10;
// Whether a warp has less, of packs or of elements one by one: two side by side have as much of floats. Halves one by
// one have too much arithmetic to gain by it, and doubles have as much in one.
constexpr bool has_narrow_warps(int64_t element_size, bool elements) {
  return element_size == 4 || (element_size == 2 && !elements);
}

// No more of them: threads that are few have too little under way.
constexpr int kMostShared = 32;

// Where a thread has whole columns: units of it, so that 64 bytes are under way, or of packs two where registers allow,
// and blocks on a multiprocessor (1048576 x 3 x 16 float32: 0.97 with two, 0.95 with one). Of gradients of two float32
// each, six run at 0.91, seven at 0.95 and nine at 1.03 to 1.09.
constexpr int column_units(bool backward, int steps, int64_t bytes, int64_t element_size) {
  if (bytes == kPackBytes && element_size == 2 && (backward || steps > 2)) return 1;
  if (bytes == kPackBytes && element_size > 2 && steps <= 3) return backward ? 1 : 2;
  int units = 1;
  while (units < (backward && bytes == 8 ? 2 : 4) && units * steps * bytes < 64) units *= 2;
  return units;
}
constexpr int column_blocks(bool backward, int steps, int64_t bytes, int64_t element_size) {
  const bool half = element_size == 2;
  if (bytes == kPackBytes && element_size == 4 && backward && steps <= 4) return steps == 2 ? 9 : steps == 3 ? 7 : 6;
  if (bytes == kPackBytes && !half && steps <= 3) return steps == 2 && !backward ? 7 : 6;
  if (backward && half) return steps <= 7 || bytes == 2 ? 4 : 3;
  if (steps <= 4) return backward || (half && steps == 4) ? 5 : 6;
  return steps <= (element_size < 8 && bytes == kPackBytes ? 12 : 8) ? (backward || (half && steps > 8) ? 4 : 5) : 3;
}
constexpr int longest_whole_column(bool backward) { return backward ? 8 : 16; }

constexpr int power_of_two_from(int64_t least) {
  int power = 1;
  while (power < least) power *= 2;
  return power;
}

// What is missing of what is wanted, as a part of that.
constexpr double missing(double it, double wanted) { return it < wanted ? 1.0 - it / wanted : 0.0; }

// Of clusters of two blocks, of four and on; the last one is of all that are larger.
template <int kCosts>
constexpr double of_cluster(const double (&costs)[kCosts], int cluster) {
  return cluster == 1 ? 0.0 : costs[std::min(bits_of(static_cast<uint32_t>(cluster)) - 2, kCosts - 1)];
}

// Of a multiprocessor that has one block, or two.
constexpr double of_blocks(double alone, double two, int at_once) {
  return at_once == 1 ? alone : at_once == 2 ? two : 0.0;
}

// What a lattice is to the plan. No units: it is none that the kernel takes.
struct LatticeShape {
  int64_t units = 0;
  int64_t steps = 0;
  int64_t inner = 0;   // units side by side
  int columns = 1;     // of a unit
  int elements = 1;    // of a cell that are steps of their own
  bool along = false;  // steps lie closer together than units
  int64_t element_size = 4;
  bool skewed = false;       // elements in packs that begin elsewhere from step to step
  bool interleaved = false;  // elements whose steps follow each other without a gap
  int64_t apart = 0;         // bytes from step to step
  int64_t run = 0;           // steps before the walk over them jumps
  Beside beside{};
  Turned turned = Turned::kNot;
  bool in_place = false;  // results are written where the input is read
  Rounds rounds{};

  // Of what a lane reads at a time.
  int64_t bytes() const { return elements > 1 ? element_size : kPackBytes; }
  bool is_far() const { return apart >= kFar; }
  // Whether packs of neighbouring columns begin a sector in every other step.
  bool is_torn() const { return columns > 1 && !along && inner > 1 && apart / kPackBytes % 2 != 0; }
  // Steps that are a line; where they go on elsewhere before that, lanes lie side by side over several units as well.
  int64_t line_steps() const { return std::min<int64_t>(steps, elements > 1 ? 32 : 8); }
  // Of doubles most were slower in slabs (dims 1 and 3 of 254 x 19 x 66 x 3 on an H200 0.71 of a copy's speed, in the
  // strided kernel 0.91; 314 x 43 x 38 x 3 0.62, 0.80).
  constexpr bool is_folded_slab() const { return rounds.is_folded_slab() && element_size < 8; }
  // The dense run that a slab would be. No period: there is none.
  Rounds slab() const {
    if (is_folded_slab()) return rounds;
    if (elements > 1) return {interleaved ? inner : 0, steps};
    return {beside.gapless ? beside.columns : 0, steps};
  }
  int64_t slabs() const { return units * columns / slab().columns(); }
  bool has_short_runs() const { return run < line_steps(); }
  // As many as leave lanes along the steps for a line or a run (runs of 2 and of 11 bfloat16: all lanes along steps run
  // at 0.02 and 0.27).
  int lanes_beside_runs() const { return 32 / power_of_two_from(std::min(run, line_steps())); }
};

inline LatticeShape shape_of(const Lattice& l, int64_t pack) {
  if (!l.walkable) return {};
  const int elements = l.unit == Unit::kElement ? static_cast<int>(pack) : 1;
  const Offsets& step = l.geometry.row.stride[l.geometry.row.dims - 1];
  const int64_t size = kPackBytes / pack, apart = std::max(std::llabs(step.input), std::llabs(step.output)) * size;
  return {l.geometry.rows.count,
          l.geometry.row.count,
          l.inner,
          l.columns,
          elements,
          l.along,
          size,
          l.skewed,
          l.interleaved,
          apart,
          l.geometry.row.size[l.geometry.row.dims - 1],
          l.beside,
          l.turned,
          false,
          l.rounds};
}

// The strided kernel: `lanes` lanes of `across` warps lie side by side over `width` units, the other lanes and `warps`
// times as many warps of `cluster` blocks share the steps, `packs` cells a thread in registers and `shared_packs` in
// shared memory. A block has four tiles where a tile is one warp's. `whole`: a tile is one warp's, in whose registers
// its lanes have all steps of their units, up to `packs` each. `interleaved`: a tile is a run of rows that take turns,
// which blocks share pack by pack. `skewed`: lanes have packs that begin elsewhere from step to step; the width is in
// elements. `own_sectors`: lanes side by side have a unit more than the width, the next tile's first, and a tile writes
// whole sectors.
struct StridedPlan {
  int lanes;
  int across;
  int width;
  int warps;
  int packs;
  int cluster;
  bool whole;
  int shared_packs;
  bool interleaved;
  bool skewed;
  bool own_sectors = false;

  // Whether lanes share whole columns.
  bool is_shared() const { return whole && lanes < 32; }
};

// Tiles of `width` that so many columns side by side are cut in, which begin at multiples of so many elements in
// memory, up to one less than that earlier.
constexpr int64_t skewed_tiles(int64_t columns, int64_t multiple, int64_t width) {
  return ceil_div(columns + multiple - 1, width);
}

constexpr int strided_tiles_a_block(const StridedPlan& plan) {
  return plan.warps * plan.across == 1 ? kStridedWarps : 1;
}
constexpr int strided_threads(const StridedPlan& plan) {
  return plan.warps * plan.across * strided_tiles_a_block(plan) * 32;
}
// inner: units side by side; of packs of so many elements.
constexpr int64_t strided_grid(int64_t units, int64_t inner, int64_t pack, const StridedPlan& plan) {
  if (plan.skewed) return units / inner * skewed_tiles(inner, pack, plan.width) * plan.cluster;
  return ceil_div(ceil_div(units, plan.width), strided_tiles_a_block(plan)) * plan.cluster;
}

inline int64_t strided_grid(const LatticeShape& s, const StridedPlan& plan) {
  return strided_grid(s.units, s.inner, kPackBytes / s.element_size, plan);
}

// Shared memory of a block: cells that are there, sums and results.
constexpr int64_t strided_shared_bytes(const LatticeShape& s, bool backward, const StridedPlan& plan) {
  const int64_t threads = strided_threads(plan), cluster = plan.cluster > 1 ? plan.cluster : 0;
  const int a_result = backward ? 120 : 32;
  if (plan.interleaved) {
    const int64_t pack = kPackBytes / s.element_size;
    return (threads * (pack + 2) + plan.cluster * s.inner) * 16 + (s.inner + pack) * (16 + a_result + 4);
  }
  if (plan.skewed) {
    const int64_t pack = kPackBytes / s.element_size, sums = plan.width + pack;
    const int64_t cells = is_skewed_x_shared(backward, s.element_size) ? threads * plan.packs + 1 : 0;
    return (int64_t{plan.warps} * plan.lanes * (pack + 1) + threads + plan.cluster * sums) * 16 +
           sums * (16 + a_result + 4) + cells * kPackBytes;
  }
  const int64_t cells = threads * plan.shared_packs * (backward ? 2 : 1);
  const int64_t columns = strided_tiles_a_block(plan) * s.columns * plan.lanes * plan.across;
  return cells * kPackBytes + columns * (16 * (plan.warps + cluster) + a_result);
}

// Threads that a multiprocessor has room for.
inline int strided_most_resident(const LatticeShape& s, bool backward, const Device& device, const StridedPlan& plan) {
  const bool shares_x = plan.skewed && is_skewed_x_shared(backward, s.element_size);
  return std::min(shares_x ? kSharingThreads : strided_most_threads(plan.packs) * strided_blocks(backward, plan.packs),
                  device.threads_per_multiprocessor);
}

// Blocks that a multiprocessor has room for, of so many bytes of shared memory each.
inline int strided_at_once(const LatticeShape& s, bool backward, const Device& device, const StridedPlan& plan,
                           int shared_bytes) {
  return std::min(strided_most_resident(s, backward, device, plan) / strided_threads(plan),
                  device.shared_bytes_per_multiprocessor / (shared_bytes + kReservedShared));
}

// The same of a plan that can be launched, else 0; shared: bytes of a block, strided_shared_bytes(). Clusters of more
// than kMaxCluster have room where two of their blocks share a multiprocessor, and no kernel without shared cells is
// prepared for them.
inline int strided_room(const LatticeShape& s, bool backward, const Device& device, const StridedPlan& plan,
                        int64_t shared) {
  if (shared > device.shared_bytes - kReservedShared) return 0;
  const int blocks = strided_at_once(s, backward, device, plan, static_cast<int>(shared));
  const bool fits = plan.cluster <= kMaxCluster || (blocks >= 2 && plan.shared_packs > 0);
  return fits ? blocks : 0;
}

}  // namespace l1norm::cuda
