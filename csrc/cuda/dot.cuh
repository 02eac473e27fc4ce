// A thread's share of the dot product of a row and its result's gradient.
#pragma once

#include "losses.cuh"
#include "reduce.cuh"

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

  template <int kPacks, int N>
  __device__ __forceinline__ void extend(const Pack<__nv_bfloat16, N>* g, const Pack<__nv_bfloat16, N>* x,
                                         double scale) {
    add<kPacks>(g, x, scale);
  }
};

// Tells whether floats may lack bits of products of bfloat16, as those are too small.
class SmallProducts {
 public:
  template <int kPacks, int N>
  __device__ __forceinline__ void add(const Pack<__nv_bfloat16, N>* g, const Pack<__nv_bfloat16, N>* x, double) {
    note_each<kPacks>(least_g_, g);
    note_each<kPacks>(least_x_, x);
  }

  template <int kPacks, int N>
  __device__ __forceinline__ void set(const Pack<__nv_bfloat16, N>* g, const Pack<__nv_bfloat16, N>* x, double scale) {
    add<kPacks>(g, x, scale);
  }

  template <int kPacks, int N>
  __device__ __forceinline__ void extend(const Pack<__nv_bfloat16, N>* g, const Pack<__nv_bfloat16, N>* x,
                                         double scale) {
    add<kPacks>(g, x, scale);
  }

  // A product's last bit is 2^-(127 + 7) of both powers of two; a float's of 2^-149 or more.
  __device__ __forceinline__ bool any() const {
    return least_g_.exponent() + least_x_.exponent() < 2 * (127 + 7) - 149;
  }

 private:
  Least<__nv_bfloat16> least_g_, least_x_;
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

  // As more of set()'s term, of up to 16 pairs; of halves, whose products leave doubles 29 bits and more, of any
  // number.
  template <int kPacks, int N>
  __device__ __forceinline__ void extend(const Pack<T, N>* g, const Pack<T, N>* x, double scale) {
    if constexpr (sizeof(T) == 8) {
      add<kPacks>(g, x, scale);
    } else {
      total_.hi += products<kPacks>(g, x);
    }
  }

  // Whether no product of bfloat16 was too large for a float, and whether what too small ones lack does not count.
  __device__ __forceinline__ bool is_finite() const {
    return !std::is_same_v<T, __nv_bfloat16> || fabs(total_.hi) < INFINITY;
  }
  __device__ __forceinline__ bool is_large() const {
    return !std::is_same_v<T, __nv_bfloat16> || fabs(total_.hi) > 0x1p-100;
  }
  template <typename... Bound>
  __device__ __forceinline__ bool is_exact(const Bound&...) const {
    return is_large() && is_finite();
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

// Small sums of bfloat16 have lost nothing if their products have not, as where a gradient is zero, or what cancels.
template <>
class Losses<DotTally<__nv_bfloat16>> {
 public:
  template <typename Bound>
  __device__ __forceinline__ void note(const DotTally<__nv_bfloat16>& tally, const Bound&) {
    finite_ &= tally.is_finite();
    exact_ &= tally.is_exact();
  }

  template <typename Add>
  __device__ __forceinline__ bool any(const Add& add) const {
    if (exact_ || !finite_) return !finite_;
    SmallProducts products;
    add(products);
    return products.any();
  }

 private:
  bool finite_ = true, exact_ = true;
};

// The dot product of what `add` gives to the tally that it is called with; again, with others, where the first one has
// lost bits.
template <typename T, typename Add>
__device__ __forceinline__ Sum dot_of(const Add& add) {
  return sum_of<DotTally<T>>(Least<T>{}, add);
}

// A thread's dot product that others add theirs to. Of doubles both words count.
template <typename T>
class SharedDot {
 public:
  SharedDot() = default;
  __device__ __forceinline__ explicit SharedDot(const Sum& dot) : total_(as_total<Value>(dot)) {}

  // other(v): that of another thread.
  template <typename Other>
  __device__ __forceinline__ void join(const Other& other) {
    if constexpr (sizeof(T) == 8) {
      total_ = total_ + Sum{other(total_.hi), other(total_.lo)};
    } else {
      total_ += other(total_);
    }
  }

  __device__ __forceinline__ Sum sum() const { return Sum{total_}; }

 private:
  using Value = std::conditional_t<sizeof(T) == 8, Sum, double>;

  Value total_;
};

}  // namespace l1norm::cuda
