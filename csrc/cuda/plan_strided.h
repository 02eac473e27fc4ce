// The strided kernel's launch. Pure and host-only, as the rest of the plan.
#pragma once

#include <algorithm>
#include <initializer_list>

#include "lattice_shape.h"
#include "plan_shared_columns.h"
#include "plan_skewed.h"
#include "plan_small_columns.h"
#include "plan_strided_loss.h"

namespace l1norm::cuda {

// Of rows that take turns.
inline StridedPlan plan_of_turns(const LatticeShape& s, bool backward, int warps, int cluster) {
  return {32,   1,    static_cast<int>(s.inner), warps, loose_packs(backward, s.element_size), cluster, false, 0,
          true, false};
}

// Whether so many packs a thread of such a plan hold a run, wherever in a pack it begins.
inline bool holds_turns(const LatticeShape& s, const StridedPlan& plan, int packs) {
  const int64_t pack = kPackBytes / s.element_size, units = interleaved_units(s.inner, pack, plan.warps * 32);
  return units >= s.inner && s.steps <= INT32_MAX &&
         s.steps * s.inner + pack - 1 <= plan.cluster * units * pack * packs;
}

// So few columns that a block for some of them, or for a part of their steps, leaves no multiprocessor two: how long
// one takes is what counts. As many blocks as that allows, of two to four warps with eight packs a thread, or where
// steps are many as many as registers hold; clusters cost less than more of either (float32, whose packs
// plan_small_columns() spreads much alike, on an H100, nothing asked ahead: 512 x 512 over dim 0 4.79 us, 6.83 in 16
// blocks of 128 bytes by all steps; 4096 x 64 5.44, 8.37; 64 x 4096 4.37, 4.91; (8, 512, 7, 7) over dim 1 4.82, 5.94;
// gradients of 256 x 256 4.04, 6.39; 4096 x 32 5.22, 7.78).
inline bool plan_few_columns(const LatticeShape& s, bool backward, const Device& device, StridedPlan& plan) {
  if (s.along) return false;
  const auto find = [&](int64_t tiles, std::initializer_list<int> warps, const auto& takes) {
    for (int cluster = 1; cluster <= device.max_cluster && tiles * cluster <= device.multiprocessors; cluster *= 2) {
      for (const int w : warps) {
        if (takes(w, cluster) && strided_loss(s, backward, device, plan) < kImpossible) return true;
      }
    }
    return false;
  };
  if (s.interleaved && s.element_size == 4) {
    // Each thread hands in a sum a row: clusters come before more warps. Those of halves are slower than elements.
    const auto in_turns = [&](int warps, int most) {
      return find(s.units / s.inner, {warps}, [&](int w, int cluster) {
        plan = plan_of_turns(s, backward, w, cluster);
        return holds_turns(s, plan, most);
      });
    };
    if (backward) return in_turns(6, 8) || in_turns(8, 8) || in_turns(12, 8) || in_turns(16, 8);
    return in_turns(4, 13) || in_turns(6, 13) || in_turns(8, 13) || in_turns(12, 16) || in_turns(16, 16);
  }
  if (s.elements > 1) return false;
  int lanes = kSectorBytes / kPackBytes;
  while (lanes < 32 / s.columns && ceil_div(s.units, lanes) > device.multiprocessors) lanes *= 2;
  const int packs = strided_cells(backward, s.bytes(), s.element_size);
  const auto hold = [&](std::initializer_list<int> warps, int most) {
    return find(ceil_div(s.units, lanes), warps, [&](int w, int cluster) {
      plan = {lanes, 1, lanes, w, packs, cluster, false, 0, false, false};
      return s.steps <= int64_t{cluster} * w * (32 / lanes) * most && (most <= 8 || cluster > 1);
    });
  };
  if (hold({2, 3, 4}, 8)) return true;
  return backward ? hold({6, 8}, 8) : hold({2, 3, 4}, packs);
}

// Whether a tile that has a unit more, for which it writes no part of a sector, is the better one. Of steps by turns
// off a sector's start, a copy's speed on an H100: float32 of 700 x 255 packs 0.96 (0.69; two warps side by side 0.79),
// of 4096 x 125 0.87 (0.63), float64 of 1500 x 61 0.95 (0.67), float16 of 500 x 257 0.89 (0.62), but of 100 x 65 0.76
// (0.85): halves have no time for it in short tiles, nor gradients, which write less of what they read (of float64
// 0.61, 0.63; of halves 0.49, 0.58). Fewer lanes than kLeastOwners side by side read too much twice.
inline bool owns_sectors(const LatticeShape& s, bool backward) {
  return !backward && (s.element_size > 2 || s.steps >= 256);
}
constexpr int kLeastOwners = 4;

inline bool plan_strided(const LatticeShape& s, bool backward, const Device& device, StridedPlan& plan) {
  if (s.units == 0 || s.steps == 0) return false;
  const int64_t cells = ceil_div(s.steps, s.elements);
  if (plan_shared_columns(s, backward, device, plan)) return true;
  const int64_t few = s.elements > 1 ? longest_whole_column(backward) : few_steps(backward, s.element_size);
  if (!s.along && s.steps <= few) {
    const int held = s.steps <= 3     ? static_cast<int>(std::max<int64_t>(s.steps, s.elements > 1 ? 3 : 2))
                     : s.elements > 1 ? longest_whole_column(backward)
                                      : power_of_two_from(s.steps);
    plan = {32, 1, 32 * column_units(backward, held, s.bytes(), s.element_size), 1, held, 1, true, 0, false, false};
    return strided_grid(s, plan) <= INT32_MAX;
  }
  if (are_small_columns(s) && plan_small_columns(s, backward, device, plan)) return true;
  if (plan_few_columns(s, backward, device, plan)) return true;
  const int packs = strided_cells(backward, s.bytes(), s.element_size), batch = shared_batch(backward, s.element_size);
  const int fewer = fewer_strided_cells(backward, s.bytes(), s.element_size);
  double least = kImpossible;
  const auto consider_one = [&](const StridedPlan& candidate) {
    const double loss = strided_loss(s, backward, device, candidate, least);
    // Of equals, the first one: its cluster is the smallest.
    if (loss > least - 1e-9 || strided_grid(s, candidate) > INT32_MAX) return;
    least = loss;
    plan = candidate;
  };
  // Tiles that own whole sectors read what others write.
  const bool ownable = s.is_torn() && owns_sectors(s, backward) && !s.in_place && s.units <= INT32_MAX;
  const auto consider = [&](StridedPlan candidate) {
    consider_one(candidate);
    if (!ownable || candidate.width < kLeastOwners) return;
    candidate.own_sectors = true;
    --candidate.width;
    consider_one(candidate);
  };
  const auto of_packs = [&](int lanes, int across, int held) {
    for (int cluster = 1; cluster <= device.max_cluster && waiting(s, backward, cluster) < least; cluster *= 2) {
      const int64_t warps = ceil_div(ceil_div(cells, static_cast<int64_t>(held) * (32 / lanes)), cluster);
      if (warps * across * 32 > kStridedThreads || (cluster > 1 && warps < 2)) continue;
      consider({lanes, across, lanes * across, static_cast<int>(warps), held, cluster, false, 0, false, false});
    }
  };
  const auto in_registers = [&](int lanes, int across) {
    of_packs(lanes, across, packs);
    if (fewer > 0 && !s.along) of_packs(lanes, across, fewer);
  };
  // With so many packs in registers.
  const auto in_shared = [&](int lanes, int across, int registers) {
    // Sixteen blocks are for columns that few hold (16384 x 8192 float32, dim 0: 0.80, of eight 0.75; gradients of
    // 8192: 0.82 and 0.71). Where two warps lie side by side, or all are in registers, they were the slower ones.
    const int most = across == 1 ? device.widest_cluster : device.max_cluster;
    for (int cluster = 1; cluster <= most && waiting(s, backward, cluster) < least; cluster *= 2) {
      for (const int warps : {2, 3, 4, 5, 6, 7, 8, 16}) {
        if (warps * across < 3) continue;  // too few to have much under way
        const int64_t each = ceil_div(cells, static_cast<int64_t>(cluster) * warps * (32 / lanes));
        if (each <= registers || each > registers + kMostShared) continue;
        if (warps * across * 32 > strided_most_threads(registers)) continue;
        const int shared = static_cast<int>(ceil_div(each - registers, batch)) * batch;
        consider({lanes, across, lanes * across, warps, registers, cluster, false, shared, false, false});
      }
    }
  };
  const auto in_turns = [&] {
    for (int cluster = 1; cluster <= device.max_cluster && waiting(s, backward, cluster) < least; cluster *= 2) {
      for (const int warps : {2, 3, 4, 6, 8, 12, 16}) {
        const StridedPlan candidate = plan_of_turns(s, backward, warps, cluster);
        if (holds_turns(s, candidate, candidate.packs)) consider(candidate);
      }
    }
  };
  if (s.interleaved) in_turns();
  // Halves have more arithmetic than reads from shared memory leave time for, where small clusters hold them without
  // (bfloat16 on an H200, of a copy's speed: 384 steps 0.885, with shared memory 0.78; 700 steps 0.83 and 0.83, 1024
  // 0.91 and 0.92, 3000 0.75 and 0.83; gradients of 256 steps 0.92 and 0.87, of 384 0.82 and 0.85).
  const bool halves = s.element_size == 2, long_enough = s.steps >= (backward ? 300 : 800);
  const bool shareable = s.elements == 1 && (!halves || (long_enough && !s.along));
  if (s.along) {
    // Down to as few as leave lanes enough for all cells of a row that a warp holds.
    const int least_lanes = 32 / power_of_two_from(std::min<int64_t>(ceil_div(cells, packs), 32));
    const int most_lanes = s.lanes_beside_runs(), last = std::min(least_lanes, most_lanes);
    for (int lanes = s.has_short_runs() ? most_lanes : last; lanes >= last; lanes /= 2) {
      // Of shorter runs side by side sectors are read by several tiles (3398 x 1046 x 2 float32: 0.18).
      if (lanes < most_lanes && lanes * s.run * s.bytes() < 2 * kSectorBytes) break;
      in_registers(lanes, 1);
      if (shareable) in_shared(lanes, 1, packs);
    }
  } else {
    // Packs take as many lanes along the steps as they have columns. Where few units lie side by side, a warp that goes
    // over many of them has no line in any (2^16 x 100 x 3 float32: 0.55 with 16 lanes, 0.33 with 32).
    const int most = s.elements == 1 ? 32 / s.columns : s.inner <= 16 ? 16 : 32;
    const bool narrow = has_narrow_warps(s.element_size, s.elements > 1), far = narrow && s.is_far();
    const bool repay = far || s.elements > 1 || halves || s.is_torn();
    const bool two = narrow && s.inner >= 2 * most && repay;
    for (int across = two ? 2 : 1; across >= 1; --across) {
      if (shareable) {
        in_shared(most, across, packs);
        if (!backward && across == 1 && !halves) in_shared(most, across, 0);
      }
      // Halves have too much arithmetic for tiles so short.
      if (across == 1 || !halves) in_registers(most, across);
    }
    if (!far || least >= kImpossible) {
      if (shareable && !halves) in_shared(most / 2, 1, packs);
      for (int lanes = most / 2; lanes >= 2 && lanes * s.bytes() >= 32; lanes /= 2) in_registers(lanes, 1);
    }
  }
  if (is_skewable(s, backward)) {
    if (least < kImpossible) least = planned_loss(s, backward, device, plan);
    each_skewed_plan(s, backward, device, consider_one);
  }
  return least < kImpossible;
}

}  // namespace l1norm::cuda
