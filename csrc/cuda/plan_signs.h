// The launch of the kernel that knows gradients of one number. Pure and host-only, as the rest of the plan.
#pragma once

#include <algorithm>
#include <cstdint>

#include "device.h"
#include "plan_stagger.h"

namespace l1norm::cuda {

// The kernel of signs: a cluster of blocks reads a row once and keeps no more of it than two bits an element.
struct SignsPlan {
  int cluster;
  int threads;
  int packs;  // of a block's part of the row, whole lines; the last block's may have fewer
  Stagger stagger;
};

constexpr int kSignsThreads = 512;
// Blocks of so many threads that a multiprocessor has room for. Told of two the compiler takes all their registers and
// asks for a batch's packs at once; told of none it takes fewer: (131071 float32 0.874 of a copy's speed on an H100).
constexpr int kSignsBlocks = 2;

// Packs of a block's part, at most, if a cluster may be as large as that takes. Of 1 GiB on an H100, of 8192 packs and
// of half as many: 65535 float32 0.988 and 1.003, float64 0.991 and 0.949, 262143 bfloat16 0.993 and 0.928.
constexpr int signs_part(int64_t element_size) { return element_size == 4 ? 6144 : 8192; }

// Bytes of packs' signs in shared memory.
constexpr int64_t sign_bytes(int64_t packs, int64_t element_size) { return element_size == 2 ? 2 * packs : packs; }

// False where other kernels are faster. Rows are of neighbours, and their input and output lie alike in packs.
//
// Of a copy's speed on an H100, 1 GiB, and in brackets as kernels of rows have it that read a gradient: float32 16384
// 1.00 (1.01), 32767 0.98 (0.95), 65535 1.00 (0.98), 131071 1.00 (1.00), 262143 1.00 (0.91), 450001 0.98 (0.83),
// 1000001 0.95 (0.61); doubles 1024 1.00 (0.96), 65535 0.99 (0.86), 131071 1.00 (0.74), 450001 0.95 (0.60); bfloat16
// 4096 1.00 (0.94), 8191 1.00 (1.01), 65535 0.98 (0.96), 450001 0.96 (0.72); few rows of float32, 100 x 131071 0.92
// (0.87), 128 x 262143 0.95 (0.84), 20 x 6000001 0.78 (0.42). On an H200, in clusters of one block, 8191 float32 0.96
// (0.90), 65535 0.92 (0.78), but 4096 0.97 (1.01).
inline bool plan_signs(int64_t rows, int64_t length, int64_t element_size, const Device& device, SignsPlan& plan) {
  const int64_t least_bytes = element_size == 4 ? 20 << 10 : 8 << 10;
  if (length * element_size < least_bytes || length > INT32_MAX) return false;
  const int64_t packs = length * element_size / kPackBytes;
  int cluster = 1;
  while (2 * cluster <= device.max_cluster && packs > int64_t{signs_part(element_size)} * cluster) cluster *= 2;
  constexpr int kLinePacks = kLineBytes / kPackBytes;
  const int64_t part = ceil_div(packs, cluster * kLinePacks) * kLinePacks;
  constexpr int kOtherShared = 3 << 10;  // of a block
  const int64_t shared_bytes = sign_bytes(part, element_size) + kOtherShared;
  if (shared_bytes > device.shared_bytes) return false;

  const int least_blocks = cluster == 1 ? 2 : 1;  // a multiprocessor
  if (rows * cluster < int64_t{least_blocks} * device.multiprocessors || rows * cluster > INT32_MAX) return false;

  constexpr int kPacksAThread = 8;
  const int threads = static_cast<int>(std::clamp<int64_t>(ceil_div(part, kPacksAThread * 32) * 32, 64, kSignsThreads));
  const int blocks = std::max(1, std::min(kSignsBlocks * kSignsThreads / threads,
                                          device.shared_bytes_per_multiprocessor / static_cast<int>(shared_bytes)));
  // 150 x 100001 float32 0.94 of a copy's speed, with a spread of 1 0.87; of 1 GiB up to 0.3% less than with that.
  constexpr double kSpread = 2.0;
  plan = {cluster, threads, static_cast<int>(part),
          plan_stagger(device, rows, cluster, blocks, static_cast<double>(length * element_size), kSpread)};
  return true;
}

}  // namespace l1norm::cuda
