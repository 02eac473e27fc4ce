// The pages of results.
#pragma once

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include <algorithm>
#include <cstdint>

#include "../call.h"

namespace l1norm::cpu {

inline int64_t output_bytes(const Call& c) {
  return c.geometry.rows.count * c.geometry.row.count * element_size(c.dtype);
}

// Maps a large new result's pages in one system call for many instead of a trap each, where the system can
// (Linux 5.14): they cost more than the arithmetic. What is written there already stays.
class Pages {
 public:
  explicit Pages(const Call& c)
      : mapped_(address(c.output)),
        end_(mapped_ + static_cast<uintptr_t>(output_bytes(c))),
        fresh_(c.fresh_output && output_bytes(c) >= kLargeBytes),
        bypass_(!c.fresh_output && output_bytes(c) >= kLargeBytes && c.output != c.input) {}

  // Whether results had better bypass the cache: none will keep them. Not so where their pages are new: then the system
  // has just written zeros there, through the cache.
  bool bypass() const { return bypass_; }
  bool fresh() const { return fresh_; }

  static constexpr int64_t kMostBytes = 8 << 20;  // that a tile prepares; pages of one that reaches farther come first

  // Called before [p, p + bytes) is written, for rising p.
  void prepare(const void* p, int64_t bytes) {
#if defined(__linux__)
    if (!fresh_) return;
    constexpr uintptr_t kPage = 4096, kAhead = 256 << 10;
    constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE, which older headers lack
    const uintptr_t begin = address(p), end = begin + static_cast<uintptr_t>(bytes);
    if (end <= mapped_) return;
    const uintptr_t first = (std::max(mapped_, begin) + kPage - 1) / kPage * kPage;
    const uintptr_t last = std::min(std::max(end, first + kAhead), end_) / kPage * kPage;
    if (first < last) madvise(reinterpret_cast<void*>(first), last - first, kPopulateWrite);
    mapped_ = std::max(last, end);
#else
    (void)p, (void)bytes;
#endif
  }

 private:
  static constexpr int64_t kLargeBytes = 32 << 20;

  static uintptr_t address(const void* p) { return reinterpret_cast<uintptr_t>(p); }

  uintptr_t mapped_;
  uintptr_t end_;
  bool fresh_;
  bool bypass_;
};

}  // namespace l1norm::cpu
