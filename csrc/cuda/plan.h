// Which kernel a geometry gets on a device, and how it is launched. Pure and host-only: tested without a GPU.
//
// Figures are fractions of a copy's speed, measured on an H200 over 1 GiB of input.
#pragma once

#include <algorithm>
#include <cstdint>

#include "../dtype.h"
#include "device.h"
#include "plan_strided.h"
#include "plan_strided_relay.h"

namespace l1norm::cuda {

constexpr int kMaxThreads = 1024;
constexpr int kWarpKernelThreads = 128;
constexpr int kTileKernelThreads = 128;
constexpr int kMostTileBytes = 32 << 10;

enum class Kernel { kTile, kWarp, kResident, kSplit, kRelay, kStrided, kStridedRelay, kTwoPass };
constexpr int kKernels = 8;

constexpr const char* name(Kernel kernel) {
  constexpr const char* kNames[kKernels] = {"tile",  "warp",    "resident",      "split",
                                            "relay", "strided", "strided_relay", "two_pass"};
  return kNames[static_cast<int>(kernel)];
}

// The tile kernel: a warp takes that many rows at a time.
struct TilePlan {
  int rows;
};

// The warp kernel: `lanes` lanes hold a row, `packs` packs a lane.
struct WarpPlan {
  int lanes;
  int packs;
};

// The resident kernel: a cluster of blocks holds a row, a thread `packs` packs in registers and `shared_packs` in
// shared memory.
struct ResidentPlan {
  int threads;
  int packs;
  int cluster;
  int shared_packs;
};

// The split kernel: `blocks_a_row` blocks hold a row as a resident kernel's block does, all rows at once.
struct SplitPlan {
  int threads;
  int packs;
  int shared_packs;
  int blocks_a_row;
};

// The relay kernel: `chunks` blocks and one sum a row, and as many divide it, `lag` rows behind.
struct RelayPlan {
  int chunks;
  int lag;
  bool turns_back;  // divides a row from its end
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
  RelayPlan relay{};
  StridedPlan strided{};
  StridedRelayPlan strided_relay{};
  TwoPassPlan two_pass{};
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

// A chunk's threads and their packs: all registers of a multiprocessor.
constexpr int kRelayThreads = 512;
constexpr int relay_packs(bool backward) { return backward ? 8 : 16; }
template <bool kBackward>
constexpr int kRelayPacks = relay_packs(kBackward);

// What a geometry is to the plan.
struct Shape {
  int64_t rows;
  int64_t length;
  DType dtype;   // of the input
  bool held;     // may be kept as it is read: elements of a row are neighbours in memory, and no cast
  bool dense;    // rows follow each other without a gap
  bool aligned;  // packs of the input, of the output and of its gradient start at the same elements
  bool backward = false;
  LatticeShape lattice{};  // without a cast

