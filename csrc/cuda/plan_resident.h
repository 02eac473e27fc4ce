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
  bool alike = true;  // backward, rows and their results' gradients lie alike in packs
};

// Threads of a block whose registers hold that many packs a thread, at the most.
constexpr int resident_threads(int packs) { return packs <= 8 ? 640 : packs <= 16 ? 512 : 384; }
template <int kPacks>
constexpr int kResidentThreads = resident_threads(kPacks);

// Packs a thread where shared memory holds the rest of the row.
constexpr int kPacksBesideShared = 20;

// Threads, in whole warps, that have up to `each` of a row's packs.
constexpr int64_t threads_of(int64_t packs, int64_t each) { return ceil_div(packs, each * 32) * 32; }

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

// What a launch that holds rows on chip loses of the speed of a copy, or of torch.add, fitted to launches on an H200.
// What counts is that a multiprocessor holds enough, and several blocks: while one waits for its row's sum, others load
// and store.
struct HeldLoss {
  // Packs that a multiprocessor has to hold: of rows in registers alone, and where shared memory holds a part of each;
  // for each doubling of a cluster so many more, and more the fewer blocks there are; in blocks of two warps; and with
  // 8 packs a thread.
  double full[2], doubling[2], doubling_alone, two_warps, few_packs;
  double lack[2], more;  // for the part of those that are not there; for each 1000 beyond them, in registers
  double shared_at_all, shared_pack;               // where shared memory holds a part; for each such pack of a thread
  double alone, alone_of_two, alone_of_many, two;  // one block: of a row, of a cluster of two, of more; two blocks
};

// Forward to 1900 launches of rows of 36 KB to 1.8 MB, what it chooses is 0.1% slower than the fastest in the mean and
// 2% at the most; backward to 1240 of 33 KB to 1 MB, 0.1% and 4%. Of halves, floats and doubles.
// clang-format off
constexpr HeldLoss kHeldLoss[2][3] = {{
    {{6125, 6900}, {225, 1200}, 1675, 2025, -775, {0.45, 0.17}, 0.0094, 0.0095, 0.0015, 0.0148, 0.0114, 0.0479, 0.0002},
    {{5075, 6025}, {300, 200}, 1500, 1975, -450, {0.36, 0.42}, 0.0072, 0.0056, 0.001, 0.0105, 0.012, 0.0532, 0.001},
    {{4875, 5675}, {325, 550}, 900, 2200, -775, {0.44, 0.34}, 0.0015, 0.0046, 0.0016, 0.0075, 0.0054, 0.0328, 0.0014}
}, {
    {{4050, 5175}, {175, 375}, 1825, 0, 0, {0.12, 0.13}, 0, 0.0127, 0, 0.0343, 0.0303, 0.1771, 0.0019},
    {{2850, 4500}, {525, 850}, 500, 0, 250, {0.18, 0.1}, 0.0001, 0.0051, 0, 0.0079, 0.0261, 0.0933, 0.0042},
    {{4850, 7500}, {0, 225}, 725, 0, -175, {0.72, 0.54}, 0.0132, 0.02, 0, 0.04, 0.0516, 0.1292, 0.003}
}};
// clang-format on

constexpr const HeldLoss& held_loss_of(bool backward, DType dtype) {
  const int64_t size = element_size(dtype);
  return kHeldLoss[backward ? 1 : 0][size == 2 ? 0 : size == 4 ? 1 : 2];
}

// Threads that a multiprocessor has registers for.
constexpr int resident_at_once(bool backward, int64_t element_size, const ResidentPlan& plan) {
  if (!backward) return resident_threads(plan.packs);
  const int threads = pair_of(plan.packs, element_size).resident;
  return plan.alike ? threads : std::min(threads, 640);
}

// Blocks that a multiprocessor has room for.
inline int resident_blocks(bool backward, int64_t element_size, const Device& device, const ResidentPlan& plan) {
  const int threads = resident_at_once(backward, element_size, plan);
  const int blocks = std::min(threads, device.threads_per_multiprocessor) / plan.threads;
  if (plan.shared_packs == 0) return blocks;
  return std::min(blocks, device.shared_bytes_per_multiprocessor /
                              (plan.threads * plan.shared_packs * kPackBytes + 2 * kReservedShared));
}

