// Columns whose steps begin at any place of a pack, in the registers of blocks that go across them: packs where memory
// has them. Pure and host-only, as the rest of the plan.
#pragma once

#include <algorithm>
#include <numeric>

#include "lattice_shape.h"

namespace l1norm::cuda {

// What they lose of a copy's speed, or backward of torch.add's: fitted to 1100 launches on an H200, of 33 shapes of
// columns, and set right by what was chosen in 75 others. A multiprocessor has four of the smallest blocks.
struct SkewedLoss {
  double always;
  double cluster[3];  // of two, of four, of eight
  double two, alone;  // blocks a multiprocessor, where it has no more
  double lanes_8, lanes_16;
  double beside;          // of what is loaded: columns of others, and none
  double ends;            // of rows of one tile, whose packs are not whole there
  double empty, squared;  // of cells that hold nothing
};
constexpr SkewedLoss skewed_losses(bool backward, int64_t element_size) {
  if (element_size == 2) {
    return backward ? SkewedLoss{0.213, {0.02, 0.07, 0.11}, 0.109, 0.17, -0.058, -0.02, 0.7, 0.6, 0.388, 0.0}
                    : SkewedLoss{0.106, {0.03, 0.11, 0.185}, 0.051, 0.2, 0.01, -0.005, 0.7, 0.7, 0.636, -0.634};
  }
  if (element_size == 8) return {0.121, {0.045, 0.104, 0.135}, 0.061, 0.191, 0.034, 0.015, 0.616, 0.2, -0.264, 1.223};
  return backward ? SkewedLoss{0.007, {0.03, 0.086, 0.129}, 0.121, 0.231, 0.031, -0.003, 0.564, 0.158, 0.613, -0.524}
                  : SkewedLoss{0.0, {0.03, 0.1, 0.15}, 0.065, 0.19, -0.038, -0.028, 1.1, 0.6, 0.525, -0.244};
}

// Of gradients of doubles none was as fast as elements one by one, and columns that are few leave most lanes empty.
// Blocks read columns that others divide, so that results must lie elsewhere.
constexpr bool is_skewable(const LatticeShape& s, bool backward) {
  return s.skewed && !s.in_place && !(backward && s.element_size == 8) && s.inner * s.element_size >= 64 * kPackBytes;
}

// The share of a copy's speed where an H200 has that one. What multiprocessors of a GPU with slower memory need is less
// of a copy's time: packs of float32 run at 0.94 of it on an H100, on an H200 at 0.87, but one by one at 0.73 and 0.71.
inline double share_on(const Device& device, double share) {
  constexpr double kOfAnH200 = 4800 / 1.98 / 132;
  const double slower =
      device.bytes_per_cycle > 0.0 ? device.bytes_per_cycle / device.multiprocessors / kOfAnH200 : 0.7;
  return std::min(0.96, share * std::max(1.0, 1.0 + 0.85 * (1.0 - slower)));
}

inline double skewed_loss(const LatticeShape& s, bool backward, const Device& device, const StridedPlan& plan) {
  const SkewedLoss of = skewed_losses(backward, s.element_size);
  const int64_t pack = kPackBytes / s.element_size;
  const int64_t tiles = skewed_tiles(s.inner, pack, plan.width);
  const double loaded = static_cast<double>(tiles * plan.lanes * pack);
  const double cells = static_cast<double>(int64_t{plan.warps} * (32 / plan.lanes) * plan.packs * plan.cluster);
  const double empty = 1.0 - static_cast<double>(s.steps) / cells;
  const double loss = of.always + of_cluster(of.cluster, plan.cluster) +
                      (plan.warps > 8   ? of.alone
                       : plan.warps > 4 ? of.two
                                        : 0.0) +
                      (plan.lanes == 8    ? of.lanes_8
                       : plan.lanes == 16 ? of.lanes_16
                                          : 0.0) +
                      of.beside * (1.0 - static_cast<double>(s.inner) / loaded) + of.ends / static_cast<double>(tiles) +
                      empty * (of.empty + empty * of.squared);
  // Of others elements one by one are the faster, too.
  return backward || s.element_size == 2 ? loss : 1.0 - share_on(device, 1.0 - loss);
}

// What the best launch of elements one by one loses where packs could be had, to be compared with those: fitted to 160
// such on an H200, and to 80 of gradients of floats. What counts most is a cluster, and of doubles how many lie side by
// side.
struct ElementsLoss {
  double always;
  double cluster[3];
  double alone, empty;  // as above
  double narrow;        // of fewer lanes than a warp has
  double threads;       // of a multiprocessor that are not there
  double large;         // of more than four warps
};
constexpr ElementsLoss elements_losses(bool backward, int64_t element_size) {
  if (element_size == 2) {
    return backward ? ElementsLoss{0.506, {0.051, 0.051, 0.056}, 0.091, 0.55, 0.0, 0.0, 0.0}
                    : ElementsLoss{0.429, {0.103, 0.103, 0.212}, 0.0, 0.371, 0.0, 0.0, 0.0};
  }
  if (element_size == 8) return {0.12, {0.02, 0.02, 0.07}, 0.0, 0.2, 0.22, 0.0, 0.0};
  return backward ? ElementsLoss{0.156, {0.099, 0.181, 0.211}, 0.0, 0.05, 0.0, 0.289, 0.05}
                  : ElementsLoss{0.21, {0.1, 0.1, 0.13}, 0.16, 0.05, 0.0, 0.0, 0.0};
}

// Of packs that begin elsewhere from step to step, `lanes` of which are loaded and all but two divided.
inline StridedPlan skewed_plan(const LatticeShape& s, int lanes, int warps, int packs, int cluster) {
  const int64_t pack = kPackBytes / s.element_size, columns = s.inner + pack - 1;
  const int64_t tiles = skewed_tiles(s.inner, pack, (lanes - 2) * pack);
  const int width = static_cast<int>(ceil_div(ceil_div(columns, tiles), pack) * pack);
  return {lanes, 1, width, warps, packs, cluster, false, 0, false, true};
}

// Calls see(plan) for each way to hold all steps: of so many packs a thread, as few blocks a cluster as that takes.
template <typename See>
void each_skewed_plan(const LatticeShape& s, bool backward, const Device& device, const See& see) {
  const int64_t pack = kPackBytes / s.element_size;
  // Steps from one to the next that begins alike, which has to be the same warp's.
  const auto period = static_cast<int>(pack / std::gcd(pack, s.apart / s.element_size));
  const auto with_packs = [&](int packs) {
    for (const int lanes : {32, 16, 8}) {
      for (const int warps : {4, 8, 16}) {
        const int64_t a_block = int64_t{warps} * (32 / lanes) * packs, blocks = ceil_div(s.steps, a_block);
        if (warps % period != 0 || blocks > device.max_cluster) continue;
        const int cluster = power_of_two_from(blocks);
        // Where cells are emptier others are the faster ones.
        if (10 * s.steps < (backward || s.element_size == 2 ? 7 : 8) * cluster * a_block) continue;
        const StridedPlan plan = skewed_plan(s, lanes, warps, packs, cluster);
        if (plan.width + pack <= warps * 32) see(plan);  // a thread has a sum at the most
      }
    }
  };
  with_packs(skewed_packs(backward, s.element_size, false));
  if (has_fewer_packs(backward, s.element_size)) with_packs(skewed_packs(backward, s.element_size, true));
}

}  // namespace l1norm::cuda
