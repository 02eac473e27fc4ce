// Divisions of indices: by a number that the host knows, or by a power of two that it does not. Otherwise one takes
// some twenty instructions, each of which waits for the one before, while a block has nothing under way.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "../geometry.h"

namespace l1norm::cuda {

constexpr int bits_of(uint32_t n) {
  int bits = 0;
  for (; n != 0; n /= 2) ++bits;
  return bits;
}

// Of numbers below 2^31 by one from 1 to 2^31: a product with its reciprocal, rounded up to 32 bits (Granlund and
// Montgomery, "Division by invariant integers using multiplication", 1994).
class Divider {
 public:
  Divider() = default;
  constexpr explicit Divider(uint32_t by)
      : shift_(31 + bits_of(by - 1)), factor_(static_cast<uint32_t>(((uint64_t{1} << shift_) + by - 1) / by)) {}

  L1NORM_WALK constexpr uint32_t quotient(uint32_t n) const {
    return static_cast<uint32_t>((uint64_t{n} * factor_) >> shift_);
  }

 private:
  int shift_ = 0;
  uint32_t factor_ = 0;
};

constexpr bool divides(uint32_t by) {
  const uint32_t most = (1u << 31) - 1, last = most / by * by;
  for (const uint32_t n : {0u, 1u, by - 1, by, last - 1, last, most}) {
    if (n <= most && Divider(by).quotient(n) != n / by) return false;
  }
  return true;
}
static_assert(divides(1) && divides(2) && divides(3) && divides(7) && divides(33) && divides(641) && divides(65'535) &&
              divides((1u << 30) + 1) && divides((1u << 31) - 1) && divides(1u << 31));

#if defined(__CUDACC__)
// Of a power of two.
__device__ __forceinline__ int log2_of(int power) { return 31 - __clz(power); }
#endif

}  // namespace l1norm::cuda
