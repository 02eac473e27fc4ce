// The resident kernel's launch.
//
// Figures are fractions of a copy's speed, measured on an H200 over 1 GiB of input.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "shape.h"

namespace l1norm::cuda {

// The resident kernel: a cluster of blocks holds a row, a thread `packs` packs in registers and `shared_packs` in
// shared memory.
struct ResidentPlan {
  int threads;
  int packs;
  int cluster;
  int shared_packs;
};

// Threads of a block whose registers hold that many packs a thread, at the most.
constexpr int resident_threads(int packs) { return packs <= 8 ? 640 : packs <= 16 ? 512 : 384; }
template <int kPacks>
constexpr int kResidentThreads = resident_threads(kPacks);

// Packs a thread where shared memory holds the rest of the row.
constexpr int kPacksBesideShared = 20;

// How a thread keeps a row and its result's gradient: that many packs of each, in registers, or the row's in shared
// memory. Kernels have up to `threads` threads; registers of a multiprocessor do for `resident` of them.
struct Pair {
  int packs;
  bool shared;
  int threads;
  int resident;
};
constexpr int kFewPairPacks = 8;
constexpr int kPairPacks = 11;
constexpr int kPairPacksBesideShared = 16;
constexpr Pair pair_of(int packs, int64_t element_size) {
  if (packs == kFewPairPacks) return element_size == 8 ? Pair{packs, false, 512, 512} : Pair{packs, false, 640, 672};
  return {packs, packs == kPairPacksBesideShared, 512, 512};
}

// What launches that hold pairs lose of the speed of torch.add, of two reads and a write: fitted to 540 launches on an
// H200, of rows of 9001 to 262143 float32 or as many bytes. The launch that it chooses is 0.4% slower than the fastest
// one in the mean, and 6% at the most.
struct PairLoss {
  // Of a multiprocessor that holds fewer packs than `full`.
  struct Empty {
    double steep, full;
  };
  struct EmptyOf {
    Empty shared, registers;  // with shared memory and without
  };
  EmptyOf one;      // in one block a row, or two that have a multiprocessor each
  EmptyOf several;  // in clusters, several blocks a multiprocessor
  EmptyOf spread;   // in clusters of more than two, one block a multiprocessor
  double alone;     // one block a multiprocessor: nothing hides its arithmetic
  double cache;     // with shared memory, per 700 packs beyond 6500 or 7500: loads in flight need the L1 cache
  // A cluster's blocks wait for each other: two of them alone, more of them alone, two or more a multiprocessor.
  double wait_of_two, wait_spread, wait_two, wait_three;
  double gaps, gaps_spread;  // clusters that leave multiprocessors without work
  double uneven;             // of blocks alone, per share of warps that one more for each scheduler would add
  double relay;              // of rows that go through the L2 cache instead
};
constexpr PairLoss pair_losses(int64_t element_size) {
  PairLoss losses{};
  if (element_size == 2) {
    losses.one = {{0.69, 7415}, {0.69, 4820}};
    losses.several = {{0.69, 7415}, {0.69, 5520}};
    losses.spread = {{0.31, 11700}, {0.31, 8900}};
    losses.alone = 0.025;
    losses.wait_of_two = 0.023;
    losses.wait_spread = 0.033;
    losses.wait_two = 0.08;
    losses.wait_three = 0.052;
    losses.gaps = 0.018;
    losses.gaps_spread = 0.11;
    losses.uneven = 0.30;
    losses.relay = 0.30;
  } else if (element_size == 4) {
    losses.one = {{0.23, 7650}, {0.45, 4150}};
    losses.several = {{0.23, 7650}, {0.23, 5870}};
    losses.spread = {{0.22, 12700}, {0.22, 5630}};
    losses.cache = 0.08;
    losses.wait_of_two = 0.025;
    losses.wait_spread = 0.04;
    losses.wait_two = 0.05;
    losses.wait_three = 0.043;
    losses.gaps = 0.03;
    losses.gaps_spread = 0.06;
    losses.uneven = 0.36;
    losses.relay = 0.23;
  } else {
    losses.one = losses.several = {{0.56, 8500}, {0.56, 5000}};
    losses.spread = {{0.58, 7770}, {0.58, 5000}};
    losses.alone = 0.05;
    losses.cache = 0.03;
    losses.wait_spread = 0.155;
    losses.wait_two = 0.14;
    losses.wait_three = 0.13;
    losses.gaps = 0.073;
    losses.gaps_spread = 0.08;
    losses.uneven = 0.2;
    losses.relay = 0.365;
  }
  return losses;
}

inline double pair_loss(const Shape& shape, const Device& device, const Pair& pair, int threads, int cluster) {
  int blocks = std::min(pair.resident, device.threads_per_multiprocessor) / threads;
  if (pair.shared) {
    blocks = std::min(blocks, device.shared_bytes_per_multiprocessor / (threads * pair.packs * kPackBytes + 2048));
  }
  const double held = static_cast<double>(blocks * ceil_div(shape.packs(), cluster));
  const PairLoss losses = pair_losses(element_size(shape.dtype));
  const auto empty = [&](const PairLoss::EmptyOf& of) {
    const PairLoss::Empty& e = pair.shared ? of.shared : of.registers;
    return e.steep * std::max(0.0, 1.0 - held / e.full);
  };
  const double alone = blocks == 1 ? losses.alone : 0.0;
  if (cluster == 1 || (cluster == 2 && blocks == 1)) {
    const double cache = pair.shared ? losses.cache * std::max(0.0, (held - (blocks == 1 ? 6500 : 7500)) / 700) : 0.0;
    return alone + empty(losses.one) + cache + (cluster == 2 ? losses.wait_of_two : 0.0);
  }
  if (blocks == 1) {
    const bool gaps = cluster == 6 || cluster == 7;
    const double uneven = losses.uneven * (static_cast<double>(ceil_div(threads, 128) * 128) / threads - 1.0);
    return alone + empty(losses.spread) + losses.wait_spread + uneven + (gaps ? losses.gaps_spread : 0.0);
  }
  const bool gaps = cluster == 6 || cluster == 8;
  return empty(losses.several) + (blocks == 2 ? losses.wait_two : losses.wait_three) + (gaps ? losses.gaps : 0.0);
}

// A row and its result's gradient on chip.
inline bool plan_resident_pair(const Shape& shape, const Device& device, ResidentPlan& plan) {
  if (!shape.held || !shape.aligned) return false;
  const int64_t packs = std::max<int64_t>(shape.packs(), 1);
  // 0.98 to 1.0, and 0.93 to 1.0 for half types.
  if (packs <= 2048) {
    plan = {packs <= 1024 ? 128 : 256, kFewPairPacks, 1, 0};
    return shape.rows <= INT32_MAX;
  }
  const int64_t size = element_size(shape.dtype);
  // Few rows take as many blocks as there are multiprocessors for, while each has four warps.
  const int64_t spread = std::clamp<int64_t>(
      std::min(device.multiprocessors / std::max<int64_t>(shape.rows, 1), ceil_div(packs, kPairPacks * 128)), 1,
      device.max_cluster);
  double least =
      device.max_cluster == 1 || spread > 1 ? std::numeric_limits<double>::infinity() : pair_losses(size).relay;
  for (int cluster = static_cast<int>(spread); cluster <= device.max_cluster; ++cluster) {
    for (const int held : {kFewPairPacks, kPairPacks, kPairPacksBesideShared}) {
      // Doubles' arithmetic takes more registers than 11 packs of both rows leave, and a cluster repays more packs
      // than 8.
      if ((held == kPairPacks && size == 8) || (held == kFewPairPacks && cluster > 1)) continue;
      Pair pair = pair_of(held, size);
      if (device.max_cluster == 1) pair.threads = std::min(pair.threads, 512);
      const int64_t threads = ceil_div(packs, static_cast<int64_t>(held) * cluster * 32) * 32;
      const int64_t shared = pair.shared ? threads * held * kPackBytes : 0;
      if (threads > pair.threads || shared > device.shared_bytes - (4 << 10)) continue;
      // Clusters of blocks of fewer than four warps, which no launch that was measured had, are for few rows alone.
      const bool tiny = cluster > 2 && threads < 128;
      if (tiny && spread == 1) continue;
      const double loss = pair_loss(shape, device, pair, static_cast<int>(threads), cluster) + (tiny ? 0.05 : 0.0);
      if (loss < least) {
        least = loss;
        plan = {static_cast<int>(threads), held, cluster, pair.shared ? held : 0};
      }
    }
    if (spread > 1 && plan.threads > 0) break;
  }
  return plan.threads > 0 && shape.rows * plan.cluster <= INT32_MAX;
}

inline bool plan_resident(const Shape& shape, const Device& device, ResidentPlan& plan) {
  if (shape.backward) return plan_resident_pair(shape, device, plan);
  if (!shape.held) return false;
  const int64_t packs = std::max<int64_t>(shape.packs(), 1);
  // In registers alone, with `least` threads at the least.
  const auto in_registers = [&](int a_thread, int cluster, int64_t least = 32) {
    const int64_t threads = std::max(ceil_div(packs, static_cast<int64_t>(a_thread) * cluster * 32) * 32, least);
    plan = {static_cast<int>(threads), a_thread, cluster, 0};
    return threads <= resident_threads(a_thread);
  };
  const auto fits = [&] { return shape.rows * plan.cluster <= INT32_MAX; };
  if (is_few(shape, device)) {
    // How long a row takes is what counts: 8 packs a thread, or 4 in one block of 128 to 256, and a cluster's barriers
    // are repaid by a block's 2048 packs (16 x 16384 float32: 4.0 us in four blocks of 128, 4.3 in two of 256, 4.8 with
    // 16 packs in two of 128; 8 x 65536 bfloat16: 3.7 us in eight of 128, 5.0 with 16 packs). Blocks of more than that
    // are faster with 16 (32 x 65536 float32: 7.9 us in four of 256, 10.2 in four of 512 with 8).
    int spread = 1;
    while (packs > 2048 && spread < device.max_cluster && shape.rows * spread * 2 <= device.multiprocessors &&
           packs > spread * 1024) {
      spread *= 2;
    }
    const int64_t a_block = ceil_div(packs, spread);
    const int64_t least = spread == 1 ? std::clamp<int64_t>(ceil_div(packs, 4 * 32) * 32, 128, 256) : 32;
    if (a_block <= 2048 ? in_registers(8, spread, least) : in_registers(16, spread)) {
      return fits();
    }
  }
  // Elements of the half types take the longest: 8 packs a thread while that leaves room for several blocks.
  if (shape.is_half() && packs <= 1536) {
    in_registers(8, 1);
    return fits();
  }
  // A block of 16 packs a thread and of more than 256 threads has its multiprocessor for itself: below 352 threads too
  // much of that stays empty (0.91 at 320 threads, where two blocks with shared memory reach 0.97).
  const bool two_shared = shape.aligned && packs > 4096 && packs <= 5632;
  // A few threads more than hold the row, where that leaves several blocks (8191 float32: 0.973 with 160, 0.964 with
  // 128).
  const int64_t least = shape.is_half() || packs > 3584 ? 32 : ceil_div(packs, 14 * 32) * 32;
  if (!two_shared && in_registers(16, 1, least)) return fits();
  if (!shape.aligned) return false;  // the kernels below store whole packs only
  // Registers and shared memory together, the smallest cluster that holds the row: a row's blocks wait for each other,
  // which costs the less the more they hold (131071 float32: 0.95 in a cluster of 2, 0.89 in registers alone of 4). Of
  // three they leave every ninth multiprocessor without work (200003 float32: 0.91, and 0.95 in four).
  const int most = 32 * resident_threads(kPacksBesideShared) * kPackBytes;
  for (int cluster : {1, 2, 4, 8}) {
    if (cluster > device.max_cluster) return false;
    const int64_t a_block = ceil_div(packs, cluster);
    // Nearly all registers and no shared memory: two whole blocks of 8192 packs are better than one with much shared
    // memory (65535 float32: 0.97 and 0.94). Up to 7808 of float32, two on a multiprocessor with some are the better
    // ones (57501: 0.96, and 0.93 in registers alone; 64001: 0.963 and 0.965).
    if (cluster == 2 && a_block > 6912 && a_block <= 8192) {
      constexpr int kThreads = resident_threads(kPacksBesideShared) / 2;
      const int64_t shared = ceil_div(a_block, kThreads) - kPacksBesideShared;
      if (element_size(shape.dtype) == 4 && a_block <= 7808 &&
          2 * (shared * kThreads * kPackBytes + 2048) <= device.shared_bytes_per_multiprocessor) {
        plan = {kThreads, kPacksBesideShared, cluster, static_cast<int>(shared)};
      } else {
        in_registers(16, cluster);
      }
      return fits();
    }
    const int threads = two_shared ? resident_threads(kPacksBesideShared) / 2 : resident_threads(kPacksBesideShared);
    const int64_t shared = std::max<int64_t>(ceil_div(a_block, threads) - kPacksBesideShared, 1);
    const int64_t bytes = shared * threads * kPackBytes;
    // In one block up to 16 packs, past which a cluster of two blocks without any is better, where there is one; not of
    // half types (131071 bfloat16: 0.94 in one block, 0.92 in two).
    const int limit = cluster == 1 && device.max_cluster > 1 && packs <= 16384 && !shape.is_half()
                          ? std::min(most, 16 * 384 * 16)
                          : most;
    if (bytes <= std::min(limit, device.shared_bytes - (4 << 10))) {
      plan = {threads, kPacksBesideShared, cluster, static_cast<int>(shared)};
      return fits();
    }
  }
  return false;
}

}  // namespace l1norm::cuda
