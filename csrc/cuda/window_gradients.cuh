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
  using typename Ring<W>::Few;

  // What a lane holds of a step: neighbours, and their results' gradients.
  struct Held {
    Few x, g;

    Held() = default;
    __device__ __forceinline__ explicit Held(const char* at)
        : x(*reinterpret_cast<const Few*>(at)), g(*reinterpret_cast<const Few*>(at + W::kBytes)) {}
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

  __device__ __forceinline__ bool make(const Held& held, const Made& by, int, uint32_t, Few& y) const {
    y.units[0] = by.first.gradient(held.g[0], held.x[0]);
    y.units[1] = by.second.gradient(held.g[1], held.x[1]);
    return true;
  }

  static __device__ __forceinline__ void make_again(float*, int) {}
};

// Of halves, whose windows are whole.
template <class W>
struct WindowHalfGradients : HalfWindows<W> {
  using Ring<W>::tables;
  using typename Ring<W>::Element;
  using typename Ring<W>::Few;
  using Held = typename WindowGradients<W>::Held;

  using typename HalfWindows<W>::Words;
  struct Made {
    FloatGradient by[4];
    bool in_floats;  // as HalfSlope's, of all four

    __device__ __forceinline__ explicit Made(const Words& of)
        : by{{of.first.x, of.first.y},
             {of.first.z, of.first.w},
             {of.second.x, of.second.y},
             {of.second.z, of.second.w}},
          in_floats(by[0].inverse != 0.0f && by[1].inverse != 0.0f && by[2].inverse != 0.0f && by[3].inverse != 0.0f) {}
  };

  // index: that of the words.
  __device__ __forceinline__ bool make(const Held& held, const Made& made, int index, uint32_t, Few& y) const {
    if (made.in_floats) {
#pragma unroll
      for (int u = 0; u < 2; ++u) {
        y.units[u] = input_gradients<Element>(held.g.units[u], held.x.units[u], made.by[2 * u], made.by[2 * u + 1]);
      }
      return true;
    }
    // In a loop, as it is rare.
    const int column = index / 8;
#pragma unroll 1
    for (int k = 0; k < 4; ++k) {
      HalfSlope<Element> slope;
      const float2 floats = tables.results.floats[0][(column + k) & (W::kKnown - 1)];
      const double2 doubles = tables.results.doubles[(column + k) & (W::kKnown - 1)];
      slope.floats = {floats.x, floats.y};
      slope.inverse = doubles.x;
      slope.through = doubles.y;
      const Element gradient = slope.gradient(element_of(held.g, k)[0], element_of(held.x, k)[0]);
      unsigned short bits;
      memcpy(&bits, &gradient, sizeof bits);
      const uint32_t word = k % 2 == 0 ? bits : static_cast<uint32_t>(bits) << 16;
      y.units[0] = k < 2 ? (k == 0 ? word : y.units[0] | word) : y.units[0];
      y.units[1] = k < 2 ? 0 : y.units[1] | word;
    }
    return true;
  }

  static __device__ __forceinline__ void make_again(Element*, int) {}
};

#endif

}  // namespace column_ring_kernel
}  // namespace l1norm::cuda
