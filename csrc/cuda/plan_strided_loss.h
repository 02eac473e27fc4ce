// What plans of the strided kernel lose of a copy's speed. Pure and host-only, as the rest of the plan.
#pragma once

#include <algorithm>

#include "lattice_shape.h"
#include "plan_skewed.h"

namespace l1norm::cuda {

constexpr double kImpossible = 10.0;
constexpr int64_t kManyPacks = 50;  // of a row

// What tiles of a plan lose of a copy's speed, or backward of torch.add's. What counts most is that a multiprocessor
// has several blocks, of which some load while others wait, that few registers have nothing to hold, and that the L1
// cache has room for what they wait for.
struct StridedLoss {
  double always = 0.0, half_elements = 0.0;
  double threads = 0.0;                     // of a multiprocessor that are not there
  double column_threads = 0.0;              // the same of columns besides
  double shared_threads = 0.0;              // the same without registers
  double held = 0.0, full = 0.0;            // of a multiprocessor that holds less than so many bytes
  double cache = 0.0, cache_squared = 0.0;  // of what registers wait for, beside what the L1 cache has room for
  double empty = 0.0;                       // of cells that hold nothing
  double fewer = 0.0;                       // where threads have fewer cells
  double alone = 0.0, two = 0.0;            // one block a multiprocessor, or two
  double cluster[4] = {};                   // of two, of four, of eight, of sixteen
  double sixteen = 0.0;                     // besides
  double only_registers = 0.0;              // of eight and more, without shared memory
  double registers_in_clusters = 0.0;       // of two and more
  double few_warps = 0.0;                   // fewer than four, with shared memory
  double elements = 0.0;                    // one by one
  double below_64 = 0.0, below_128 = 0.0;   // bytes side by side; and of elements
  double elements_below_64 = 0.0, elements_below_128 = 0.0;
  double below_256 = 0.0, elements_below_256 = 0.0;  // where steps lie far apart; where so many lie side by side
  double elements_far = 0.0;                         // where steps lie far apart
  double below_256_farther = 0.0;                    // besides, where they lie kFarther from each other
  double below_128_apart = 0.0;  // less than 128 bytes side by side, and steps kApart from each other
  // Of sectors that two tiles write: with one lane side by side, where each sector is one tile's, with one pack a row,
  // and the same again of rows of many packs.
  double torn = 0.0, owned = 0.0, ends = 0.0, ends_of_many = 0.0;
  double torn_shared = 0.0;  // the same without registers
  // Without registers; in clusters of more than two.
  double shared_empty = 0.0, shared_alone = 0.0, shared_alone_in_many = 0.0;
  double beside = 0.0;                                                            // with registers and shared memory
  double few_shared = 0.0, few_beside = 0.0;                                      // no more than one batch there
  double much_shared = 0.0;                                                       // more there than in registers
  double turns = 0.0, turns_empty = 0.0, turns_alone = 0.0, turns_cluster = 0.0;  // of rows that take turns
};
// Of elements one by one and of quotients of doubles: fitted to 2200 launches on an H200, of 100 shapes.
constexpr StridedLoss kStridedForward{
    .always = 0.024,
    .half_elements = 0.097,
    .threads = 0.045,
    .shared_threads = 0.045,
    .held = 0.29,
    .full = 96 << 10,
    .empty = 0.278,
    .alone = 0.133,
    .two = 0.043,
    .cluster = {0.02, 0.056, 0.092, 0.14},
    .sixteen = 0.035,
    .elements = 0.129,
    .below_64 = 0.128,
    .below_128 = 0.072,
    .elements_below_64 = 0.191,
    .elements_below_128 = 0.107,
    .below_256 = 0.05,
    .elements_below_256 = 0.1,
    .elements_far = 0.09,
    .torn = 1.6,
    .owned = 0.4,
    .ends = 0.9,
    .shared_empty = 0.295,
    .shared_alone = -0.01,
    .shared_alone_in_many = 0.016,
    .beside = -0.007,
    .much_shared = 0.038,
    .turns = 0.04,
    .turns_empty = 0.98,
    .turns_alone = 0.244,
    .turns_cluster = 1.572,
};
constexpr StridedLoss kStridedBackward{
    .always = 0.097,
    .half_elements = 0.069,
    .threads = 0.144,
    .held = 0.049,
    .full = 320 << 10,
    .empty = 0.092,
    .alone = 0.104,
    .two = 0.016,
    .cluster = {0.053, 0.104, 0.12, 0.14},
    .elements = 0.14,
    .below_64 = 0.22,
    .below_128 = 0.058,
    .elements_below_64 = 0.147,
    .elements_below_128 = 0.101,
    .below_256 = 0.06,
    .torn = 0.9,
    .ends = 0.4,
    .turns = 0.399,
    .turns_empty = 0.63,
    .turns_alone = 0.008,
    .turns_cluster = 0.5,
};
// Of packs of halves: fitted to 960 launches of bfloat16 on an H200, of 20 shapes and 26. What they choose is 0.003
// slower than the fastest one in the mean. Torn tiles of quotients own their sectors wherever they may.
constexpr StridedLoss kHalvesForward{
    .always = 0.104,
    .threads = 0.045,
    .column_threads = 0.043,
    .held = 0.231,
    .full = 96 << 10,
    .cache_squared = 0.059,
    .empty = 0.316,
    .fewer = 0.057,
    .alone = 0.092,
    .two = 0.026,
    .cluster = {0.0, 0.051, 0.076, 0.143},
    .registers_in_clusters = 0.015,
    .few_warps = 0.039,
    .below_64 = 0.056,
    .below_256 = 0.025,
    .below_256_farther = 0.033,
    .below_128_apart = 0.05,
    .torn = 1.6,
    .owned = 0.05,
    .ends = 0.9,
    .few_beside = 0.027,
};
constexpr StridedLoss kHalvesBackward{
    .always = 0.07,
    .threads = 0.144,
    .column_threads = 0.1,
    .held = 0.114,
    .full = 96 << 10,
    .cache_squared = 0.153,
    .empty = 0.398,
    .fewer = 0.082,
    .alone = 0.106,
    .two = 0.017,
    .cluster = {0.029, 0.079, 0.114, 0.196},
    .registers_in_clusters = 0.032,
    .below_64 = 0.162,
    .below_256 = 0.022,
    .below_128_apart = 0.02,
    .torn = 0.1,
    .ends = 0.4,
    .few_beside = 0.055,
};
// Of packs of floats, and of gradients of doubles: fitted to 10600 launches on an H200, of 86 shapes, each after a copy
// of other tensors, as what a kernel leaves in the cache to be written is its successor's to wait for. What they choose
// is 0.006 slower than the fastest one in the mean.
constexpr StridedLoss kFloatsForward{
    .always = 0.04,
    .threads = 0.05,
    .shared_threads = 0.02,
    .held = 0.054,
    .full = 128 << 10,
    .cache = 0.108,
    .empty = 0.175,
    .alone = 0.1,
    .two = 0.028,
    .cluster = {0.0, 0.034, 0.058, 0.112},
    .only_registers = 0.027,
    .below_64 = 0.082,
    .below_128 = 0.037,
    .below_256 = 0.058,
    .below_128_apart = 0.05,
    .torn = 0.6,
    .owned = 0.25,
    .ends = 0.9,
    .ends_of_many = 4.0,
    .torn_shared = 0.03,
    .shared_alone = 0.02,
    .shared_alone_in_many = 0.04,
    .few_shared = 0.03,
    .few_beside = 0.044,
};
constexpr StridedLoss kFloatsBackward{
    .threads = 0.132,
    .held = 0.115,
    .full = 128 << 10,
    .cache = 0.081,
    .cache_squared = 0.115,
    .empty = 0.16,
    .alone = 0.102,
    .two = 0.01,
    .cluster = {0.017, 0.07, 0.1, 0.15},
    .below_64 = 0.15,
    .below_128 = 0.01,
    .below_256 = 0.012,
    .below_256_farther = 0.055,
    .below_128_apart = 0.16,
    .torn = 0.64,
    .ends = 0.4,
    .ends_of_many = 1.7,
};
constexpr StridedLoss kDoublesBackward{
    .always = 0.202,
    .threads = 0.298,
    .held = 0.112,
    .full = 128 << 10,
    .cache = 0.149,
    .empty = 0.337,
    .alone = 0.11,
    .two = 0.022,
    .cluster = {0.033, 0.09, 0.114, 0.165},
    .below_64 = 0.22,
    .below_128 = 0.058,
    .torn = 0.9,
    .ends = 0.4,
};

inline const StridedLoss& strided_losses(const LatticeShape& s, bool backward) {
  if (s.elements == 1 && s.element_size == 2) return backward ? kHalvesBackward : kHalvesForward;
  if (s.elements == 1 && s.element_size == 4) return backward ? kFloatsBackward : kFloatsForward;
  if (s.elements == 1 && s.element_size == 8 && backward) return kDoublesBackward;
  return backward ? kStridedBackward : kStridedForward;
}

// What blocks lose that wait for each other.
inline double waiting(const LatticeShape& s, bool backward, int cluster) {
  return of_cluster(strided_losses(s, backward).cluster, cluster);
}

// Bytes of L1 cache that a multiprocessor has beside so many of shared memory: of one memory the latter gets the least
// of these shares that is enough ("Unified Shared Memory/L1/Texture Cache" in NVIDIA's tuning guides). With 28 KB left
// for 128 KB of loads, gradients of (256, 640, 32, 32) float32 over dim 1 run at 0.82 of an addition's speed on an
// H200, at 0.98 with 92 KB left for 120.
inline int cache_beside(const Device& device, int64_t shared_bytes) {
  constexpr int kNeverShared = 28 << 10;
  for (const int share : {0, 8, 16, 32, 64, 100, 132, 164, 196}) {
    if (shared_bytes <= int64_t{share} << 10) {
      return std::max(device.shared_bytes_per_multiprocessor - (share << 10), 0) + kNeverShared;
    }
  }
  return kNeverShared;
}

// Rows of three packs of halves, which a tile has several of: nearly all sectors are its own (37277 x 98 x 24 bfloat16
// over its middle on an H200 0.75 of a copy's speed, in slabs 0.47; 33860 x 111 x 24 float16 0.79, 0.55).
constexpr bool has_short_rows(const LatticeShape& s, int side) {
  return s.elements == 1 && s.element_size == 2 && s.inner < side && s.steps < 256;
}

// What a plan loses; where that is more than `most`, at least something more. Divisions come last, and are of what fits
// 32 bits, and of floats: this runs for some dozens of plans.
inline double strided_loss(const LatticeShape& s, bool backward, const Device& device, const StridedPlan& plan,
                           double most = kImpossible) {
  const StridedLoss& of = strided_losses(s, backward);
  const int64_t shared_bytes = strided_shared_bytes(s, backward, plan);
  const int blocks = strided_room(s, backward, device, plan, shared_bytes);
  if (blocks == 0) return kImpossible;
  const int threads = strided_threads(plan), tiles = strided_tiles_a_block(plan);
  const int most_threads = strided_most_resident(s, backward, device, plan);
  const bool elements = s.elements > 1, alone = blocks == 1;
  const int side = plan.lanes * plan.across;
  const int64_t line = s.along ? kLineBytes : side * s.bytes();
  double loss = elements && s.element_size == 2 ? of.half_elements : 0.0;
  if (plan.skewed) {
    loss = skewed_loss(s, backward, device, plan);
  } else if (plan.interleaved) {
    loss += of.turns + (alone ? of.turns_alone : 0.0) + of.turns_cluster * waiting(s, backward, plan.cluster);
  } else {
    loss += of.always + waiting(s, backward, plan.cluster) + of_blocks(of.alone, of.two, blocks);
    if (line < 64) {
      loss += elements ? of.elements_below_64 : of.below_64;
    } else if (line < kLineBytes) {
      loss += elements ? of.elements_below_128 : of.below_128;
    }
    if (has_narrow_warps(s.element_size, elements) && !s.along) {
      const bool narrow = line < kWideLine, wide = s.inner * s.bytes() >= kWideLine;
      if (narrow && s.is_far()) loss += of.below_256;
      if (narrow && s.apart >= kFarther) loss += of.below_256_farther;
      if (!elements && line < kLineBytes && s.apart >= kApart) loss += of.below_128_apart;
      if (elements && narrow && wide) loss += of.elements_below_256;
      if (elements && s.is_far()) loss += of.elements_far;
    }
    if (elements) loss += of.elements;
    if (plan.packs < strided_cells(backward, s.bytes(), s.element_size)) loss += of.fewer;
    if (s.is_torn() && !has_short_rows(s, side)) {
      loss += (plan.own_sectors ? of.owned : of.torn) / side + of.ends / static_cast<double>(s.inner) +
              of.ends_of_many / static_cast<double>(std::max<int64_t>(s.inner, kManyPacks));
      if (plan.packs == 0) loss += of.torn_shared;
    }
    if (plan.packs == 0) {
      loss += plan.cluster <= 2 ? of.shared_alone : of.shared_alone_in_many;
    } else if (plan.shared_packs > 0) {
      loss += of.beside;
    }
    if (plan.shared_packs > 0 && plan.shared_packs <= shared_batch(backward, s.element_size)) {
      loss += plan.packs == 0 ? of.few_shared : of.few_beside;
    }
    if (plan.shared_packs > 16) loss += of.much_shared;
    if (plan.cluster > kMaxCluster) loss += of.sixteen;
    if (plan.cluster >= kMaxCluster && plan.shared_packs == 0) loss += of.only_registers;
    if (plan.cluster > 1 && plan.shared_packs == 0) loss += of.registers_in_clusters;
    if (plan.shared_packs > 0 && threads < 4 * 32) loss += of.few_warps;
  }
  if (loss >= most) return loss;
  // Multiprocessors without a block.
  const int enough = 2 * device.multiprocessors;
  if (s.units < int64_t{enough} * plan.width * tiles) {
    loss += 0.3 * missing(static_cast<double>(strided_grid(s, plan)), enough);
  }
  if (plan.skewed) return loss;
  const double tile_bytes = static_cast<double>(s.steps * plan.width * s.bytes());
  const int cells = (plan.packs + plan.shared_packs) * plan.cluster;  // of a tile's threads of one number
  if (plan.interleaved) {
    return loss + of.turns_empty * std::max(0.0, missing(tile_bytes, threads * cells * kPackBytes) - 0.15);
  }
  const double empty = missing(tile_bytes, plan.warps * (32 / plan.lanes) * cells * kPackBytes * plan.width);
  loss += (of.empty + (plan.packs == 0 ? of.shared_empty : 0.0)) * empty;
  if (loss >= most) return loss;
  // The cache has room for whole lines, of which lanes may read a part.
  const int waited = blocks * threads * plan.packs * kPackBytes * (backward ? 2 : 1);
  const int parts = line < kLineBytes ? kLineBytes / static_cast<int>(line) : 1;
  const double missed = missing(cache_beside(device, blocks * (shared_bytes + kReservedShared)), waited * parts);
  const double of_threads = plan.packs == 0 ? of.shared_threads : of.threads + (s.along ? 0.0 : of.column_threads);
  return loss + of_threads * missing(blocks * threads, most_threads) + missed * (of.cache + of.cache_squared * missed) +
         of.held * missing(blocks * tiles * tile_bytes / plan.cluster, of.full);
}

// What the plan that was chosen loses, to be compared with packs that begin elsewhere from step to step.
inline double planned_loss(const LatticeShape& s, bool backward, const Device& device, const StridedPlan& plan) {
  if (plan.interleaved) return strided_loss(s, backward, device, plan);
  const ElementsLoss of = elements_losses(backward, s.element_size);
  const int threads = strided_threads(plan), most_threads = strided_most_resident(s, backward, device, plan);
  const int at_once =
      strided_at_once(s, backward, device, plan, static_cast<int>(strided_shared_bytes(s, backward, plan)));
  const double cells = plan.warps * (32.0 / plan.lanes) * plan.packs * plan.cluster * s.elements;
  return of.always + of_cluster(of.cluster, plan.cluster) + (at_once == 1 ? of.alone : 0.0) +
         (plan.lanes < 32 ? of.narrow : 0.0) + of.threads * missing(at_once * threads, most_threads) +
         (plan.warps * plan.across > 4 ? of.large : 0.0) + of.empty * missing(static_cast<double>(s.steps), cells);
}

}  // namespace l1norm::cuda
