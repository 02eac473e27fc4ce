// Whether small columns of packs are better summed and divided by turns than held. Pure and host-only, as the rest of
// the plan.
#pragma once

#include <cmath>

#include "plan_cost.h"

namespace l1norm::cuda {

// What the logarithm of the strided kernel's time over a narrow relay's is made of: fitted to 6700 shapes of 2 to 94 MB
// on an H200 with nothing in the cache, of halves, float32 and float64, and their gradients. Taking the
// faster one by it, shapes are 1.4 to 2.0% slower in the mean than with the faster one, and 3.8 to 9.6% where all are
// held. What is relayed is 1.13 times as fast in the mean, up to 1.58 (28672 x 128 float32 over dim 0).
struct RelayGain {
  double always;
  double steps;        // a doubling of a column's
  double size, small;  // a doubling of the tensor; by one over the root of its MB
  double cluster;      // a doubling of the strided plan's
  double lanes;        // likewise
  double torn;         // where it has two tiles write a sector, of 32 bytes side by side, else less
  double idle;         // of the relay's lanes, where columns leave all of them
};
constexpr RelayGain kRelayGains[] = {
    {0.475, 0.068, -0.066, -0.796, -0.03, 0.029, 0.068, -0.345},
    {0.487, 0.067, -0.062, -1.065, -0.028, 0.043, 0.052, -0.253},
    {0.732, 0.063, -0.094, -1.075, -0.035, 0.005, 0.148, -0.268},
    {1.069, 0.079, -0.163, -1.571, -0.001, -0.004, 0.02, -0.519},
    {0.876, 0.073, -0.133, -1.219, -0.016, 0.03, 0.017, -0.452},
    {1.177, 0.063, -0.183, -1.612, 0.019, 0.015, 0.082, -0.656},
};
constexpr double kLeastRelayGain = 0.04;

// relay: a narrow one; held: of columns that no thread has whole.
inline bool is_better_relayed(const LatticeShape& s, bool backward, const StridedRelayPlan& relay,
                              const StridedPlan& held) {
  const RelayGain& of = costs_of(kRelayGains, backward, s.element_size);
  const double steps = static_cast<double>(s.steps), units = static_cast<double>(s.units);
  const double mb = 1e-6 * kPackBytes * steps * units;
  const bool torn = s.is_torn() && !held.own_sectors;
  const double idle = 1.0 - units / (static_cast<double>(relay.tiles) * relay.lanes * relay.across);
  const double gain = of.always + of.steps * (std::log2(steps) - 12.0) + of.size * std::log2(mb) +
                      of.small / std::sqrt(mb) + of.cluster * std::log2(held.cluster) +
                      of.lanes * std::log2(held.lanes) +
                      (torn ? of.torn * kSectorBytes / (held.lanes * kPackBytes) : 0.0) + of.idle * idle;
  return gain > kLeastRelayGain;
}

}  // namespace l1norm::cuda
