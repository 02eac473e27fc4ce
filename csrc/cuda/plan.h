// Which launch a geometry gets on a device. Pure and host-only: tested without a GPU.
#pragma once

#include <algorithm>
#include <cstdint>

namespace l1norm::cuda {

struct Device {
  int multiprocessors;
  int threads_per_multiprocessor;
  int64_t l2_bytes;
};

// The two-pass kernel: one block a row at a time, resident blocks walk the rows.
struct TwoPassPlan {
  int threads;
  int blocks;
};

constexpr int kMaxThreads = 1024;
constexpr int kPackBytes = 16;

inline TwoPassPlan plan_two_pass(int64_t rows, int64_t length, int64_t element_size, const Device& device) {
  TwoPassPlan plan;
  // Four packs a thread repay the block's reduction; a warp is the least there is.
  const int64_t packs = (length * element_size + kPackBytes - 1) / kPackBytes;
  plan.threads = 32;
  while (plan.threads < kMaxThreads && plan.threads * 4 < packs) plan.threads *= 2;
  // Rows in flight take at most three quarters of the L2 cache, so that the second pass finds them there: on an H200
  // at 32768 x 65535 float32, one block a multiprocessor runs at 0.82 of a copy, a grid of all rows at 0.6.
  const int64_t resident = device.threads_per_multiprocessor / plan.threads;
  const int64_t row_bytes = std::max<int64_t>(length * element_size, 1);
  const int64_t cached = device.l2_bytes * 3 / 4 / row_bytes / device.multiprocessors;
  const int64_t per_multiprocessor = std::clamp<int64_t>(cached, 1, std::max<int64_t>(resident, 1));
  plan.blocks = static_cast<int>(std::min<int64_t>(rows, per_multiprocessor * device.multiprocessors));
  return plan;
}

}  // namespace l1norm::cuda
