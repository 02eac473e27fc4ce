// A thread's share of a row and of its result's gradient, from their read to the write of the input's gradient.
#pragma once

#include "../gradient.h"
#include "held.cuh"

namespace l1norm::cuda {

// Sums products of elements. Those of up to 16 pairs enter as one term, as in Tally; of floats each is exact in double.
template <typename T>
struct DotTally {
  Sum total;

  template <int kPacks, int N>
  __device__ __forceinline__ void add(const Pack<T, N>* g, const Pack<T, N>* x, double scale) {
    if constexpr (sizeof(T) == 8) {
#pragma unroll
      for (int k = 0; k < kPacks * N; ++k) {
        const double v = x[k / N][k % N] * scale, w = g[k / N][k % N], product = w * v;
        accumulate(total, product);
        total.lo += fma(w, v, -product);
      }
    } else {
      accumulate(total, add_tree<kPacks>([&](int p) {
                   double sum = add_product(0.0, g[p], x[p], 0);
#pragma unroll
                   for (int k = 1; k < N; ++k) sum = add_product(sum, g[p], x[p], k);
                   return sum;
                 }));
    }
  }

 private:
  template <int N>
  static __device__ __forceinline__ double add_product(double sum, const Pack<T, N>& g, const Pack<T, N>& x, int k) {
    // Of float16 it is a float: one conversion, which takes as long as four additions, in place of two.
    if constexpr (std::is_same_v<T, __half>) return sum + static_cast<double>(widen_at(g, k) * widen_at(x, k));
    return fma(static_cast<double>(widen_at(g, k)), static_cast<double>(widen_at(x, k)), sum);
  }
};

// x, of which the compiler knows no more: else it would keep the doubles of a dot product for what follows it, in twice
// the registers.
__device__ __forceinline__ float forgotten(float x) {
  asm volatile("" : "+f"(x));
  return x;
}
__device__ __forceinline__ double forgotten(double x) { return x; }

// input_gradient() in fewer instructions; zero is 0 * |through|.
__device__ __forceinline__ float input_gradient(float g, float x, const Gradient& d, double zero) {
  const uint32_t sign = __float_as_uint(x) & (1u << 31);
  const double through =
      __hiloint2double(__double2hiint(d.through) ^ static_cast<int>(sign), __double2loint(d.through));
  return static_cast<float>(static_cast<double>(g) * d.inverse - (x != 0.0f ? through : zero));
}
__device__ __forceinline__ double input_gradient(double g, double x, const Gradient& d, double) {
  return l1norm::input_gradient(g, x, d);
}

// The gradients of the elements of x, whose results have those of g.
template <typename T, int N>
__device__ __forceinline__ Pack<T, N> input_gradients(const Pack<T, N>& g, const Pack<T, N>& x, const Gradient& d) {
  const double zero = 0.0 * fabs(d.through);
  return make_pack<T, N>(
      [&](int k) { return narrow<T>(input_gradient(forgotten(widen_at(g, k)), widen_at(x, k), d, zero)); });
}

// Of the row at `denominator`.
template <typename T>
__device__ __forceinline__ GradientScale load_gradient_scale(const Call& c, int64_t denominator) {
  using Value = Wide<T>;
  const Value* h = static_cast<const Value*>(c.grad_denominator);
  return make_gradient_scale<Value>(static_cast<double>(static_cast<const Value*>(c.denominator)[denominator]), c.count,
                                    c.eps, h == nullptr ? 0.0 : static_cast<double>(h[denominator]));
}

// dot_scale() of that row.
template <typename T>
__device__ __forceinline__ double dot_scale_of(const Call& c, int64_t denominator) {
  if constexpr (sizeof(T) == 8) {
    return dot_scale<double>(static_cast<const double*>(c.denominator)[denominator], c.count);
  } else {
    return 1.0;
  }
}

// As Held, of two rows that lie alike in packs, and so does the output.
template <typename T, int kPacks, int kEdge = 1, int kStep = 0, Access kAccess = Access::kOnce>
struct HeldPair : Share<T, kEdge, kStep> {
  using Base = Share<T, kEdge, kStep>;
  using Base::edge;
  using Base::first;
  using Base::head;
  using Base::kPack;
  using Base::next;
  using Base::packs;
  using Base::step;
  using Element = T;
  using RowPack = Pack<T, kPack>;
  static constexpr int kHeld = kPacks;

  T* y;
  double by;  // what the dot product is scaled by
  RowPack held_g[kPacks], held_x[kPacks];
  Pack<T, 1> edge_g[2 * kEdge], edge_x[2 * kEdge];

  __device__ __forceinline__ HeldPair(const Call& c, const Offsets& o, int64_t begin, int length, int line, int first_,
                                      int step_, int head_index, int tail_index)
      : Base(static_cast<const T*>(c.input) + o.input + begin, length, line, first_, step_, head_index, tail_index),
        y(static_cast<T*>(c.output) + o.output + begin) {
    const T* x = static_cast<const T*>(c.input) + o.input + begin;
    const T* g = static_cast<const T*>(c.grad) + o.grad + begin;
    const RowPack* body_g = reinterpret_cast<const RowPack*>(g + head) + first;
    const RowPack* body_x = reinterpret_cast<const RowPack*>(x + head) + first;
#pragma unroll
    for (int u = 0; u < kPacks; ++u) {
      const bool there = u * step < packs - first;
      held_g[u] = load_pack<kAccess>(body_g, there);
      held_x[u] = load_pack<kAccess>(body_x, there);
      body_g = next(body_g);
      body_x = next(body_x);
    }
    this->load_edge(g, edge_g);
    this->load_edge(x, edge_x);
    by = dot_scale_of<T>(c, o.denominator);
  }

  __device__ __forceinline__ Sum sum(const Call&) const {
    DotTally<T> tally;
    tally.template add<2 * kEdge>(edge_g, edge_x, by);
    constexpr int kGroup = kGroupOf<kPacks, kPack>;
#pragma unroll
    for (int u = 0; u < kPacks; u += kGroup) {
      if (u * step >= packs) break;  // the same in all of a row's threads, or nearly
      tally.template add<kGroup>(held_g + u, held_x + u, by);
    }
    return tally.total;
  }

  // dot and scale: the row's.
  __device__ __forceinline__ void finish(const Sum& dot, const GradientScale& scale) const {
    const Gradient d = make_gradient<Wide<T>>(dot, scale);
#pragma unroll
    for (int e = 0; e < 2 * kEdge; ++e) {
      if (edge[e] >= 0) y[edge[e]] = input_gradients(edge_g[e], edge_x[e], d)[0];
    }
    RowPack* to = reinterpret_cast<RowPack*>(y + head) + first;
#pragma unroll
    for (int u = 0; u < kPacks; ++u) {
      if (u * step >= packs - first) break;
      store_pack<kAccess>(to, input_gradients(held_g[u], held_x[u], d));
      to = next(to);
    }
  }
};

// What a thread keeps of a row in either direction.
template <typename T, bool kBackward, int kPacks, int kEdge, bool kAnyOutput, int kStep, Access kAccess = Access::kOnce>
using RowOf = std::conditional_t<kBackward, HeldPair<T, kPacks, kEdge, kStep, kAccess>,
                                 Held<T, kPacks, kEdge, kAnyOutput, kStep, kAccess>>;

}  // namespace l1norm::cuda
