// What the plan knows of a GPU.
#pragma once

#include <cstdint>

namespace l1norm::cuda {

constexpr int kPackBytes = 16;
constexpr int kSectorBytes = 32;  // of memory, read and written as a whole
constexpr int kLineBytes = 128;   // where vector bodies start: packs' alignment alone cost 4% of a copy's speed (H200)
constexpr int kMaxCluster = 8;    // that every GPU with clusters takes
constexpr int kWidestCluster = 16;
constexpr int kReservedShared = 1 << 10;  // that the system takes of each block

struct Device {
  int multiprocessors;
  int threads_per_multiprocessor;
  int shared_bytes;                     // that a block may ask for
  int shared_bytes_per_multiprocessor;  // of all its blocks
  int64_t l2_bytes;
  int max_cluster;               // blocks that can share a row, 1 before compute capability 9.0
  int widest_cluster;            // the same where a multiprocessor has room for two of them; some GPUs take more then
  bool early_starts = false;     // a launch may start before its stream's earlier kernels have ended
  double bytes_per_cycle = 0.0;  // of a multiprocessor's clock, that memory reads at the best; 0 if launches are not
                                 // to start staggered
};

// An H200's memory reads 2424 bytes in a cycle, an H100's 1692, with which more kernels keep up.
constexpr bool is_memory_fast(const Device& device) { return device.bytes_per_cycle > 2000.0; }

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Clusters that have a multiprocessor a block, all at once: of four or eight blocks they leave a sixteenth of those of
// an H200 empty.
inline int64_t clusters_at_once(const Device& device, int cluster) {
  return device.multiprocessors * 15 / 16 / cluster;
}

// Packs of each of a row's parts, as few whole lines as hold all.
constexpr int64_t whole_lines(int64_t packs, int64_t parts) {
  constexpr int kLinePacks = kLineBytes / kPackBytes;
  return ceil_div(packs, parts * kLinePacks) * kLinePacks;
}

}  // namespace l1norm::cuda