inline double held_loss(bool backward, DType dtype, const Device& device, int64_t packs, const ResidentPlan& plan) {
  constexpr double kDoublings[kMaxCluster] = {0, 1, 1.585, 2, 2.322, 2.585, 2.807, 3};
  const double doublings = kDoublings[plan.cluster - 1];
  const HeldLoss& of = held_loss_of(backward, dtype);
  const int shared = plan.shared_packs > 0 ? 1 : 0;
  const int blocks = resident_blocks(backward, element_size(dtype), device, plan);
  double full = of.full[shared] + (of.doubling[shared] + of.doubling_alone / std::max(blocks, 1)) * doublings;
  if (plan.threads <= 64) full += of.two_warps;
  if (plan.packs == 8) full += of.few_packs;
  const double beyond = static_cast<double>(blocks * ceil_div(packs, plan.cluster)) - full;
  double loss = beyond < 0 ? -of.lack[shared] * beyond / full : shared > 0 ? 0.0 : of.more * beyond * 1e-3;
  if (shared > 0) loss += of.shared_at_all + of.shared_pack * plan.shared_packs;
  if (blocks <= 1) loss += plan.cluster == 1 ? of.alone : plan.cluster == 2 ? of.alone_of_two : of.alone_of_many;
  if (blocks == 2) loss += of.two;
  return loss;
}

// Shared memory of a block beside its packs: sums, and what the system takes.
constexpr int kOtherShared = 4 << 10;

// A row and its result's gradient on chip.
inline bool plan_resident_pair(const Shape& shape, const Device& device, ResidentPlan& plan) {
  if (!shape.held) return false;
  const bool alike = shape.aligned;
  const int64_t packs = std::max<int64_t>(shape.packs(), 1);
  const int64_t size = element_size(shape.dtype);
  // A warp, or two, a row: 0.98 to 1.0 (float64 0.82 to 0.98), where three warps a row have 0.73 to 0.97 (0.50 to
  // 0.96). Fewer rows end sooner in more threads: 3000 x 1500 float64 take 33 us in three warps, 37 in two.
  const int64_t most = size == 8 ? 1024 : size == 4 ? 448 : 480;
  if (alike && packs <= most && !is_few(shape, device, 64) && shape.rows <= INT32_MAX) {
    if (size == 4) {  // two warps with all in registers: 1500 float32 1.02, a warp and shared memory 1.0
      plan = {64, kPairPacks, 1, 0};
    } else {
      plan = {static_cast<int>(threads_of(packs, kPairPacksBesideShared)), kPairPacksBesideShared, 1,
              kPairPacksBesideShared};
    }
    return true;
  }
  // 0.98 to 1.0. Of two rows a multiprocessor with fewer packs a thread, up to six warps (160 x 3001 float32: 3.7 us in
  // 192 threads, 4.05 in 96; 160 x 2048: 3.3 in 128, 3.6 in 96; 160 x 4096: 4.35 in 128, 4.55 in 256).
  if (packs <= (size == 8 ? 1024 : 2048)) {
    const bool two_each = is_few(shape, device, 2) && !is_few(shape, device) && size == 4;
    const int64_t least = two_each && packs < 1024 ? std::clamp<int64_t>(threads_of(packs, 4), 96, 192) : 96;
    plan = {static_cast<int>(std::max(threads_of(packs, kFewPairPacks), least)), kFewPairPacks, 1, 0, alike};
    return shape.rows <= INT32_MAX;
  }
  // Few rows take as many blocks as there are multiprocessors for, while each has four warps.
  const int64_t spread = std::clamp<int64_t>(
      std::min(device.multiprocessors / std::max<int64_t>(shape.rows, 1), ceil_div(packs, kPairPacks * 128)), 1,
      device.max_cluster);
  double least = std::numeric_limits<double>::infinity();
  for (int cluster = static_cast<int>(spread); cluster <= device.max_cluster && shape.rows <= INT32_MAX / cluster;
       ++cluster) {
    for (const int held : {kFewPairPacks, kPairPacks, kPairPacksBesideShared}) {
      // Doubles' arithmetic takes more registers than 11 packs of both rows leave, and a cluster repays more packs
      // than 8.
      if (alike && ((held == kPairPacks && size == 8) || (held == kFewPairPacks && cluster > 1))) continue;
      // Rows that do not lie alike take 8 packs, of which a multiprocessor has registers for 20 warps, and no clusters
      // of 6 or 7 blocks (40001 to 65535 float32: 0.89 to 0.95, others 0.99).
      if (!alike && (held != kFewPairPacks || cluster == 6 || cluster == 7)) continue;
      Pair pair = pair_of(held, size);
      if (device.max_cluster == 1) pair.threads = std::min(pair.threads, 512);
      const int64_t threads = ceil_div(packs, static_cast<int64_t>(held) * cluster * 32) * 32;
      const int64_t shared = pair.shared ? threads * held * kPackBytes : 0;
      if (threads > pair.threads || shared > device.shared_bytes - kOtherShared) continue;
      // No launch that was measured had blocks of fewer than three warps: they are for few rows alone.
      if (threads < 96 && spread == 1) continue;
      const ResidentPlan candidate{static_cast<int>(threads), held, cluster, pair.shared ? held : 0, alike};
      const double loss = held_loss(true, shape.dtype, device, packs, candidate);
      if (loss < least) {
        least = loss;
        plan = candidate;
      }
    }
    if (spread > 1 && plan.threads > 0) break;
  }
  return plan.threads > 0;
}

