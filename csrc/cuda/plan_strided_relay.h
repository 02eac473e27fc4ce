// The strided relay's launch. Pure and host-only, as the rest of the plan.
#pragma once

#include <algorithm>

#include "../lattice.h"
#include "device.h"
#include "plan_strided.h"

namespace l1norm::cuda {

constexpr int kStridedRelayThreads = 512;
// Of a tile, that one block adds up: more of its threads share a column's parts then.
constexpr int kColumnsAnAdder = 8;
// Cells a thread: packs, or as many elements one by one, of which halves take a register each.
constexpr int strided_relay_packs(bool backward, int elements, int64_t element_size) {
  if (elements == 8) return backward ? 2 : 4;
  return element_size == 4 ? (backward ? 8 : 16) : backward ? 6 : 12;
}
template <bool kBackward, int kElements, int kSize>
constexpr int kStridedRelayPacks = strided_relay_packs(kBackward, kElements, kSize);

// Elements of 32 bytes, of which writes to memory should have all.
constexpr int sector_elements(int64_t element_size) { return static_cast<int>(2 * kPackBytes / element_size); }

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
  bool turns_back;  // divides a tile from its end
  bool folds;       // in packs of several steps
  bool skewed;      // in packs that begin elsewhere from step to step; the width is in elements
  int64_t scratch_bytes;

  int slots() const { return (parts + adders) * beside; }
};

// The lattice in packs that are of several steps, where it has such.
inline LatticeShape folded_shape(const LatticeShape& s) {
  if (s.fold == 1 || s.element_size == 8) return s;
  const int64_t packs = s.inner * s.fold / s.elements;
  return {s.units / s.inner * packs, s.steps / s.fold, packs, s.elements, 1, false, s.element_size, s.fold, false};
}

// The rest of the plan. False where sums, which go through device memory, are more than it is for.
inline bool strided_relay_launch(const LatticeShape& s, bool backward, const Device& device, StridedRelayPlan& plan) {
  const int sector = sector_elements(s.element_size), elements = plan.skewed ? 1 : s.elements;
  int64_t tiles = ceil_div(s.units, plan.width), columns = plan.lanes * plan.across * s.columns;
  if (plan.skewed) {
    // Packs that begin up to a sector earlier end up to a sector earlier.
    tiles = s.units / s.inner * ceil_div(s.inner + sector - 1, plan.width);
    columns = plan.width;
  }
  const int64_t a_block = static_cast<int64_t>(plan.warps) * (32 / plan.lanes) * elements *
                          strided_relay_packs(backward, elements, s.element_size);
  const int64_t parts = ceil_div(s.steps, a_block);
  plan.adders =
      plan.folds ? 1 : static_cast<int>(std::max<int64_t>(columns / (plan.skewed ? sector : kColumnsAnAdder), 1));
  if (parts >= INT32_MAX / 4 || tiles > INT32_MAX / (2 * (parts + plan.adders))) return false;
  plan.parts = static_cast<int>(parts);
  plan.tiles = static_cast<int>(tiles);
  plan.scratch_bytes = tiles * (parts + 1) * columns * 2 * static_cast<int64_t>(sizeof(double));
  const int64_t a_step = plan.width * s.bytes() * (backward ? 2 : 1);
  plan.turns_back = s.steps * a_step > device.l2_bytes * 2 / 5;
  // Tiles that the cache does not hold are read twice from memory, which is fastest in its order.
  const int64_t in_a_row = plan.skewed ? tiles / (s.units / s.inner) : ceil_div(s.inner, plan.width);
  plan.beside = plan.turns_back && tiles % in_a_row == 0 ? static_cast<int>(in_a_row) : 1;
  // What has been summed and waits to be divided: the cache has more room than that, but reads of two tiles miss where
  // it takes more, and too little of it lets blocks wait for sums.
  const int64_t running = device.multiprocessors * (kStridedRelayThreads / 32 / (plan.warps * plan.across));
  const int64_t cached = elements > 1 ? 0 : device.l2_bytes * 2 / 7 / (a_step * std::min(a_block, s.steps));
  const int64_t all = tiles / plan.beside * plan.slots();
  plan.ahead = static_cast<int>(std::min(std::max(plan.slots() + running / 2, cached), all));
  return plan.scratch_bytes <= std::max<int64_t>(s.units * s.steps * s.bytes() /
                                                     (plan.folds    ? 4
                                                      : plan.skewed ? 8
                                                                    : 16),
                                                 1 << 20);
}

