// Which kernel a geometry gets on a device, and how it is launched. Pure and host-only: tested without a GPU.
//
// Figures are fractions of a copy's speed, measured on an H200 over 1 GiB of input.
#pragma once

#include <algorithm>
#include <cstdint>

#include "plan_resident.h"
#include "plan_strided.h"
#include "plan_strided_relay.h"
#include "shape.h"

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

// The split kernel: `blocks_a_row` blocks hold a row as a resident kernel's block does, all rows at once.
struct SplitPlan {
  int threads;
  int packs;
  int shared_packs;
  int blocks_a_row;
};

// The relay kernel: `chunks` blocks and one sum a row, and as many divide it, from the `ahead`-th block on in turns.
struct RelayPlan {
  int chunks;
  int ahead;
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

// A chunk's threads and their packs: all registers of a multiprocessor.
constexpr int kRelayThreads = 512;
constexpr int relay_packs(bool backward) { return backward ? 8 : 16; }
template <bool kBackward>
constexpr int kRelayPacks = relay_packs(kBackward);
constexpr int64_t kRelayChunkBytes = int64_t{kRelayThreads} * relay_packs(false) * kPackBytes;  // of both operands

// Packs of each of a row's parts: whole lines.
constexpr int64_t split_slice(int64_t packs, int64_t parts) { return ceil_div(packs, parts * 8) * 8; }

// Rows so few that they do not fill the device: what counts is how long one takes, so that lanes share it.
inline bool is_small(const Shape& shape, const Device& device) {
  return shape.rows * 32 <= static_cast<int64_t>(device.multiprocessors) * kWarpKernelThreads;
}

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
  return shape.aligned && take(kPacksBesideShared, static_cast<int>((device.shared_bytes - kOtherShared) / kShared)) &&
         plan.shared_packs > 0;
}

// Rows in chunks. What comes between a chunk's sum and its division stays in the L2 cache: with more of it reads miss,
// with less blocks wait, and what is best on an H200 is three quarters of the chunks that run at a time and half of a
// row's (3 * 2^20 float32: 0.81, with whole rows 0.70; 2^20: 0.86, with a chunk in eight less 0.85, with one in four
// more 0.83). Of rows longer than two fifths of the cache only the end is still there (2^23 float32: 0.72, and 0.66
// from the front).
inline bool plan_relay(const Shape& shape, const Device& device, RelayPlan& plan) {
  if (!shape.held || shape.rows == 0 || (shape.backward && !shape.aligned)) return false;
  const int64_t chunks = std::max<int64_t>(ceil_div(shape.packs(), kRelayThreads * relay_packs(shape.backward)), 1);
  if (shape.rows > INT32_MAX / (2 * (chunks + 1))) return false;
  const int64_t row_bytes = shape.row_bytes() * (shape.backward ? 2 : 1);  // that are read
  const int64_t slots = chunks + 1, running = device.multiprocessors;
  const int64_t cached = device.l2_bytes / 3 / kRelayChunkBytes;
  const bool turns_back = row_bytes > device.l2_bytes * 2 / 5;
  const int64_t ahead = turns_back ? slots + running / 2 : std::min(running * 3 / 4 + slots / 2, cached);
  plan = {static_cast<int>(chunks), static_cast<int>(std::clamp(ahead, slots, shape.rows * slots)), turns_back};
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
