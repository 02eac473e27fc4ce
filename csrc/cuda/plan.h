// Which kernel a geometry gets on a device, and how it is launched. Pure and host-only: tested without a GPU.
//
// Figures are fractions of a copy's speed, measured on an H200 over 1 GiB of input.
#pragma once

#include <algorithm>
#include <cstdint>

#include "plan_column_ring.h"
#include "plan_column_tile.h"
#include "plan_cost.h"
#include "plan_gather.h"
#include "plan_narrow_relay.h"
#include "plan_relay.h"
#include "plan_resident.h"
#include "plan_ring.h"
#include "plan_runs.h"
#include "plan_short.h"
#include "plan_slab.h"
#include "plan_slab_cost.h"
#include "plan_stagger.h"
#include "plan_strided.h"
#include "plan_strided_relay.h"
#include "plan_warp_columns.h"
#include "shape.h"

namespace l1norm::cuda {

constexpr int kMaxThreads = 1024;

enum class Kernel {
  kTile,
  kWarp,
  kResident,
  kSplit,
  kRing,
  kRelay,
  kGather,
  kRuns,
  kColumnTile,
  kSlab,
  kWarpColumns,
  kStrided,
  kStridedRelay,
  kColumnRing,
  kTwoPass
};
constexpr int kKernels = 15;

constexpr const char* name(Kernel kernel) {
  constexpr const char* kNames[kKernels] = {"tile",         "warp",    "resident",      "split",       "ring",
                                            "relay",        "gather",  "runs",          "column_tile", "slab",
                                            "warp_columns", "strided", "strided_relay", "column_ring", "two_pass"};
  return kNames[static_cast<int>(kernel)];
}

// Whether gradients that are one row are copied until all rows lie in packs as a copy does: of a copy's speed, 4096 x
// 262143 float32 has 0.69 by that, else 0.51, bfloat16 0.81, 0.49, 32768 x 65535 float32 0.78, 0.73. Floats of many
// lengths take longer (401 1.21 times, 2046 1.25, 8191 1.03; but 127 0.85 times): one by one from where they lie, more
// of them stay in a multiprocessor's cache.
constexpr bool reads_by_turns(int64_t element_size, int64_t row_bytes) {
  return element_size != 4 || row_bytes < 1200 || row_bytes > 220000;
}

// The split kernel: `blocks_a_row` blocks hold a row as a resident kernel's block does, all rows at once.
struct SplitPlan {
  int threads;
  int packs;
  int shared_packs;
  int blocks_a_row;
};

// The two-pass kernel: one block a row at a time, resident blocks walk the rows.
struct TwoPassPlan {
  int threads;
  int blocks;
};

struct Plan {
  Kernel kernel = Kernel::kTwoPass;
  TilePlan tile{};
  WarpPlan warp{};
  ResidentPlan resident{};
  SplitPlan split{};
  RingPlan ring{};
  RelayPlan relay{};
  GatherPlan gather{};
  RunsPlan runs{};
  ColumnTilePlan column_tile{};
  SlabPlan slab{};
  WarpColumnsPlan warp_columns{};
  StridedPlan strided{};
  StridedRelayPlan strided_relay{};
  ColumnRingPlan column_ring{};
  TwoPassPlan two_pass{};
  Stagger stagger{};
};

// Whether each row is looked up by its number, in whatever loops rows lie.
constexpr bool takes_rows(const Plan& plan) {
  if (plan.kernel == Kernel::kRing) return plan.ring.columns == 1;
  return plan.kernel == Kernel::kWarp || plan.kernel == Kernel::kResident || plan.kernel == Kernel::kRelay;
}

// Whether the kernel of columns knows gradients that are one number for all elements, and reads none.
constexpr bool takes_one_number(Kernel kernel, const Plan& plan, const LatticeShape& lattice) {
  const auto holds_packs = [&](const auto& p) { return lattice.elements == 1 && !p.skewed && !p.interleaved; };
  if (kernel == Kernel::kStridedRelay) return holds_packs(plan.strided_relay);
  return kernel == Kernel::kStrided && !plan.strided.whole && holds_packs(plan.strided);
}

// Rows that the device holds all at once, each spread over its share of the multiprocessors.
inline bool plan_split(const Shape& shape, const Device& device, SplitPlan& plan) {
  if (!shape.held || shape.backward || shape.rows == 0 || shape.rows > device.multiprocessors) return false;
  const int64_t packs = std::max<int64_t>(shape.packs(), 1);
  // A row's blocks wait for each other: four packs a thread repay that.
  const auto take = [&](int a_thread, int most_shared) {
    const int threads = resident_threads(a_thread);
    const int64_t blocks = std::clamp<int64_t>(packs / (4 * threads), 1, device.multiprocessors / shape.rows);
    const int64_t each = ceil_div(whole_lines(packs, blocks), threads);
    plan = {threads, a_thread, static_cast<int>(std::max<int64_t>(each - a_thread, 0)), static_cast<int>(blocks)};
    return plan.shared_packs <= most_shared;
  };
  if (take(16, 0)) return true;
  constexpr int64_t kShared = resident_threads(kPacksBesideShared) * kPackBytes;
  return shape.aligned && take(kPacksBesideShared, static_cast<int>((device.shared_bytes - kOtherShared) / kShared)) &&
         plan.shared_packs > 0;
}

inline TwoPassPlan plan_two_pass(const Shape& shape, const Device& device) {
  TwoPassPlan plan;
  // Four packs a thread repay the block's reduction; a warp is the least there is.
  const int64_t row_bytes = shape.row_bytes();
  const int64_t packs = ceil_div(row_bytes, kPackBytes);
  plan.threads = static_cast<int>(std::clamp<int64_t>(ceil_div(packs, 4 * 32) * 32, 32, kMaxThreads));
  // Rows in flight take at most three quarters of the L2 cache, so that the second pass finds them there: at
  // 32768 x 65535 float32, one block a multiprocessor runs at 0.82, a grid of all rows at 0.6.
  const int64_t resident = device.threads_per_multiprocessor / plan.threads;
  const int64_t cached = device.l2_bytes * 3 / 4 / std::max<int64_t>(row_bytes, 1) / device.multiprocessors;
  const int64_t per_multiprocessor = std::clamp<int64_t>(cached, 1, std::max<int64_t>(resident, 1));
  plan.blocks = static_cast<int>(std::min<int64_t>(shape.rows, per_multiprocessor * device.multiprocessors));
  return plan;
}

inline bool in_a_round_and_a_half(const Shape& shape, const Device& device, int cluster) {
  return 2 * shape.rows <= 3 * clusters_at_once(device, cluster);
}

// Rows that are long and so few that their clusters would leave much of the device idle: they are split. Of more than 2
// MB each, that pays where a quarter is idle (8 x 600001 float32: 0.59 in clusters, split 0.68; 13: 0.77, 0.74). So it
// does where few rows are left once the first ones have ended (16 x 360001: 0.61, 0.71; 22 x 400001: 0.72, 0.76; 24:
// 0.75, 0.74; of two blocks a multiprocessor, 18 x 300001 0.645, 0.71, but 18 x 180001 0.62, 0.59).
inline bool is_lonely(const Shape& shape, const Device& device, const ResidentPlan& plan) {
  if (shape.packs() <= 16384) return false;
  const int64_t blocks = shape.rows * plan.cluster;
  if (4 * blocks <= device.multiprocessors * (shape.row_bytes() < 2000000 ? 1 : 3)) return true;
  const bool alone =
      shape.row_bytes() >= 1200000 || resident_blocks(shape.backward, element_size(shape.dtype), device, plan) == 1;
  return alone && shape.rows > clusters_at_once(device, plan.cluster) &&
         in_a_round_and_a_half(shape, device, plan.cluster);
}

// Whether kernels that go across rows are the better ones, element by element where a row is too long to be held and it
// and its result's gradient begin at different places of a pack: 0.88 of torch.add at 4097 float32, where the two-pass
// kernel has 0.67; 0.43 and 0.58 at 65535 bfloat16, 0.47 and 0.34 at 450001.
inline bool goes_across(const Shape& shape) {
  if (!shape.held) return true;
  return shape.backward && !shape.aligned && (!shape.is_half() || shape.row_bytes() >= 512 << 10);
}

// Whether columns that become rows, too long to be gathered and too short for lanes along their results, are better
// read twice (on an H100, of a copy's speed, in the strided kernel behind it: 8550 columns of 109 float32 0.54, 0.37;
// 386441 of 151 float16 0.49, 0.35; 20086 of 87 float64 0.56, 0.45).
inline bool are_columns_better_read_twice(const Shape& shape) {
  return shape.lattice.turned == Turned::kToRows && !shape.lattice.along && !shape.backward &&
         shape.row_bytes() > 256 && shape.row_bytes() <= 768;
}

// The same of columns that nothing holds, where blocks of one each are enough (273 of 403021 float16 1.5, relayed 0.48;
// 77 of 2034427 bfloat16 1.5, 0.51; 84 of 1083976 float32 1.7, 0.64).
inline bool are_columns_better_not_relayed(const Shape& shape, const Device& device) {
  return shape.lattice.turned == Turned::kToRows && !shape.backward && 2 * shape.rows >= device.multiprocessors;
}

// Of launches whose blocks hold rows from their read to their write.
inline Stagger stagger_of(const Plan& plan, const Shape& shape, const Device& device) {
  const int operands = shape.backward ? 2 : 1;
  // Kernels of rows that lie apart from their results' gradients have no register for it on compute capability 10.0.
  if (plan.kernel == Kernel::kResident && plan.resident.alike) {
    const ResidentPlan& p = plan.resident;
    const int blocks = resident_blocks(shape.backward, element_size(shape.dtype), device, p);
    // Of gradients, whose blocks write half as much as they read: 768 x 262143 float32 0.909, as far as others 0.904.
    const double spread = shape.backward ? 0.75 : 1.0;
    const Stagger stagger =
        plan_stagger(device, shape.rows, p.cluster, blocks, static_cast<double>(operands * shape.row_bytes()), spread);
    // Small blocks that load into registers get out of step by themselves: they lose up to 1%.
    return p.shared_packs > 0 || stagger.groups <= static_cast<uint32_t>(device.multiprocessors) ? stagger : Stagger{};
  }
  if (plan.kernel == Kernel::kSlab) {
    const SlabPlan& p = plan.slab;
    return plan_stagger(device, shape.lattice.slabs(), p.cluster, p.at_once,
                        static_cast<double>(operands * p.cluster * p.packs * kPackBytes), 1.5);
  }
  if (plan.kernel == Kernel::kStrided && !plan.strided.whole) {
    const StridedPlan& p = plan.strided;
    const LatticeShape& s = shape.lattice;
    const int shared = static_cast<int>(strided_shared_bytes(s, shape.backward, p));
    // Tiles are read more slowly than rows: (64, 128, 128, 64) over dims (0, 2) has 0.828, with a spread of 1 0.820;
    // (4, 8192, 512) over its middle 0.782 both; gradients of 2048 x 16384 over dim 0 0.817, 0.769.
    constexpr double kSpread = 1.5;
    return plan_stagger(
        device, strided_grid(s, p) / p.cluster, p.cluster, strided_at_once(s, shape.backward, device, p, shared),
        static_cast<double>(operands * strided_tiles_a_block(p) * s.steps * p.width * s.bytes()), kSpread);
  }
  return {};
}

constexpr int64_t kLeastWholeSteps = 1024;      // of a block, in all whole windows: some 30 MB
constexpr int64_t kLeastWholeHalves = 1 << 15;  // of a block: some 8 MB

// Whether a ring of whole windows is better. Of 64 columns: 7680 steps 0.79 and in clusters 0.81, 9216 0.83 and 0.77,
// 16384 0.89 and 0.82, eight windows of that 0.65 and relayed 0.60; gradients of 4096 0.75 and 0.89, of 6000 0.81 and
// 0.74, of 16384 0.84 and 0.71. In runs of 128 steps: 8192 0.78 and 0.76, 9216 0.82 and 0.68; gradients of 6000 0.79
// and 0.66. Of 128 halves: 8192 steps 0.64 and in clusters 0.71, 9216 0.68 and 0.60, 32768 (of 64) 0.74 and relayed
// 0.59, two windows of 16384 0.41 and 0.34; gradients of 5120 0.62 and 0.62, of 8192 0.73 and 0.61. Of 64 halves: 16384
// 0.60 and 0.61, 20480 0.66 and 0.60; gradients of 8192 0.56 and 0.62, of 12288 0.63 and 0.55.
inline bool are_whole_windows_better(const LatticeShape& s, bool backward, const ColumnRingPlan& plan) {
  const bool halves = s.element_size == 2, narrow = plan.columns * s.element_size == kNarrowWindow;
  // In all windows of a block.
  const bool enough = halves ? plan.windows * plan.columns * plan.steps >= kLeastWholeHalves
                             : plan.windows * plan.steps >= kLeastWholeSteps;
  if (!enough) return false;
  if (halves && narrow) return plan.steps >= (backward ? 90 : 140);
  return plan.steps >= (backward ? 48 : halves ? 72 : 68);
}

// Whether columns are so long that the ring of windows is the better one, and so many that the first and the last
// windows of a plane matter little. Of 1 GiB, elements of 8192 steps have 0.71 there and relayed 0.60, of 32768 0.78
// and 0.58, of 65535 0.70 and 0.59, of 90001 0.68 and 0.61; gradients of 4096 0.66 and 0.60, of 8192 0.75 and 0.60, of
// 32768 0.69 and 0.53, of 50001 0.67 and 0.43; 1001 columns of 8192 0.46 and 0.41, 100 planes of 301 0.44 and 0.52.
// Packs of 16384 have 0.84, in clusters of 16 0.80, of 12000 0.73 and 0.78, of 32768 0.85 and relayed 0.69; gradients
// of 8192 0.78 and in clusters 0.80, of 10000 0.70 and 0.63.
inline bool are_columns_better_ringed(const LatticeShape& s, bool backward, const ColumnRingPlan& plan) {
  if (plan.whole) return are_whole_windows_better(s, backward, plan);
  if (s.elements > 1) return s.beside.columns >= 960 && plan.steps >= (backward ? 34 : 64);
  return s.beside.columns >= 1024 && plan.windows >= 48 && plan.steps >= (backward ? 80 : 130);
}

// Smaller tensors have not been measured in few tiles, slabs or relays.
constexpr double kLeastCompared = 2 << 20;

// The kernel across rows that costs least of those that are open; the two-pass kernel where none takes the shape.
// wanted: whatever it costs.
template <typename Open>
Kernel plan_across(const Shape& shape, const Device& device, bool wanted, const Open& open, Plan& plan) {
  const LatticeShape& s = shape.lattice;
  Kernel best = Kernel::kTwoPass;
  double least = 2.0 * kMostCost;
  const auto consider = [&](Kernel kernel, double cost) {
    if (cost >= least) return;
    least = cost;
    best = kernel;
  };
  const bool small = shape.bytes() < kLeastCompared;
  // It reads gradients that are one number.
  const bool in_warps = wanted || !(small || shape.one_grad || !are_columns_better_in_warps(shape));
  if (in_warps && open(Kernel::kWarpColumns) && plan_warp_columns(shape, device, plan.warp_columns)) {
    return Kernel::kWarpColumns;
  }
  if ((wanted || !small) && open(Kernel::kColumnRing) && !shape.one_grad &&
      plan_column_ring(s, shape.backward, device, plan.column_ring) &&
      (wanted || are_columns_better_ringed(s, shape.backward, plan.column_ring))) {
    return Kernel::kColumnRing;
  }
  const bool strided = open(Kernel::kStrided) && plan_strided(s, shape.backward, device, plan.strided);
  if (strided) consider(Kernel::kStrided, strided_cost(shape, device, plan.strided));
  // Of packs few were among those that costs are fitted to.
  const bool packs = strided && s.elements == 1;
  const bool shared = strided && plan.strided.is_shared();
  if (open(Kernel::kColumnTile) && plan_column_tile(shape, device, plan.column_tile)) {
    const auto& tile = plan.column_tile;
    const bool in_lanes = shared || (strided && plan.strided.whole && s.element_size == 2);
    const bool packed =
        packs && are_packs_better_in_tiles(shape.backward, s.element_size, s.inner, s.steps, tile.gapless, in_lanes);
    const bool enough = are_enough_tiles(tile.tiles, device) || !(small || packed);
    if (wanted || (!shape.held && packs == packed && enough)) {
      if (packed) least = 2.0 * kMostCost;
      consider(Kernel::kColumnTile, column_tile_cost(shape, device, tile));
    }
  }
  const bool relays = wanted || !are_columns_better_not_relayed(shape, device);
  const bool whole = best == Kernel::kStrided && plan.strided.whole && !shared;
  // Columns of a few steps, which a thread has whole, are a slab's or a relay's in no case.
  if (!wanted && best != Kernel::kTwoPass && (whole || small)) return best;
  const bool held = !wanted && best == Kernel::kStrided && packs && !shared;
  const bool narrow = held && is_relay_narrow(s, shape.backward, device), stays = held && are_small_columns(s);
  const bool relayed = open(Kernel::kStridedRelay) && relays && (narrow || !stays) &&
                       plan_strided_relay(s, shape.backward, device, wanted, plan.strided_relay);
  if (relayed && narrow && is_better_relayed(s, shape.backward, plan.strided_relay, plan.strided)) {
    return Kernel::kStridedRelay;
  }
  if (stays) return best;
  if (relayed) {
    consider(Kernel::kStridedRelay, relay_cost(shape, device, plan.strided_relay, strided ? &plan.strided : nullptr));
  }
  const bool ringed = open(Kernel::kRing) && plan_ring_of_turns(shape, device, plan.ring) &&
                      (wanted || are_turns_better_ringed(shape, device, plan.ring));
  if (ringed && (wanted || are_turns_too_long_for_slabs(shape, device, plan.ring))) return Kernel::kRing;
  // The search for a slab takes a small call longer than all others. Slabs read gradients that are one number, of which
  // a copy would have to be made.
  const bool reads_none = shape.one_grad && takes_one_number(best, plan, s);
  if (open(Kernel::kSlab) && !reads_none && s.slab().period > 0 && least_slab_cost(shape, device) < least &&
      plan_slab(s, shape.backward, device, plan.slab)) {
    consider(Kernel::kSlab, slab_cost(shape, device, plan.slab));
  }
  if (best != Kernel::kStridedRelay) return best;
  // Elements one by one read gradients, too.
  if (!shape.one_grad) take_turns(s, shape.backward, device, plan.strided_relay);
  return ringed ? Kernel::kRing : best;
}

// `wanted`, where it is not null and that kernel can take the shape, is what tests ask for.
inline Plan make_plan(const Shape& shape, const Device& device, const Kernel* wanted = nullptr) {
  Plan plan;
  const auto open = [&](Kernel kernel) { return wanted == nullptr || *wanted == kernel; };
  const bool across = wanted != nullptr || (goes_across(shape) && !are_columns_better_read_twice(shape));
  const bool tiles = wanted != nullptr || (shape.row_bytes() <= longest_tile_row(shape) && !is_few(shape, device, 4));
  if (tiles && open(Kernel::kTile) && plan_tile(shape, device, plan.tile)) {
    plan.kernel = Kernel::kTile;
  } else if (wanted == nullptr && are_pieces_better_in_slabs(shape) && is_better_gathered(shape) &&
             shape.bytes() >= kLeastCompared && plan_slab(shape.lattice, shape.backward, device, plan.slab)) {
    plan.kernel = Kernel::kSlab;
  } else if (open(Kernel::kGather) && (wanted != nullptr || is_better_gathered(shape)) &&
             plan_gather(shape, device, plan.gather) &&
             (wanted != nullptr || are_enough_gathered(shape, device, plan.gather.tiles))) {
    plan.kernel = Kernel::kGather;
  } else if (open(Kernel::kWarp) && !(wanted == nullptr && is_better_in_blocks(shape, device)) &&
             plan_warp(shape, device, plan.warp)) {
    plan.kernel = Kernel::kWarp;
  } else if (const bool split = open(Kernel::kSplit) && plan_split(shape, device, plan.split);
             open(Kernel::kRing) &&
             (wanted != nullptr ? plan_ring(shape, device, plan.ring)
                                : !(split && in_a_round_and_a_half(shape, device, kMaxCluster)) &&
                                      is_better_ringed(shape, device, plan.ring))) {
    plan.kernel = Kernel::kRing;
  } else if (open(Kernel::kResident) && plan_resident(shape, device, plan.resident) &&
             !(split && is_lonely(shape, device, plan.resident))) {
    plan.kernel = Kernel::kResident;
  } else if (split) {
    plan.kernel = Kernel::kSplit;
  } else if (open(Kernel::kRelay) && plan_relay(shape, device, plan.relay)) {
    plan.kernel = Kernel::kRelay;
  } else {
    plan.kernel = across ? plan_across(shape, device, wanted != nullptr, open, plan) : Kernel::kTwoPass;
    const bool slab = plan.kernel == Kernel::kSlab;
    // Runs are held against the strided kernel that a slab of folds took the place of.
    const bool folded = slab && shape.lattice.is_folded_slab();
    const StridedPlan* const strided = plan.kernel == Kernel::kStrided || folded ? &plan.strided : nullptr;
    const bool held = strided != nullptr || slab;
    // Packs of columns that come round are the faster ones (gradients of 5987 x 17 x 2 x 126 float16 over all dims but
    // the third 0.53, in runs 0.42; 73 x 185 x 4 x 68 bfloat16 0.62, 0.47; gradients of 76 x 565 x 4 x 117 float32
    // 0.57, 0.49), and what is relayed out of the cache (71 x 49 x 32 x 88 float32 0.87, 0.84).
    const bool relayed = plan.kernel == Kernel::kStridedRelay;
    const bool stays = relayed && (plan.strided_relay.interleaved || is_held_by_many(shape, device, plan.strided));
    if (plan.kernel != Kernel::kColumnTile && (wanted != nullptr || !stays) && open(Kernel::kRuns) &&
        plan_runs(shape, device, plan.runs) &&
        (wanted != nullptr || is_better_in_runs(shape, device, plan.runs, held, strided))) {
      plan.kernel = Kernel::kRuns;
    } else if (plan.kernel == Kernel::kTwoPass) {
      plan.two_pass = plan_two_pass(shape, device);
    }
  }
  plan.stagger = stagger_of(plan, shape, device);
  return plan;
}

}  // namespace l1norm::cuda
