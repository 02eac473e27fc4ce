// Sums by tallies, and by others where those lose bits.
#pragma once

#include "accumulate.cuh"

namespace l1norm::cuda {

// Whether tallies have lost bits. add(seer): gives it what they were given.
template <typename First>
class Losses {
 public:
  template <typename Bound>
  __device__ __forceinline__ void note(const First& tally, const Bound& least) {
    exact_ &= tally.is_exact(least);
  }

  template <typename Add>
  __device__ __forceinline__ bool any(const Add&) const {
    return !exact_;
  }

 private:
  bool exact_ = true;
};

// One in the place of as many as are asked for.
template <typename Seer>
struct ForAll {
  Seer& seer;

  __device__ __forceinline__ Seer& operator[](int) const { return seer; }
};

// The sums of what `add` gives to the tallies that it is called with. It is called again, with others, where the first
// ones lose bits. least: of what they are given, once it has returned.
template <typename First, int N, typename Bound, typename Add>
__device__ __forceinline__ void sum_each(const Bound& least, const Add& add, Sum (&sums)[N]) {
  First tallies[N];
  add(tallies);
  Losses<First> losses;
#pragma unroll
  for (int k = 0; k < N; ++k) {
    losses.note(tallies[k], least);
    sums[k] = tallies[k].sum();
  }
  const auto show = [&](auto& seer) {
    ForAll<std::remove_reference_t<decltype(seer)>> all{seer};
    add(all);
  };
  if (!losses.any(show)) return;
  typename First::Careful careful[N];
  add(careful);
#pragma unroll
  for (int k = 0; k < N; ++k) sums[k] = careful[k].sum();
}

// The sum of one.
template <typename First, typename Bound, typename Add>
__device__ __forceinline__ Sum sum_of(const Bound& least, const Add& add) {
  Sum sums[1];
  sum_each<First>(least, [&](auto& tallies) { add(tallies[0]); }, sums);
  return sums[0];
}

}  // namespace l1norm::cuda
