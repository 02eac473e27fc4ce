// A thread's share of the sum of one of several columns.
#pragma once

#include "accumulate.cuh"

namespace l1norm::cuda {

// Of float16. A magnitude is widened, and placed by a multiplication, which makes both words at once: an instruction
// less than Placed. No finite sum reaches what an infinity or NaN reads as there, so that nothing else tells of them
// (512 x 1024 x 1024 over its middle on an H200, of a copy's speed: 0.86, with HalfTally 0.82; bfloat16 is slower by
// that multiplication, 0.89 and 0.92). In a double, as HalfTally's.
class HalfColumnTally {
 public:
  using Careful = Tally<__half>;

  HalfColumnTally() = default;
  __device__ __forceinline__ explicit HalfColumnTally(double placed) : placed_(placed) {}

  template <int kPacks>
  __device__ __forceinline__ void set(const Pack<__half, 1>* elements) {
    placed_ = add_tree<kPacks>([&](int k) { return place(elements[k]); });
  }

  template <int kPacks>
  __device__ __forceinline__ void add(const Pack<__half, 1>* elements) {
    placed_ += add_tree<kPacks>([&](int k) { return place(elements[k]); });
  }

  template <int kPacks>
  __device__ __forceinline__ void extend(const Pack<__half, 1>* elements) {
    add<kPacks>(elements);
  }

  // other(sum): that of another thread.
  template <typename Other>
  __device__ __forceinline__ void join(const Other& other) {
    placed_ += other(placed_);
  }

  __device__ __forceinline__ bool is_exact(const Least<__half>&) const { return upper_word(placed_) < kInfinity; }
  __device__ __forceinline__ Sum sum() const { return PlacedFloat::unscaled(Sum{placed_}); }
  // Before it is scaled.
  __device__ __forceinline__ double placed() const { return placed_; }

 private:
  static constexpr uint32_t kInfinity = 255u << 20;  // of a float's exponent

  double placed_ = 0.0;

  static __device__ __forceinline__ double place(const Pack<__half, 1>& element) {
    return PlacedFloat::multiplied(__float_as_uint(widen(__habs(element[0]))));
  }
};

template <typename T>
using ColumnTally = std::conditional_t<std::is_same_v<T, __half>, HalfColumnTally, Tally<T>>;

}  // namespace l1norm::cuda
