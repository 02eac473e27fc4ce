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
// asks for a batch's packs at once; told of none it takes fewer (131071 float32 0.874 of a copy's speed on an H100).
constexpr int kSignsBlocks = 2;

// What a block is to be. Blocks of half as many threads are more of a multiprocessor's, and out of step: 65535 bfloat16
// in one block 0.97 of a copy's speed on an H200, with all threads 0.87; of doubles 32767 0.94, 0.96.
struct SignsBlock {
  int most_threads;
  // Packs of a part, at most, in one block, in clusters of two and of four. An H100 takes more blocks, whose parts are
  // smaller, for the better, an H200 fewer: 131071 float64 in two blocks, and in eight, 0.95, 0.93 and 0.91, 0.79;
  // 65535 float32 in two, and in four, 0.97, 0.99 and 0.97, 0.98.
  int most_packs[3];
};

constexpr SignsBlock signs_block(int64_t element_size) {
  if (element_size == 4) return {256, {5120, 7168, 12288}};
  if (element_size == 8) return {512, {16384, 32768, 32768}};
  return {256, {12288, 16384, 16384}};
}

// Bytes of packs' signs in shared memory.
constexpr int64_t sign_bytes(int64_t packs, int64_t element_size) { return element_size == 2 ? 2 * packs : packs; }

// False where other kernels are faster. Rows are of neighbours, and their input and output lie alike in packs.
//
// Of a copy's speed on an H200, 1 GiB, and in brackets as kernels of rows have it that read a gradient: float32
// 4096 1.00 (1.01), 8191 0.99 (0.90), 32767 0.99 (0.78), 65535 0.98 (0.78), 131071 0.99 (0.90), 450001 0.96 (0.61);
// doubles 2048 1.00 (0.76), 32767 0.96 (0.68), 131071 0.91 (0.55); bfloat16 4096 0.92 (0.75), 32767 0.96 (0.78), 65535
// 0.97 (0.76), 262143 0.93 (0.81). On an H100 float32 8191 0.98 (1.00), 65535 0.99 (0.98), 131071 0.98 (0.99), 450001
// 0.96 (0.85), 1000001 0.94 (0.61); few rows, 100 x 131071 0.89 (0.89), 300 x 32767 0.92 (0.84), 20 x 3000001 0.79
// (0.33).
inline bool plan_signs(int64_t rows, int64_t length, int64_t element_size, const Device& device, SignsPlan& plan) {
  const int64_t least_bytes = element_size == 4 ? 20 << 10 : 8 << 10;
  if (length * element_size < least_bytes || length > INT32_MAX) return false;
  const int64_t packs = length * element_size / kPackBytes;
  const SignsBlock block = signs_block(element_size);
  int cluster = 1;
  for (int64_t most : block.most_packs) {
    if (2 * cluster > device.max_cluster || packs <= most * cluster) break;
    cluster *= 2;
  }
  const int64_t part = whole_lines(packs, cluster);
  constexpr int kOtherShared = 3 << 10;  // of a block
  const int64_t shared_bytes = sign_bytes(part, element_size) + kOtherShared;
  if (shared_bytes > device.shared_bytes) return false;

  const int least_blocks = cluster == 1 ? 2 : 1;  // a multiprocessor
  if (rows * cluster < int64_t{least_blocks} * device.multiprocessors || rows * cluster > INT32_MAX) return false;

  constexpr int kPacksAThread = 16;
  const int threads =
      static_cast<int>(std::clamp<int64_t>(ceil_div(part, kPacksAThread * 32) * 32, 64, block.most_threads));
  const int blocks = std::max(1, std::min(kSignsBlocks * kSignsThreads / threads,
                                          device.shared_bytes_per_multiprocessor / static_cast<int>(shared_bytes)));
  // 100 x 131071 float32 0.89 of a copy's speed, with a spread of 1 0.88, of 0 0.87; of 1 GiB up to 1% more likewise.
  constexpr double kSpread = 2.0;
  plan = {cluster, threads, static_cast<int>(part),
          plan_stagger(device, rows, cluster, blocks, static_cast<double>(length * element_size), kSpread)};
  return true;
}

}  // namespace l1norm::cuda
