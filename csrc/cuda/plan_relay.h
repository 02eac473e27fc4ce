// The relay kernel's launch. Pure and host-only, as the rest of the plan.
#pragma once

#include <algorithm>
#include <cstdint>

#include "shape.h"

namespace l1norm::cuda {

// The relay kernel: `chunks` blocks and one sum a row, and as many divide it, from the `ahead`-th block on in turns.
struct RelayPlan {
  int chunks;
  int ahead;
  int kept;  // chunks at a row's end that the cache is asked to keep

  // Divides a row from its end.
  bool turns_back() const { return kept < chunks; }
};

// A chunk's threads and their packs: all registers of a multiprocessor.
constexpr int kRelayThreads = 512;
constexpr int relay_packs(bool backward) { return backward ? 8 : 16; }
template <bool kBackward>
constexpr int kRelayPacks = relay_packs(kBackward);
constexpr int64_t kRelayChunkBytes = int64_t{kRelayThreads} * relay_packs(false) * kPackBytes;  // of both operands

// Rows of so many chunks, of which that many run at a time. What comes between a chunk's sum and its division stays in
// the L2 cache: with more of it reads miss, with less blocks wait, and what is best on an H200 is three quarters of the
// chunks that run at a time and half of a row's (3 * 2^20 float32: 0.81, with whole rows 0.70; 2^20: 0.86, with a chunk
// in eight less 0.85, with one in four more 0.83). Of longer rows the cache keeps the end, a quarter of its bytes (2^23
// float32: 0.74, and 0.72 where it is asked for all of it; 6000001: 0.72, and 0.69 all of it and from the front). Rows
// of float64 are long from a third of the cache on (2400001: 0.74 as a short one, 0.71 as a long one; 3000001: 0.69,
// 0.695).
inline bool relay_of(const Shape& shape, const Device& device, int64_t chunks, int64_t chunk_bytes, int64_t running,
                     RelayPlan& plan) {
  if (shape.rows > INT32_MAX / (2 * (chunks + 1))) return false;
  const int64_t slots = chunks + 1, cached = device.l2_bytes / 3 / chunk_bytes;
  plan.chunks = static_cast<int>(chunks);
  const int64_t end = device.l2_bytes / 4 / chunk_bytes;
  const int64_t whole = element_size(shape.dtype) == 8 ? device.l2_bytes * 7 / 20 / chunk_bytes : end;
  plan.kept = static_cast<int>(chunks <= whole ? chunks : end);
  const int64_t ahead = plan.turns_back() ? slots + running / 2 : std::min(running * 3 / 4 + slots / 2, cached);
  plan.ahead = static_cast<int>(std::clamp(ahead, slots, shape.rows * slots));
  return true;
}

inline bool plan_relay(const Shape& shape, const Device& device, RelayPlan& plan) {
  if (!shape.held || shape.rows == 0 || (shape.backward && !shape.aligned)) return false;
  const int64_t chunks = std::max<int64_t>(ceil_div(shape.packs(), kRelayThreads * relay_packs(shape.backward)), 1);
  return relay_of(shape, device, chunks, kRelayChunkBytes, device.multiprocessors, plan);
}

}  // namespace l1norm::cuda
