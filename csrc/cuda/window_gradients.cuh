// Gradients of windows of columns.
#pragma once

#include "gradient.cuh"
#include "windows.cuh"

namespace l1norm::cuda {
namespace column_ring_kernel {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

template <class W>
struct WindowGradients : Ring<W> {
  using Ring<W>::tables;

  // Two neighbours, and their results' gradients.
  struct Pair {
    float2 x, g;

    Pair() = default;
    __device__ __forceinline__ explicit Pair(const char* at)
        : x(*reinterpret_cast<const float2*>(at)), g(*reinterpret_cast<const float2*>(at + W::kBytes)) {}
  };

  static __device__ __forceinline__ uint32_t limit_of(int) { return 0; }

  // The slopes of the pair of columns of that index times 8.
  struct Words {
    double2 inverses, throughs;
  };
  __device__ __forceinline__ Words words_at(int index) const {
    return {this->template words_of<double2>(tables.results.inverses, index),
            this->template words_of<double2>(tables.results.throughs, index)};
  }

  static __device__ __forceinline__ bool make(const Pair& pair, const Words& of, uint32_t, float2& y) {
    y.x = slope(of.inverses.x, of.throughs.x).gradient(pair.g.x, pair.x.x);
    y.y = slope(of.inverses.y, of.throughs.y).gradient(pair.g.y, pair.x.y);
    return true;
  }

  static __device__ __forceinline__ void make_again(float*, int) {}

 private:
  static __device__ __forceinline__ Slope<float> slope(double inverse, double through) {
    return Slope<float>(Gradient{inverse, 0.0, through, 0.0, 0.0, false});
  }
};

#endif

}  // namespace column_ring_kernel
}  // namespace l1norm::cuda