  // Rows that only kernels take which go from element to element.
  bool is_loose() const { return !held || (backward && !aligned); }
  int64_t row_bytes() const { return length * element_size(dtype); }
  // The most whole packs that a row can have, wherever it starts.
  int64_t packs() const { return row_bytes() / kPackBytes; }
  bool is_half() const { return element_size(dtype) == 2; }
};

// Packs of each of a row's parts: whole lines.
constexpr int64_t split_slice(int64_t packs, int64_t parts) { return ceil_div(packs, parts * 8) * 8; }

// Rows so few that they do not fill the device: what counts is how long one takes, so that lanes share it.
inline bool is_small(const Shape& shape, const Device& device) {
  return shape.rows * 32 <= static_cast<int64_t>(device.multiprocessors) * kWarpKernelThreads;
}

// Rows so few that each can have a multiprocessor or more.
inline bool is_few(const Shape& shape, const Device& device) { return shape.rows <= device.multiprocessors; }

// Rows so short that whole packs of them are few, a thread a row: 0.97 to 1.0 for 1 to 127 float32, where lanes that
// share a row reach 0.05 to 0.9.
inline bool plan_tile(const Shape& shape, const Device& device, TilePlan& plan) {
  const int64_t row_bytes = shape.row_bytes();
  const int operands = shape.backward ? 2 : 1;
  if (!shape.held || !shape.dense || row_bytes == 0 || 32 * operands * row_bytes > kMostTileBytes) return false;
  // A few rows a lane where they are tiny, so that there is enough to copy at a time: 4 KB, and half that for float64,
  // whose rows take longest to sum.
  const int64_t wanted = element_size(shape.dtype) == 8 ? 2048 : 4096;
  plan.rows = 32 * static_cast<int>(std::max<int64_t>(wanted / (32 * row_bytes), 1));
  // Two rows a lane of 64 to 100 float32: 1 to 2% more, while two blocks have room.
  if (!shape.backward && shape.dtype == DType::kFloat && row_bytes >= 256 && row_bytes <= 400 &&
      2 * 64 * kTileKernelThreads / 32 * row_bytes + 2048 <= device.shared_bytes_per_multiprocessor) {
    plan.rows = 64;
  }
  const int64_t block_rows = static_cast<int64_t>(plan.rows) * (kTileKernelThreads / 32);
  // 1 KB for barriers and rounding.
  return block_rows * operands * row_bytes + 1024 <= device.shared_bytes &&
         ceil_div(shape.rows, block_rows) <= INT32_MAX;
}

// Rows that a warp or a part of one holds: as many packs a lane as there are registers for, so that what lanes do
// together costs little, but few for the half types, whose elements take the longest.
inline bool plan_warp(const Shape& shape, const Device& device, WarpPlan& plan) {
  constexpr struct {
    int packs, lanes, a_lane;
  } kHalf[] = {{32, 4, 8}, {64, 8, 8}, {128, 16, 8}, {192, 16, 16}, {256, 32, 8}, {512, 32, 16}},
    kOther[] = {{32, 8, 4}, {112, 8, 16}, {192, 16, 16}, {512, 32, 16}},
    kBackward[] = {{32, 8, 4}, {64, 16, 4}, {128, 32, 4}, {256, 32, 8}};
  if (!shape.held || (shape.backward && !shape.aligned)) return false;
  const auto find = [&](const auto& table) {
    for (const auto& entry : table) {
      if (shape.packs() <= entry.packs && (entry.lanes == 32 || !is_small(shape, device))) {
        plan = {entry.lanes, entry.a_lane};
        return ceil_div(shape.rows, kWarpKernelThreads / entry.lanes) <= INT32_MAX;
      }
    }
    return false;
  };
  return shape.backward ? find(kBackward) : shape.is_half() ? find(kHalf) : find(kOther);
}

// What a launch of blocks of that many threads loses of torch.add's speed, of two reads and a write: fitted to 500
// measured ones on an H200. How much of the rows a multiprocessor holds at a time counts most; shared memory beyond
// 120 KB takes what loads in flight need of the L1 cache; a cluster's blocks wait for each other, the less so the more
// of them share a multiprocessor; clusters of 6 and 7, one block a multiprocessor, leave some without work.
inline double pair_loss(const Shape& shape, const Device& device, const Pair& pair, int threads, int cluster) {
  int blocks = std::min(pair.resident, device.threads_per_multiprocessor) / threads;
  if (pair.shared) {
    blocks = std::min(blocks, device.shared_bytes_per_multiprocessor / (threads * pair.packs * kPackBytes + 2048));
  }
  const double held = static_cast<double>(blocks * ceil_div(shape.packs(), cluster));
  const auto below = [&](double wanted) { return std::max(0.0, 1.0 - held / wanted); };
  const auto beyond = [&](double most) {
    return pair.shared && !shape.is_half() ? 0.04 * std::max(0.0, (held - most) / 700) : 0.0;
  };
  // Half types have twice the arithmetic, which another block would hide.
  const double alone = blocks == 1 && shape.is_half() ? 0.08 : 0.0;
  if (blocks == 1 && cluster > 1) {
    const double waits = cluster == 2 ? 0.02 : cluster == 6 || cluster == 7 ? 0.15 : 0.03;
    const double steeper = pair.shared ? 0.5 * below(shape.is_half() ? 7400 : 6800) : 0.0;
    return alone + waits + 0.35 * below(pair.shared ? 8192 : 5632) + steeper + beyond(7500);
  }
  const double loss = alone + (pair.shared ? 0.25 * below(7000) : 0.35 * below(pair.packs == kPairPacks ? 5400 : 4000));
  if (cluster == 1) return loss + beyond(blocks == 1 ? 6500 : 7500);
  const double waits = blocks >= 3 ? 0.02 : pair.shared && !shape.is_half() ? 0.06 : 0.03;
  return loss + beyond(7500) + waits + (cluster == 6 || cluster == 8 ? 0.02 : 0.0) + (threads < 128 ? 0.02 : 0.0);
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
  // Rows that would lose more go through the L2 cache: 200003 float32 run at 0.77 there, at 0.72 in a cluster of 8.
  constexpr double kMost = 0.15;
  double least = device.max_cluster == 1 || spread > 1 ? 1.0 : kMost;
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
      const double loss = pair_loss(shape, device, pair, static_cast<int>(threads), cluster);
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
  // which costs the less the more they hold (131071 float32: 0.95 in a cluster of 2, 0.89 in registers alone of 4).
  const int most = 32 * resident_threads(kPacksBesideShared) * kPackBytes;
  for (int cluster : {1, 2, 3, 4, 8}) {
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

// Rows that the device holds all at once, each spread over its share of the multiprocessors.
inline bool plan_split(const Shape& shape, const Device& device, SplitPlan& plan) {
  if (!shape.held || shape.backward || shape.rows == 0 || shape.rows > device.multiprocessors) return false;
  const int64_t packs = std::max<int64_t>(shape.packs(), 1);
  // A row's blocks wait for each other: four packs a thread repay that.
  const auto take = [&](int a_thread, int most_shared) {
    const int threads = resident_threads(a_thread);
    const int64_t blocks = std::clamp<int64_t>(packs / (4 * threads), 1, device.multiprocessors / shape.rows);
    const int64_t each = ceil_div(split_slice(packs, blocks), threads);
    plan = {threads, a_thread, static_cast<int>(std::max<int64_t>(each - a_thread, 0)), static_cast<int>(blocks)};
    return plan.shared_packs <= most_shared;
  };
  if (take(16, 0)) return true;
  constexpr int64_t kShared = resident_threads(kPacksBesideShared) * kPackBytes;
  return shape.aligned && take(kPacksBesideShared, static_cast<int>((device.shared_bytes - (4 << 10)) / kShared)) &&
         plan.shared_packs > 0;
}

// Rows in chunks: what comes between a chunk's sum and its division takes two sevenths of the L2 cache, as far as rows
// are that short. With more of it reads miss, with less blocks wait (2^20 float32 on an H200: 0.77 at 8 MB, 0.86 at 16,
// 0.71 at 24). Of rows longer than two fifths only the end is still there (2^24 float32: 0.69, and 0.66 from the
// front).
inline bool plan_relay(const Shape& shape, const Device& device, RelayPlan& plan) {
  if (!shape.held || shape.rows == 0 || (shape.backward && !shape.aligned)) return false;
  const int64_t chunks = std::max<int64_t>(ceil_div(shape.packs(), kRelayThreads * relay_packs(shape.backward)), 1);
  if (shape.rows > INT32_MAX / (2 * (chunks + 1))) return false;
  const int64_t row_bytes = shape.row_bytes() * (shape.backward ? 2 : 1);  // that are read
  const int64_t rows = device.l2_bytes * 2 / 7 / std::max<int64_t>(row_bytes, 1);
  plan = {static_cast<int>(chunks), static_cast<int>(std::clamp<int64_t>(rows, 1, shape.rows)),
          row_bytes > device.l2_bytes * 2 / 5};
  return true;
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

// Up to how many bytes of a row the tile kernel is the better one, where the warp kernel can take it as well.
inline int64_t longest_tile_row(const Shape& shape) {
  if (shape.backward) return 300;
  switch (element_size(shape.dtype)) {
    case 2:
      return 350;
    case 4:
      return 508;
    default:
      return 480;
  }
}

// Rows that are long and so few that their clusters would leave most of the device idle: they are split.
inline bool is_lonely(const Shape& shape, const Device& device, const ResidentPlan& plan) {
  return shape.packs() > 16384 && shape.rows * plan.cluster * 4 <= device.multiprocessors;
}

// Whether kernels that go across rows are the better ones, element by element where a row and its result's gradient
// begin at different places of a pack: 0.88 of torch.add at 4097 float32, where the two-pass kernel has 0.67; 0.42 and
// 0.51 at 333; 0.43 and 0.58 at 65535 bfloat16, 0.47 and 0.34 at 450001.
inline bool goes_across(const Shape& shape) {
  if (!shape.is_loose()) return false;
  return !shape.held || (shape.is_half() ? shape.row_bytes() >= 512 << 10 : shape.length >= 1024);
}

// `wanted`, where it is not null and that kernel can take the shape, is what tests ask for.
inline Plan make_plan(const Shape& shape, const Device& device, const Kernel* wanted = nullptr) {
  Plan plan;
  const auto open = [&](Kernel kernel) { return wanted == nullptr || *wanted == kernel; };
  const bool across = wanted != nullptr || goes_across(shape);
  const bool tiles = wanted != nullptr || (shape.row_bytes() <= longest_tile_row(shape) && !is_small(shape, device));
  if (tiles && open(Kernel::kTile) && plan_tile(shape, device, plan.tile)) {
    plan.kernel = Kernel::kTile;
  } else if (open(Kernel::kWarp) && !(wanted == nullptr && shape.length > 512 && is_few(shape, device)) &&
             plan_warp(shape, device, plan.warp)) {
    plan.kernel = Kernel::kWarp;
  } else if (const bool split = open(Kernel::kSplit) && plan_split(shape, device, plan.split);
             open(Kernel::kResident) && plan_resident(shape, device, plan.resident) &&
             !(split && is_lonely(shape, device, plan.resident))) {
    plan.kernel = Kernel::kResident;
  } else if (split) {
    plan.kernel = Kernel::kSplit;
  } else if (open(Kernel::kRelay) && plan_relay(shape, device, plan.relay)) {
    plan.kernel = Kernel::kRelay;
  } else if (const bool relay = open(Kernel::kStridedRelay) && across &&
                                plan_strided_relay(shape.lattice, shape.backward, device, plan.strided_relay);
             open(Kernel::kStrided) && across && plan_strided(shape.lattice, shape.backward, device, plan.strided) &&
             !(relay && is_better_relayed(shape.lattice, shape.backward, device, plan.strided, plan.strided_relay))) {
    plan.kernel = Kernel::kStrided;
  } else if (relay) {
    plan.kernel = Kernel::kStridedRelay;
  } else {
    plan.kernel = Kernel::kTwoPass;
    plan.two_pass = plan_two_pass(shape, device);
  }
  return plan;
}

}  // namespace l1norm::cuda
