// How far apart the first blocks of a launch begin. Pure and host-only.
//
// Blocks that hold all that they read load it, wait for its sum and store, and those that begin together go on in step:
// while they wait memory idles, for many rounds of blocks. So a group of blocks begins when those before it have read
// what is theirs: memory is as busy as it was, and loads of some meet stores of others from then on.
#pragma once

#include <algorithm>
#include <cstdint>

#include "../stagger.h"
#include "device.h"

namespace l1norm::cuda {

// Of `groups` of `cluster` blocks, of which a multiprocessor has room for `blocks`; a group reads so many bytes.
//
// spread: how far, of what rows in forward launches take. Where a multiprocessor has several blocks, of which some are
// ahead of others anyway, less is best; so too where there are few rounds. Measured in 90 shapes of 32 MB to 1 GiB
// each: of float32 on an H200, 128 x 262144 0.816 of a copy's speed, staggered 0.906; (64, 128, 128, 64) over dims (0,
// 2) 0.790, 0.828; gradients of 128 x 131072 float64 0.781, 0.912. On an H100 0.898, 0.949; 0.855, 0.865; 0.888, 0.962.
// Of 1 GiB up to 2%.
inline Stagger plan_stagger(const Device& device, int64_t groups, int cluster, int blocks, double bytes,
                            double spread) {
  const int at_once = blocks * device.multiprocessors / cluster;
  // What the cache may hold is there sooner.
  const bool is_cached = static_cast<double>(groups) * bytes <= 0.5 * static_cast<double>(device.l2_bytes);
  if (device.bytes_per_cycle <= 0.0 || at_once < 2 || is_cached) return {};
  const double rounds = static_cast<double>(groups) / at_once;
  const double part = std::min({1.5, 1.5 * spread, 2.0 * spread / blocks, spread * rounds / 4});
  return {static_cast<uint32_t>(at_once), static_cast<uint32_t>(bytes / device.bytes_per_cycle * part)};
}

}  // namespace l1norm::cuda