// Rows of a block each, of which a multiprocessor has two to eight, and runs all at once: four packs a thread where
// threads have room, else eight (160 x 2048 float32: 2.85 us, a warp each 3.44; 160 x 4096: 3.65, in 96 threads 4.08;
// 400 x 4096: 5.96, 6.58; 1024 x 2048: 6.26, 6.60; 160 x 4096 bfloat16: 2.84, 3.51). Up to four in 192 threads as well,
// though those take two turns (400 x 6001: 7.2, 7.6). Halves of fewer packs are faster a warp each.
inline bool plan_at_once(const Shape& shape, const Device& device, ResidentPlan& plan) {
  if (!shape.held || shape.backward || is_few(shape, device) || !is_few(shape, device, 8)) return false;
  const int64_t packs = shape.packs(), rows = ceil_div(shape.rows, device.multiprocessors);
  const int64_t room = resident_threads(8) / rows, four = threads_of(packs, 4);
  const int64_t threads = four <= room ? four : threads_of(packs, 8);
  plan = {static_cast<int>(threads), 8, 1, 0};
  const int64_t least = shape.is_half() && rows > 2 ? 512 : 256;
  return packs >= least && packs <= 2048 && threads <= (rows <= 4 ? std::max<int64_t>(room, 192) : room);
}

// Rows of floats of a block each with eight packs a thread, where that leaves a multiprocessor enough: 4350 packs in
// all (of a copy without a hint to the cache, 3500: 1.036, with sixteen 1.009; 3001: 1.038, 1.034; 2500 have
// 3750: 1.003, 1.037), and of two warps only with nearly no room (2048: 1.038, in a warp each 1.034;
// 1500: 1.007, 1.03).
inline bool plan_eight_each(const Shape& shape, ResidentPlan& plan) {
  const int64_t packs = shape.packs(), threads = threads_of(packs, 8);
  plan = {static_cast<int>(threads), 8, 1, 0};
  return shape.held && !shape.backward && shape.dtype == DType::kFloat && packs > 480 &&
         resident_threads(8) / threads * packs >= 4350;
}