// `side` units side by side, a power of two, and up to so many warps along the steps.
inline bool strided_relay_of(const LatticeShape& s, bool backward, int side, int most_warps, const Device& device,
                             StridedRelayPlan& plan) {
  plan.lanes = std::min(side, 32 / s.columns);
  plan.across = side / plan.lanes;
  // As many in every tile.
  const int64_t together = std::min(s.inner, s.units);
  plan.width = static_cast<int>(ceil_div(together, ceil_div(together, side)));
  const int64_t cells = ceil_div(s.steps, s.elements);
  const int64_t warps = ceil_div(
      cells, static_cast<int64_t>(32 / plan.lanes) * strided_relay_packs(backward, s.elements, s.element_size));
  const int least = plan.across == 1 ? 2 : 1;  // warps of one would have tiles of their own
  plan.warps = std::clamp(power_of_two_from(std::min<int64_t>(warps, most_warps)), least, std::max(most_warps, least));
  return strided_relay_launch(s, backward, device, plan);
}

// The same of so many packs side by side that begin elsewhere from step to step: sectors of them are whole where a
// warp's steps begin alike, as every eighth of float32 do.
inline bool skewed_relay_of(const LatticeShape& s, bool backward, int lanes, const Device& device,
                            StridedRelayPlan& plan) {
  const int pack = static_cast<int>(kPackBytes / s.element_size), sector = sector_elements(s.element_size);
  plan.lanes = lanes;
  plan.across = 1;
  plan.width = lanes * pack - sector;
  plan.warps = std::max(sector, 8);
  plan.skewed = true;
  if (strided_relay_launch(s, backward, device, plan)) return true;
  plan.skewed = false;
  return false;
}

inline bool plan_strided_relay(const LatticeShape& shape, bool backward, const Device& device, StridedRelayPlan& plan) {
  const LatticeShape s = folded_shape(shape);
  if (s.units == 0 || s.steps == 0 || s.steps > INT32_MAX / 2) return false;
  plan.folds = s.fold > 1 && s.elements == 1;
  // 256 bytes side by side of a tile that the cache holds, else 512, which reads and writes of memory are faster with.
  // Elements one by one take 128.
  const bool fits = s.steps * 256 <= device.l2_bytes / 5;
  if (s.skewed) {
    const int64_t pack = kPackBytes / s.element_size, columns = s.inner + sector_elements(s.element_size) - 1;
    const auto side = [&](int lanes) { return ceil_div(columns, (lanes - 2) * pack) * lanes; };
    // Of the fewest lanes in all tiles.
    int lanes = fits || backward ? 16 : 32;
    for (int fewer = lanes / 2; fewer >= 8; fewer /= 2) lanes = side(fewer) < side(lanes) ? fewer : lanes;
    if (skewed_relay_of(s, backward, lanes, device, plan)) return true;
    if (lanes > 16 && skewed_relay_of(s, backward, 16, device, plan)) return true;
  }
  const int most = s.along            ? 1
                   : plan.folds       ? 32
                   : s.elements > 1   ? (s.element_size == 2 ? 64 : 32)
                   : fits || backward ? 16
                                      : 32;
  // Those that fold have a row's sums in one tile.
  const int widest = power_of_two_from(std::min<int64_t>({s.inner, s.units, most})), least = plan.folds ? widest : 1;
  for (int side = widest; side >= least; side /= 2) {
    const int across = std::max(side * s.columns / 32, 1);
    const int64_t tile_bytes = s.steps * side * s.bytes() * (backward ? 2 : 1);
    // Those that fold have many columns for what a block reads: the fewest sums of them.
    const int all = plan.folds && s.element_size == 2 ? 16 : tile_bytes <= device.l2_bytes / 24 ? 4 : 8;
    const int warps = s.elements > 1 ? 8 : std::max(all / across, 1);
    for (int most_warps = warps; most_warps * across * 32 <= kStridedRelayThreads; most_warps *= 2) {
      if (strided_relay_of(s, backward, side, most_warps, device, plan)) return true;
    }
  }
  return false;
}

// Whether clusters lose more than what the relay does, of which a large tensor runs at about 0.6 of a copy's speed
// whatever its columns' length: 16384 x 32768 float32 at 0.70, in clusters at 0.58; 3000 x 100003 at 0.57, where those
// go element by element, at 0.49.
inline bool is_better_relayed(const LatticeShape& s, bool backward, const Device& device, const StridedPlan& plan) {
  if (plan.whole || s.units * s.steps * s.bytes() < device.l2_bytes / (s.skewed ? 4 : 1)) return false;
  const bool half = s.element_size == 2;
  const double most = !s.skewed ? (half && backward ? 0.5 : 0.38) : !half ? 0.3 : backward ? 0.7 : 0.5;
  return strided_loss(s, backward, device, plan) > most;
}

}  // namespace l1norm::cuda
