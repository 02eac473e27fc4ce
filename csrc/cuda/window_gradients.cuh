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

  struct Made {
    Slope<float> first, second;

    __device__ __forceinline__ explicit Made(const Words& of)
        : first(Gradient{of.inverses.x, 0.0, of.throughs.x, 0.0, 0.0, false}),
          second(Gradient{of.inverses.y, 0.0, of.throughs.y, 0.0, 0.0, false}) {}
  };

  static __device__ __forceinline__ bool make(const Pair& pair, const Made& by, uint32_t, float2& y) {
    y.x = by.first.gradient(pair.g.x, pair.x.x);
    y.y = by.second.gradient(pair.g.y, pair.x.y);
    return true;
  }

  static __device__ __forceinline__ void make_again(float*, int) {}
};

#endif

}  // namespace column_ring_kernel
}  // namespace l1norm::cuda