// Whether rows that warps could hold are faster in blocks.
inline bool is_better_in_blocks(const Shape& shape, const Device& device) {
  ResidentPlan plan{};
  return is_few(shape, device) ? shape.length > 512 : plan_at_once(shape, device, plan) || plan_eight_each(shape, plan);
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
    // How long a row takes is what counts: 8 packs a thread, and waits in a cluster are repaid by a block's 1024 packs
    // (1 x 8192 float32: 2.02 us in two blocks of 128, 2.38 in one of 256; 16 x 16384: 2.66 us in four of 128, 3.98 in
    // one of 512; 8 x 65536 bfloat16: 3.7 us in eight of 128, 5.0 with 16 packs). Of rows in one block up to 32 take
    // 128 threads (1 x 4096: 1.85 us, 1.91 with 256), more of them 4 packs a thread, up to 256 threads (64 x 4096:
    // 2.39 us, 2.43 with 128). Blocks of more than 2048 packs are faster with 16 a thread (32 x 65536 float32: 7.9 us
    // in four of 256, 10.2 in four of 512 with 8).
    int spread = 1;
    while (spread < device.max_cluster && shape.rows * spread * 2 <= device.multiprocessors && packs > spread * 1024) {
      spread *= 2;
    }
    const int64_t a_block = ceil_div(packs, spread);
    const int64_t most = shape.rows <= 32 ? 128 : 256;
    const int64_t least = spread == 1 ? std::clamp<int64_t>(threads_of(packs, 4), 128, most) : 32;
    if (a_block <= 2048 ? in_registers(8, spread, least) : in_registers(16, spread)) {
      return fits();
    }
  }
  if (plan_at_once(shape, device, plan)) return true;
  // Rows of a block, which leave room for others: a few threads more than hold them (8191 float32: 0.973 with 160,
  // 0.964 with 128; 12799 bfloat16 alike), but two warps of 16 packs a thread (7200 bfloat16: 0.984, with three 0.947),
  // four that are full or nearly (16384 bfloat16: 1.034, with five 1.021; 4096 x 8191 float32: 66.2 us, 67.5, but many
  // more rows 505 and 502), and 8 packs where those hold nearly as many as there are (8192 bfloat16: 0.992, with 16
  // 0.981).
  if (packs <= 2048) {
    if (plan_eight_each(shape, plan)) return fits();
    const bool half = shape.is_half(), single = shape.dtype == DType::kFloat;
    const bool four_warps = half ? packs > 1792 : single && packs > 1664 && is_few(shape, device, 64);
    const bool fewest = four_warps || (packs <= 1024 && (half || single));
    in_registers(half && packs > 960 && packs <= 1024 ? 8 : 16, 1, fewest ? 32 : threads_of(packs, half ? 14 : 13));
    return fits();
  }
  // Many rows that fill two multiprocessors each: 32768 x 65535 float32 run at 0.98, in eight blocks of 128 threads at
  // 0.97; 2048 at 0.96 and 0.97.
  const int64_t a_half = ceil_div(packs, 2);
  if (device.max_cluster > 1 && !shape.is_half() && a_half > 7900 && a_half <= 8192 &&
      shape.rows >= int64_t{32} * device.multiprocessors && in_registers(16, 2) && fits()) {
    return true;
  }
  double best = std::numeric_limits<double>::infinity();
  const auto consider = [&](const ResidentPlan& candidate) {
    const double loss = held_loss(false, shape.dtype, device, packs, candidate);
    if (loss >= best) return;
    best = loss;
    plan = candidate;
  };
  for (int cluster = 1; cluster <= device.max_cluster && shape.rows <= INT32_MAX / cluster; cluster *= 2) {
    for (const int held : {8, 16}) {
      const int64_t threads = ceil_div(packs, static_cast<int64_t>(held) * cluster * 32) * 32;
      if (threads < 64 || threads > resident_threads(held)) continue;
      consider({static_cast<int>(threads), held, cluster, 0});
    }
    if (!shape.aligned) continue;  // the kernels below store whole packs only
    for (const int threads : {128, 192, 384}) {
      const int64_t shared = ceil_div(ceil_div(packs, cluster), threads) - kPacksBesideShared;
      if (shared <= 0 || shared * threads * kPackBytes > device.shared_bytes - kOtherShared) continue;
      consider({threads, kPacksBesideShared, cluster, static_cast<int>(shared)});
    }
  }
  // Two blocks have registers for as many (24576 bfloat16: 1.039, with 192 threads 1.008; 12288 float32:
  // 1.039, 1.038, and 1024 of them 26.6 us, 27.8).
  if (plan.cluster == 1 && plan.packs == 16 && plan.threads > 160 && plan.threads < 256 &&
      element_size(shape.dtype) < 8) {
    plan.threads = 256;
  }
  return best < std::numeric_limits<double>::infinity();
}

}  // namespace l1norm::cuda
