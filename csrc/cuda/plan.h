// Which kernel a geometry gets on a device, and how it is launched. Pure and host-only: tested without a GPU.
#pragma once

#include <algorithm>
#include <cstdint>

#include "../dtype.h"

namespace l1norm::cuda {

constexpr int kPackBytes = 16;
constexpr int kMaxThreads = 1024;
constexpr int kMaxCluster = 16;
constexpr int kWarpKernelThreads = 256;

struct Device {
  int multiprocessors;
  int threads_per_multiprocessor;
  int64_t l2_bytes;
  int max_cluster;  // blocks that can share a row, 1 before compute capability 9.0
};

enum class Kernel { kWarp, kResident, kTwoPass };

constexpr const char* name(Kernel kernel) {
  return kernel == Kernel::kWarp ? "warp" : kernel == Kernel::kResident ? "resident" : "two_pass";
}

// The warp kernel: `lanes` lanes hold a row, `elements` elements a lane.
struct WarpPlan {
  int lanes;
  int elements;
};

// The resident kernel: a cluster of blocks holds a row, `packs` packs a thread.
struct ResidentPlan {
  int threads;
  int packs;
  int cluster;
};

// The two-pass kernel: one block a row at a time, resident blocks walk the rows.
struct TwoPassPlan {
  int threads;
  int blocks;
};

struct Plan {
  Kernel kernel = Kernel::kTwoPass;
  WarpPlan warp{};
  ResidentPlan resident{};
  TwoPassPlan two_pass{};
};

// The most threads of a block whose registers hold that many packs a thread.
constexpr int resident_threads(int packs) { return packs <= 4 ? 1024 : packs <= 8 ? 768 : 512; }

template <int packs>
constexpr int kResidentThreads = resident_threads(packs);

// What a geometry is to the plan.
struct Shape {
  int64_t rows;
  int64_t length;
  DType dtype;  // of the input
  bool held;    // may be kept as it is read: elements of a row are neighbours in memory, and no cast
};

inline bool plan_warp(const Shape& shape, WarpPlan& plan) {
  // {elements a row has at most, lanes, elements a lane}, each from a sweep on an H200.
  constexpr struct {
    int length, lanes, elements;
  } kTable[] = {{4, 1, 4},    {8, 2, 4},    {16, 4, 4},    {32, 8, 4},    {64, 8, 8},
                {128, 16, 8}, {256, 32, 8}, {512, 32, 16}, {1024, 32, 32}};
  if (!shape.held) return false;
  for (const auto& entry : kTable) {
    if (shape.length <= entry.length) {
      plan = {entry.lanes, entry.elements};
      return true;
    }
  }
  return false;
}

inline bool plan_resident(const Shape& shape, const Device& device, ResidentPlan& plan) {
  if (!shape.held) return false;
  const int64_t packs = std::max<int64_t>(shape.length * element_size(shape.dtype) / kPackBytes, 1);
  // As many bytes in flight on a multiprocessor as its registers hold: from a sweep on an H200. Few packs a thread for
  // short rows, so that many blocks share a multiprocessor; up to 4096 packs two blocks of 16 a thread do, up to 6144
  // one block of 8 a thread; beyond, a block takes the whole register file.
  int packs_a_thread = packs <= 1024 ? 4 : packs <= 3072 ? 8 : packs <= 4096 ? 16 : packs <= 6144 ? 8 : 16;
  if (shape.dtype == DType::kBFloat16) {
    // More would spill; beyond 4096 packs, two passes are as fast as a cluster (0.66 of a copy on an H200).
    packs_a_thread = 4;
    if (packs > 4096) return false;
  }
  // The smallest cluster that holds the row: larger ones wait longer for each other.
  int cluster = 1;
  while (packs > static_cast<int64_t>(cluster) * packs_a_thread * resident_threads(packs_a_thread)) cluster *= 2;
  if (cluster > device.max_cluster || shape.rows * cluster > INT32_MAX) return false;
  const int64_t a_warp = static_cast<int64_t>(cluster) * packs_a_thread * 32;
  const int warps = static_cast<int>((packs + a_warp - 1) / a_warp);
  // A head of up to a line takes an element a thread: 64 threads for 2-byte elements.
  plan = {std::max(warps * 32, 64), packs_a_thread, cluster};
  return true;
}

inline TwoPassPlan plan_two_pass(const Shape& shape, const Device& device) {
  TwoPassPlan plan;
  // Four packs a thread repay the block's reduction; a warp is the least there is.
  const int64_t row_bytes = shape.length * element_size(shape.dtype);
  const int64_t packs = (row_bytes + kPackBytes - 1) / kPackBytes;
  plan.threads = 32;
  while (plan.threads < kMaxThreads && plan.threads * 4 < packs) plan.threads *= 2;
  // Rows in flight take at most three quarters of the L2 cache, so that the second pass finds them there: on an H200
  // at 32768 x 65535 float32, one block a multiprocessor runs at 0.82 of a copy, a grid of all rows at 0.6.
  const int64_t resident = device.threads_per_multiprocessor / plan.threads;
  const int64_t cached = device.l2_bytes * 3 / 4 / std::max<int64_t>(row_bytes, 1) / device.multiprocessors;
  const int64_t per_multiprocessor = std::clamp<int64_t>(cached, 1, std::max<int64_t>(resident, 1));
  plan.blocks = static_cast<int>(std::min<int64_t>(shape.rows, per_multiprocessor * device.multiprocessors));
  return plan;
}

// `wanted`, where it is not null and that kernel can take the shape, is what tests ask for.
inline Plan make_plan(const Shape& shape, const Device& device, const Kernel* wanted = nullptr) {
  Plan plan;
  const auto open = [&](Kernel kernel) { return wanted == nullptr || *wanted == kernel; };
  // A row that a warp holds needs no barrier: from 1024 elements on, blocks are as fast.
  if (open(Kernel::kWarp) && plan_warp(shape, plan.warp)) {
    plan.kernel = Kernel::kWarp;
  } else if (open(Kernel::kResident) && plan_resident(shape, device, plan.resident)) {
    plan.kernel = Kernel::kResident;
  } else {
    plan.kernel = Kernel::kTwoPass;
    plan.two_pass = plan_two_pass(shape, device);
  }
  return plan;
}

}  // namespace l1norm::cuda
