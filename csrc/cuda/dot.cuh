// A thread's share of the dot product of a row and its result's gradient.
#pragma once

#include "accumulate.cuh"

namespace l1norm::cuda {

// Of bfloat16.
class CarefulDotTally : public CarefulSum {
 public:
  template <int kPacks, int N>
  __device__ __forceinline__ void add(const Pack<__nv_bfloat16, N>* g, const Pack<__nv_bfloat16, N>* x, double) {
    add_terms<kPacks>([](float of_g, float of_x) { return static_cast<double>(of_g) * static_cast<double>(of_x); }, g,
                      x);
  }

  template <int kPacks, int N>
  __device__ __forceinline__ void set(const Pack<__nv_bfloat16, N>* g, const Pack<__nv_bfloat16, N>* x, double scale) {
    add<kPacks>(g, x, scale);
  }
};

// Sums products of elements. Those of up to 16 pairs enter as one term, as in Tally; of floats each is exact in double,
// of halves in float.
template <typename T>
class DotTally {
 public:
  using Careful = std::conditional_t<std::is_same_v<T, __nv_bfloat16>, CarefulDotTally, DotTally>;

  template <int kPacks, int N>
  __device__ __forceinline__ void add(const Pack<T, N>* g, const Pack<T, N>* x, double scale) {
    if constexpr (sizeof(T) == 8) {
#pragma unroll
      for (int k = 0; k < kPacks * N; ++k) {
        const double v = x[k / N][k % N] * scale, w = g[k / N][k % N], product = w * v;
        accumulate(total_, product);
        total_.lo += fma(w, v, -product);
      }
    } else {
      accumulate(total_, products<kPacks>(g, x));
    }
  }

  // As the first ones.
  template <int kPacks, int N>
  __device__ __forceinline__ void set(const Pack<T, N>* g, const Pack<T, N>* x, double scale) {
    if constexpr (sizeof(T) == 8) {
      add<kPacks>(g, x, scale);
    } else {
      total_ = {products<kPacks>(g, x), 0.0};
    }
  }

  // Whether products of bfloat16 that a float has no room for, or no bits, do not count.
  template <typename Bound>
  __device__ __forceinline__ bool is_exact(const Bound&) const {
    const double size = fabs(total_.hi);
    return !std::is_same_v<T, __nv_bfloat16> || (size > 0x1p-100 && size < INFINITY);
  }

  // The same in fewer instructions, of elements that are all finite.
  __device__ __forceinline__ Sum finite_sum() const { return total_; }

  __device__ __forceinline__ Sum sum() const {
    return special_ == 0.0f ? total_ : Sum{static_cast<double>(special_), 0.0};
  }

 private:
  Sum total_;
  float special_ = 0.0f;  // NaN once an infinity or a NaN was among x

  template <int kPacks, int N>
  __device__ __forceinline__ double products(const Pack<T, N>* g, const Pack<T, N>* x) {
    return add_tree<kPacks>([&](int p) {
      double sum = 0.0;
#pragma unroll
      for (int k = 0; k < N; ++k) sum = add_product(sum, widen_at(g[p], k), widen_at(x[p], k));
      return sum;
    });
  }

  __device__ __forceinline__ double add_product(double sum, float g, float x) {
    if constexpr (sizeof(T) == 2) {
      return sum + static_cast<double>(g * x);
    } else {
      special_ = fmaf(x, 0.0f, special_);
      return fma(static_cast<double>(g), as_double(x), sum);
    }
  }

  // Of a finite x. Conversions take as long as four other instructions, so that of two operands one is placed bit by
  // bit where a double has exponent and fraction, and scaled: exact for subnormals too.
  static __device__ __forceinline__ double as_double(float x) {
    const int bits = __float_as_int(x);
    return __hiloint2double((bits >> 3) & 0x8fffffff, bits << 29) * 0x1p896;
  }
};

}  // namespace l1norm::cuda
