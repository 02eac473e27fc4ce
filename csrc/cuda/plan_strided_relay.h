// The strided relay's launch. Pure and host-only, as the rest of the plan.
#pragma once

#include <algorithm>

#include "../lattice.h"
#include "device.h"
#include "plan_strided.h"

namespace l1norm::cuda {

constexpr int kStridedRelayThreads = 512;
// Of a tile, that one block adds up: more of its threads share a column's parts then, if there are many.
constexpr int kColumnsAnAdder = 8;
constexpr int kColumnsANarrowAdder = 2;
constexpr int kPartsAnAdder = 8;
// Of a column that a thread adds up, whatever columns an adder has then: blocks that divide wait for it, and a thread
// reads eight at a time (1048576 x 64 float32 on an H200, of a copy's speed: 0.58, with 128 a thread 0.55; gradients
// 0.535 and 0.50, of bfloat16 0.50 and 0.45; 4194304 x 8 0.55 and 0.51).
constexpr int kPartsAThread = 16;
// Cells a thread: packs, or as many elements one by one, of which halves take a register each.
constexpr int strided_relay_packs(bool backward, int elements, int64_t element_size) {
  return elements == 8 ? (backward ? 2 : 4) : loose_packs(backward, element_size);
}
template <bool kBackward, int kElements, int kSize>
constexpr int kStridedRelayPacks = strided_relay_packs(kBackward, kElements, kSize);

// Elements of 32 bytes, of which writes to memory should have all.
constexpr int sector_elements(int64_t element_size) { return static_cast<int>(kSectorBytes / element_size); }

// The strided relay: `lanes` lanes of `across` warps lie side by side over the `width` units of a tile. A tile's steps
// are cut in `parts`; blocks of `warps` times as many warps sum a part each, `adders` blocks add those sums, and others
// divide the parts behind them.
struct StridedRelayPlan {
  int lanes;
  int across;
  int width;
  int warps;
  int parts;
  int adders;
  int tiles;
  int beside;  // tiles that are summed and divided together, part by part
  int ahead;
  bool turns_back;   // divides a tile from its end
  bool skewed;       // in packs that begin elsewhere from step to step; the width is in elements
  bool interleaved;  // in packs of rows that take turns, in all threads, whatever the lanes
  int64_t scratch_bytes;

  int slots() const { return (parts + adders) * beside; }
};

// How tiles are cut for blocks.
struct Cut {
  int64_t tiles;
  int64_t in_a_row;  // of them
  int64_t columns;   // of a tile, with a sum each
  int64_t parts;     // of a tile
  int64_t steps;     // of a part
  int64_t adders;    // at the most
  bool cached;       // whether the cache may hold more than what runs at a time
  int room;          // one part of so many of the input's bytes that sums may take
  int64_t reach;     // tiles behind one whose sums it waits for as well
};

// The rest of the plan. False where sums, which go through device memory, are more than it is for.
inline bool strided_relay_launch(const LatticeShape& s, bool backward, const Device& device, const Cut& cut,
                                 StridedRelayPlan& plan) {
  if (cut.parts >= INT32_MAX / 4 || cut.tiles > INT32_MAX / (2 * (cut.parts + cut.columns))) return false;
  const int threads = plan.warps * plan.across * 32;
  const int64_t adders = ceil_div(cut.columns * cut.parts, int64_t{kPartsAThread} * threads);
  plan.adders = static_cast<int>(
      std::max(std::clamp<int64_t>(cut.parts / kPartsAnAdder, 1, cut.adders), std::min(adders, cut.columns)));
  plan.parts = static_cast<int>(cut.parts);
  plan.tiles = static_cast<int>(cut.tiles);
  plan.scratch_bytes = cut.tiles * (cut.parts + 1) * cut.columns * 2 * static_cast<int64_t>(sizeof(double));
  const int64_t a_step = plan.width * s.bytes() * (backward ? 2 : 1);
  plan.turns_back = s.steps * a_step > device.l2_bytes * 2 / 5;
  // Tiles that the cache does not hold are read twice from memory, which is fastest in its order.
  plan.beside = plan.turns_back && cut.tiles % cut.in_a_row == 0 ? static_cast<int>(cut.in_a_row) : 1;
  // What has been summed and waits to be divided: the cache has more room than that, but reads of two tiles miss where
  // it takes more, and too little of it lets blocks wait for sums.
  const int64_t running = device.multiprocessors * (kStridedRelayThreads / threads);
  const int64_t cached = cut.cached ? device.l2_bytes * 2 / 7 / (a_step * std::min(cut.steps, s.steps)) : 0;
  const int64_t all = cut.tiles / plan.beside * plan.slots();
  const int64_t waits = plan.beside == 1 ? (1 + cut.reach) * plan.slots() : plan.slots();
  plan.ahead = static_cast<int>(std::min(std::max({plan.slots() + running / 2, waits, cached}), all));
  return plan.scratch_bytes <= std::max<int64_t>(s.units * s.steps * s.bytes() / cut.room, 1 << 20);
}

constexpr int kNarrowRelay = 8;  // packs side by side

// Whether the cache about holds all: tiles are narrow then, so that many of them take turns, where that leaves few
// lanes idle. Where rows have an odd number of packs, tiles share sectors, which larger tensors lose by.
inline bool is_relay_narrow(const LatticeShape& s, bool backward, const Device& device) {
  if (s.elements > 1 || s.along) return false;
  const int64_t bytes = s.units * s.steps * s.bytes();
  if (s.inner % 2 == 1 && !(backward && s.element_size == 2)) return bytes <= device.l2_bytes / 4;
  const bool idle = s.inner > kNarrowRelay && 4 * s.inner < 3 * kNarrowRelay * ceil_div(s.inner, kNarrowRelay);
  return bytes <= (idle ? device.l2_bytes / 2 : device.l2_bytes * 3 / 2);
}

// `side` units side by side, a power of two, and up to so many warps along the steps.
inline bool strided_relay_of(const LatticeShape& s, bool backward, int side, int most_warps, bool narrow,
                             const Device& device, StridedRelayPlan& plan) {
  plan.lanes = std::min(side, 32 / s.columns);
  plan.across = side / plan.lanes;
  // As many in every tile.
  const int64_t together = std::min(s.inner, s.units);
  plan.width = static_cast<int>(ceil_div(together, ceil_div(together, side)));
  if (narrow && together % 2 == 0 && plan.width < side) plan.width += plan.width % 2;  // whole sectors
  const int64_t cells = ceil_div(s.steps, s.elements), columns = int64_t{side} * s.columns;
  const int64_t a_warp = int64_t{32 / plan.lanes} * strided_relay_packs(backward, s.elements, s.element_size);
  const int64_t warps = ceil_div(cells, a_warp);
  const int least = plan.across == 1 ? 2 : 1;  // warps of one would have tiles of their own
  plan.warps = std::clamp(power_of_two_from(std::min<int64_t>(warps, most_warps)), least, std::max(most_warps, least));
  const int64_t steps = plan.warps * a_warp * s.elements;
  const Cut cut{ceil_div(s.units, plan.width),
                ceil_div(s.inner, plan.width),
                columns,
                ceil_div(s.steps, steps),
                steps,
                std::max<int64_t>(columns / (narrow ? kColumnsANarrowAdder : kColumnsAnAdder), 1),
                s.elements == 1,
                16,
                0};
  return strided_relay_launch(s, backward, device, cut, plan);
}

// The same of so many packs side by side that begin elsewhere from step to step: sectors of them are whole where a
// warp's steps begin alike, as every eighth of float32 do.
// fold_span: columns from the first to behind the last one of a row's.
inline bool skewed_relay_of(const LatticeShape& s, bool backward, int lanes, int64_t fold_span, const Device& device,
                            StridedRelayPlan& plan) {
  const int pack = static_cast<int>(kPackBytes / s.element_size), sector = sector_elements(s.element_size);
  plan.lanes = lanes;
  plan.across = 1;
  plan.width = lanes * pack - sector;
  plan.warps = std::max(sector, 8);
  // Packs that begin up to a sector earlier end up to a sector earlier.
  const int64_t in_a_row = skewed_tiles(s.inner, sector, plan.width);
  const int64_t steps = int64_t{plan.warps} * (32 / lanes) * loose_packs(backward, s.element_size);
  const Cut cut{s.units / s.inner * in_a_row, in_a_row, plan.width, ceil_div(s.steps, steps),       steps,
                plan.width / sector,          true,     8,          ceil_div(fold_span, plan.width)};
  plan.skewed = strided_relay_launch(s, backward, device, cut, plan);
  return plan.skewed;
}

constexpr int kMostFolded = 64;  // columns of a row

// Whether columns that come round are too many for a block, and some are one row's: those are relayed in packs that
// begin elsewhere from step to step, and what divides them adds their sums (on an H100, of a copy's speed, elements one
// by one behind it: 22566 x 95 x 15 x 5 bfloat16 over dims 0 and 2, backward, 0.41, 0.18; 98 x 153 x 377 x 7 over all
// but the third 0.48, 0.34; 4 x 2954 x 203 x 15 float32 0.65, 0.44; but 400 x 72 x 48 x 7 float64 over dims 0 and 2
// 0.49, 0.69).
inline bool is_folded_in_steps(const LatticeShape& s) {
  return s.elements > 1 && s.element_size < 8 && s.rounds.period > kMostPeriod && s.rounds.period <= INT32_MAX &&
         s.rounds.fold <= kMostFolded;
}

// Those columns.
inline LatticeShape unfolded(LatticeShape s) {
  s.units *= s.rounds.fold;
  s.inner = s.rounds.period;
  s.steps = s.rounds.repeats;
  return s;
}

// Of a block that has so many columns which come round.
constexpr int interleaved_threads(int64_t period) {
  return period <= kStridedRelayThreads / 2 ? kStridedRelayThreads / 2 : kStridedRelayThreads;
}

constexpr int kEmptiestPart = 4;  // one of so many cells holds something

// The same of columns that come round in dense runs.
inline bool interleaved_relay_of(const LatticeShape& s, bool backward, const Device& device, StridedRelayPlan& plan) {
  const int64_t pack = kPackBytes / s.element_size;
  const Rounds& rounds = s.rounds;
  if (rounds.period == 0 || s.elements == 1) return false;
  const int threads = interleaved_threads(rounds.period);
  const int64_t units = interleaved_units(rounds.period, pack, threads);
  const int64_t sums = (units * (pack + 1) + threads) * 16,
                results = (rounds.period + pack) * (16 + (backward ? 124 : 36));
  if (units < rounds.period || std::max(sums, results) > device.shared_bytes) return false;
  plan.lanes = 32;
  plan.across = 1;
  plan.width = static_cast<int>(rounds.columns());
  plan.warps = static_cast<int>(ceil_div(units, 32));
  const int64_t elements = units * pack * loose_packs(backward, s.element_size);
  // Wherever in a pack a run begins.
  const int64_t parts = ceil_div(rounds.elements() + pack - 1, elements);
  if (rounds.runs > INT32_MAX / parts) return false;
  // Of several runs parts are as full as each leaves them.
  if (rounds.runs > 1 && kEmptiestPart * rounds.elements() < parts * elements) return false;
  const Cut cut{s.units / rounds.columns(),
                1,
                rounds.columns(),
                rounds.runs * parts,
                elements / rounds.columns(),
                ceil_div(rounds.columns(), kColumnsAnAdder),
                true,
                4,
                0};
  plan.interleaved = strided_relay_launch(s, backward, device, cut, plan);
  return plan.interleaved;
}

// Packs of columns as elements one by one.
inline LatticeShape unpacked(LatticeShape s) {
  s.units *= s.columns;
  s.inner *= s.columns;
  s.columns = 1;
  s.elements = static_cast<int>(kPackBytes / s.element_size);
  return s;
}

// Columns in packs whose tiles leave lanes idle, as turns of threads of which none is. On an H200, of a copy's speed:
// 750000 x 40 bfloat16 0.40 to 0.50, gradients 0.29 to 0.47; 300000 x 200 0.35 to 0.49, 0.32 to 0.46; 416666 x 72
// float32 0.47 to 0.55, 0.40 to 0.53. Floats lose where that takes all of a multiprocessor's threads for one block
// (100000 x 300 0.495 to 0.47), and where tiles are narrow (46875 x 160 0.70 to 0.66). Doubles were not measured.
inline void take_turns(const LatticeShape& s, bool backward, const Device& device, StridedRelayPlan& plan) {
  const bool idle = plan.width < plan.lanes * plan.across, half = s.element_size == 2;
  if (s.elements > 1 || s.along || !idle || s.element_size == 8) return;
  if (!half && (s.rounds.period > kStridedRelayThreads / 2 || is_relay_narrow(s, backward, device))) return;
  StridedRelayPlan turns{};
  if (interleaved_relay_of(unpacked(s), backward, device, turns)) plan = turns;
}

// wanted: in whichever way, by however few blocks.
inline bool plan_strided_relay(const LatticeShape& s, bool backward, const Device& device, bool wanted,
                               StridedRelayPlan& plan) {
  if (s.units == 0 || s.steps == 0) return false;
  if (interleaved_relay_of(s, backward, device, plan)) return true;
  if (s.steps > INT32_MAX / 2) return false;
  // 256 bytes side by side of a tile that the cache holds, else 512, which reads and writes of memory are faster with.
  // Elements one by one take 128.
  const auto fits = [&](const LatticeShape& shape) { return shape.steps * 256 <= device.l2_bytes / 5; };
  const bool folded = is_folded_in_steps(s);
  if (s.skewed || folded) {
    const LatticeShape columns = folded ? unfolded(s) : s;
    const int64_t pack = kPackBytes / s.element_size, most = columns.inner + sector_elements(s.element_size) - 1;
    const auto loaded = [&](int lanes) { return ceil_div(most, (lanes - 2) * pack) * lanes; };
    // Of the fewest lanes in all tiles.
    int lanes = fits(columns) || backward ? 16 : 32;
    for (int fewer = lanes / 2; fewer >= 8; fewer /= 2) lanes = loaded(fewer) < loaded(lanes) ? fewer : lanes;
    const int64_t span = folded ? s.rounds.fold * s.rounds.apart : 0;
    // Few blocks wait for more sums than they have time for (10 x 261 x 11 x 55 bfloat16 over all but the third 0.28,
    // one by one 0.65).
    const auto relays = [&](int side) {
      return skewed_relay_of(columns, backward, side, span, device, plan) &&
             (!folded || wanted || int64_t{plan.parts} * plan.tiles >= 2 * device.multiprocessors);
    };
    if (relays(lanes) || (lanes > 16 && relays(16))) return true;
    plan.skewed = false;
  }
  const bool narrow = is_relay_narrow(s, backward, device);
  const int beside = s.elements > 1        ? (s.element_size == 2 ? 64 : 32)
                     : narrow              ? kNarrowRelay
                     : fits(s) || backward ? 16
                                           : 32;
  const int most = !s.along ? beside : s.has_short_runs() ? s.lanes_beside_runs() : 1;
  for (int side = power_of_two_from(std::min<int64_t>({s.inner, s.units, most})); side >= 1; side /= 2) {
    const int across = std::max(side * s.columns / 32, 1);
    const int64_t tile_bytes = s.steps * side * s.bytes() * (backward ? 2 : 1);
    const int all = tile_bytes <= device.l2_bytes / 24 ? 4 : 8;
    const int warps = s.elements > 1 ? 8 : std::max(all / across, 1);
    for (int most_warps = warps; most_warps * across * 32 <= kStridedRelayThreads; most_warps *= 2) {
      if (strided_relay_of(s, backward, side, most_warps, narrow, device, plan)) return true;
    }
  }
  return false;
}

// What a relay of other units loses in a large tensor, as strided_loss() counts it: 24000 x 640 float32 run at 0.69, in
// clusters at 0.62. Of packs of halves blocks lose more that have more warps along the steps (33 x 400 x 5000 bfloat16
// on an H200 0.27, 19 x 561 x 13992 with half as many 0.50; gradients 0.22 and 0.38).
constexpr double strided_relay_loss(const LatticeShape& s, bool backward, const StridedRelayPlan& plan) {
  const bool half = s.element_size == 2, wide = s.element_size == 8;
  if (s.elements > 1) return half ? 0.73 : 0.58;
  if (half) {
    const bool tall = !s.along && plan.warps > (backward ? 4 : 2);
    return backward ? (tall ? 0.73 : 0.6) : tall ? 0.65 : 0.43;
  }
  return backward ? (wide ? 0.5 : 0.42) : 0.29;
}

}  // namespace l1norm::cuda
