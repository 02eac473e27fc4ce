// A thread's share of a row and of its result's gradient, from their read to the write of the input's gradient.
#pragma once

#include "../gradient.h"
#include "dot.cuh"
#include "held.cuh"

namespace l1norm::cuda {

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

// sgn() of two neighbours, as such.
template <typename T>
__device__ __forceinline__ uint32_t signs_of(uint32_t x) {
  constexpr bool kHalf = std::is_same_v<T, __half>;
  std::conditional_t<kHalf, __half2, __nv_bfloat162> pair;
  memcpy(&pair, &x, sizeof pair);
  return ((x & 0x80008000u) | (kHalf ? 0x3c003c00u : 0x3f803f80u)) & __hneu2_mask(pair, decltype(pair){});
}

// Of two neighbours, by a row each.
template <typename T>
__device__ __forceinline__ uint32_t input_gradients(uint32_t g, uint32_t x, const FloatGradient& first,
                                                    const FloatGradient& second) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {  // of which such GPUs compare no pairs
    return narrow_pair<T>(input_gradient(widen_first<T>(g), widen_first<T>(x), first),
                          input_gradient(widen_second<T>(g), widen_second<T>(x), second));
  }
#endif
  const uint32_t signs = signs_of<T>(x);
  return narrow_pair<T>(gradient_by_sign(widen_first<T>(g), widen_first<T>(signs), first),
                        gradient_by_sign(widen_second<T>(g), widen_second<T>(signs), second));
}

template <typename T, int N>
__device__ __forceinline__ Pack<T, N> input_gradients(const Pack<T, N>& g, const Pack<T, N>& x,
                                                      const FloatGradient& d) {
  if constexpr (Pack<T, N>::kPairs) {
    Pack<T, N> result;
#pragma unroll
    for (int u = 0; u < N / 2; ++u) result.units[u] = input_gradients<T>(g.units[u], x.units[u], d, d);
    return result;
  } else {
    return make_pack<T, N>([&](int k) { return narrow<T>(input_gradient(widen_at(g, k), widen_at(x, k), d)); });
  }
}

// Calls write() with what input_gradients() takes for elements of T.
template <typename T, typename Write>
__device__ __forceinline__ void with_gradient(const Gradient& d, const Write& write) {
  if constexpr (sizeof(T) == 2) {
    FloatGradient floats;
    if (make_float_gradient(d, floats)) return write(floats);
  }
  write(d);
}

// What of a row's gradient its elements need, where rows lie side by side: with_gradient()'s choice is made once.
template <typename T>
struct Slope {
  double inverse, through;

  Slope() = default;
  __device__ __forceinline__ explicit Slope(const Gradient& d) : inverse(d.inverse), through(d.through) {}

  __device__ __forceinline__ T gradient(T g, T x) const {
    return narrow<T>(
        input_gradient(forgotten(widen(g)), widen(x), {inverse, 0.0, through, 0.0, 0.0, false}, 0.0 * fabs(through)));
  }
};
template <typename T>
struct HalfSlope {
  FloatGradient floats;  // their inverse is 0 where they have no room
  double inverse, through;

  HalfSlope() = default;
  __device__ __forceinline__ explicit HalfSlope(const Gradient& d) : inverse(d.inverse), through(d.through) {
    if (!make_float_gradient(d, floats)) floats.inverse = 0.0f;
  }
  __device__ __forceinline__ bool in_floats() const { return floats.inverse != 0.0f; }

  __device__ __forceinline__ T gradient(T g, T x) const {
    const float of_g = widen(g), of_x = widen(x);
    return narrow<T>(in_floats()
                         ? input_gradient(of_g, of_x, floats)
                         : input_gradient(of_g, of_x, {inverse, 0.0, through, 0.0, 0.0, false}, 0.0 * fabs(through)));
  }
};
template <>
struct Slope<__half> : HalfSlope<__half> {
  using HalfSlope::HalfSlope;
};
template <>
struct Slope<__nv_bfloat16> : HalfSlope<__nv_bfloat16> {
  using HalfSlope::HalfSlope;
};
template <>
struct Slope<double> {
  Gradient d;

  Slope() = default;
  __device__ __forceinline__ explicit Slope(const Gradient& d_) : d(d_) {}

  __device__ __forceinline__ double gradient(double g, double x) const { return l1norm::input_gradient(g, x, d); }
};

// Makes units of so many packs of x, which are of rows of their own, one element or a pair of halves, their gradients.
template <int kCount, typename T, int M, int N>
__device__ __forceinline__ void differentiate_beside(const Slope<T>* const (&slopes)[N], const Pack<T, M>* g,
                                                     Pack<T, M>* x, int unit) {
  using Few = Pack<T, N>;
  Few grads[kCount], values[kCount];
#pragma unroll
  for (int u = 0; u < kCount; ++u) {
    grads[u] = {{g[u].units[unit]}};
    values[u] = {{x[u].units[unit]}};
  }
  const auto one_by_one = [&](const Few& few_g, const Few& few_x) {
    return make_pack<T, N>([&](int k) { return slopes[k]->gradient(few_g[k], few_x[k]); });
  };
  if constexpr (sizeof(T) == 2) {
    const bool in_floats = slopes[0]->in_floats() && slopes[N - 1]->in_floats();
    const auto by_floats = [&](int u) {
      if constexpr (N == 2) {
        return Few{{input_gradients<T>(grads[u].units[0], values[u].units[0], slopes[0]->floats, slopes[1]->floats)}};
      } else {
        return input_gradients(grads[u], values[u], slopes[0]->floats);
      }
    };
    if (in_floats) {
#pragma unroll
      for (int u = 0; u < kCount; ++u) values[u] = by_floats(u);
    } else {
      // In a loop, as it is rare.
#pragma unroll 1
      for (int u = 0; u < kCount; ++u) {
        const Few results = one_by_one(select(grads, u), select(values, u));
#pragma unroll
        for (int i = 0; i < kCount; ++i) values[i] = i == u ? results : values[i];
      }
    }
  } else {
#pragma unroll
    for (int u = 0; u < kCount; ++u) values[u] = one_by_one(grads[u], values[u]);
  }
#pragma unroll
  for (int u = 0; u < kCount; ++u) x[u].units[unit] = values[u].units[0];
}

// A row's divisor and that divisor's gradient, or 0: what is read of a row besides its elements.
template <typename T>
struct RowDivisor {
  Wide<T> m, h;

  RowDivisor() = default;
  __device__ __forceinline__ RowDivisor(Wide<T> m_, Wide<T> h_) : m(m_), h(h_) {}
  // Of the row at `denominator`.
  __device__ __forceinline__ RowDivisor(const Call& c, int64_t denominator)
      : m(static_cast<const Wide<T>*>(c.denominator)[denominator]),
        h(c.grad_denominator == nullptr ? Wide<T>{} : static_cast<const Wide<T>*>(c.grad_denominator)[denominator]) {}

  __device__ __forceinline__ GradientScale scale(const Call& c) const {
    const double divisor = static_cast<double>(forgotten(m));
    return make_gradient_scale<Wide<T>>(divisor, 1.0 / divisor, c.count, c.eps, static_cast<double>(h));
  }
};

// make_plain_gradient() of a row whose divisor has been read. False where make_gradient() may differ.
template <typename T>
__device__ __forceinline__ bool make_read_gradient(const Sum& dot, Wide<T> m, const Call& c, Gradient& gradient) {
  if constexpr (sizeof(T) == 8) return false;
  const double divisor = static_cast<double>(forgotten(m));
  gradient = make_plain_gradient(dot, divisor, near_reciprocal(divisor), c.count, c.eps);
  const bool exact = (c.count.value <= 0x1p29) & !c.count.lone;  // times a divisor
  return exact & (c.grad_denominator == nullptr) & is_finite(gradient.through);
}
template <typename T>
__device__ __forceinline__ Gradient read_gradient(const Sum& dot, const RowDivisor<T>& divisor, const Call& c) {
  Gradient gradient;
  if (!make_read_gradient<T>(dot, divisor.m, c, gradient)) gradient = make_gradient<Wide<T>>(dot, divisor.scale(c));
  return gradient;
}

// dot_scale() of a row.
template <typename T>
__device__ __forceinline__ double dot_scale_of(const Call& c, int64_t denominator) {
  if constexpr (sizeof(T) == 8) {
    return dot_scale<double>(static_cast<const double*>(c.denominator)[denominator], c.count);
  } else {
    return 1.0;
  }
}

// A thread's packs of a row in registers.
template <typename P, int kPacks>
class InRegisters {
 public:
  __device__ __forceinline__ explicit InRegisters(uint4*) {}
  template <Access kAccess>
  __device__ __forceinline__ void load(int u, const P* from, bool there) {
    packs_[u] = load_pack<kAccess>(from, there);
  }
  __device__ __forceinline__ void set(int u, const P& pack) { packs_[u] = pack; }
  __device__ __forceinline__ void wait() const {}
  template <int kGroup>
  __device__ __forceinline__ void get(int u, P (&group)[kGroup]) const {
#pragma unroll
    for (int k = 0; k < kGroup; ++k) group[k] = packs_[u + k];
  }

 private:
  P packs_[kPacks];
};

// Or in shared memory, in places of its own.
template <typename P, int>
class InShared {
 public:
  InShared() = default;
  __device__ __forceinline__ explicit InShared(uint4* places) : mine_(reinterpret_cast<P*>(places) + threadIdx.x) {}
  __device__ __forceinline__ void set(int u, const P& pack) const { *place(u) = pack; }
  template <Access>
  __device__ __forceinline__ void load(int u, const P* from, bool there) const {
    if (there) {
      copy_async<kCopied<true>>(place(u), from);
    } else {
      set(u, P{});
    }
  }
  __device__ __forceinline__ void wait() const { wait_for_copies(); }
  template <int kGroup>
  __device__ __forceinline__ void get(int u, P (&group)[kGroup]) const {
#pragma unroll
    for (int k = 0; k < kGroup; ++k) group[k] = *place(u + k);
  }

 private:
  __device__ __forceinline__ P* place(int u) const { return mine_ + u * blockDim.x; }

  P* mine_;
};

// As Held, of two rows. kShared: those of x are in shared memory. kAlike: both and the output lie alike in packs, else
// packs are the output's.
template <typename T, int kPacks, int kEdge = 1, int kStep = 0, Access kAccess = Access::kOnce, bool kShared = false,
          bool kAlike = true>
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
  static_assert(kAlike || !kShared);

  T* y;
  double by;  // what the dot product is scaled by
  RowPack held_g[kPacks];
  std::conditional_t<kShared, InShared<RowPack, kPacks>, InRegisters<RowPack, kPacks>> held_x;
  Pack<T, 1> edge_g[2 * kEdge], edge_x[2 * kEdge];

  // As Held's.
  static __device__ __forceinline__ const T* packs_of(const Call& c, const Offsets& o) {
    return kAlike ? static_cast<const T*>(c.input) + o.input : static_cast<const T*>(c.output) + o.output;
  }

  template <typename Wait = NoWait>
  __device__ __forceinline__ HeldPair(const Call& c, const Offsets& o, int64_t begin, int length, int line, int first_,
                                      int step_, int head_index, int tail_index, int unit = 1, uint4* places = nullptr,
                                      const Wait& wait = {})
      : Base(kAlike ? static_cast<const T*>(c.input) + o.input + begin : static_cast<T*>(c.output) + o.output + begin,
             length, line, first_, step_, head_index, tail_index, unit, 0, wait),
        y(static_cast<T*>(c.output) + o.output + begin),
        held_x(places) {
    const T* x = static_cast<const T*>(c.input) + o.input + begin;
    const T* g = static_cast<const T*>(c.grad) + o.grad + begin;
    if constexpr (kAlike) {
      const RowPack* body_g = reinterpret_cast<const RowPack*>(g + head) + first;
      const RowPack* body_x = reinterpret_cast<const RowPack*>(x + head) + first;
#pragma unroll
      for (int u = 0; u < kPacks; ++u) {
        const bool there = this->has(u);
        held_x.template load<kAccess>(u, body_x, there);
        held_g[u] = load_pack<kAccess>(body_g, there);
        body_g = next(body_g);
        body_x = next(body_x);
      }
    } else {
      // Of halves that lie elsewhere, x more often, words are waited for: in a warp's kernel while g is on its way
      // (1400 bfloat16 run at 0.99, the other way round at 0.85), but blocks have too few registers for that (65535:
      // 0.84, the other way round 0.79).
      const auto load_g = [&] { load_from(g, [&](int u, const RowPack& pack) { held_g[u] = pack; }); };
      if constexpr (kStep > 0) load_g();
      load_from(x, [&](int u, const RowPack& pack) { held_x.set(u, pack); });
      if constexpr (kStep == 0) load_g();
    }
    this->load_edge(g, edge_g);
    this->load_edge(x, edge_x);
    by = dot_scale_of<T>(c, o.denominator);
  }

  __device__ __forceinline__ Sum sum(const Call&) const {
    held_x.wait();
    return dot_of<T>([&](auto& tally) {
      tally.template add<2 * kEdge>(edge_g, edge_x, by);
      constexpr int kGroup = kGroupOf<kPacks, kPack>;
#pragma unroll
      for (int u = 0; u < kPacks; u += kGroup) {
        if (this->ends(u)) break;
        RowPack x[kGroup];
        held_x.get(u, x);
        tally.template add<kGroup>(held_g + u, x, by);
      }
    });
  }

  // dot and scale: the row's.
  __device__ __forceinline__ void finish(const Sum& dot, const GradientScale& scale) const {
    with_gradient<T>(make_gradient<Wide<T>>(dot, scale), [&](const auto& d) {
#pragma unroll
      for (int e = 0; e < 2 * kEdge; ++e) {
        if (edge[e] >= 0) y[edge[e]] = input_gradients(edge_g[e], edge_x[e], d)[0];
      }
      RowPack* to = reinterpret_cast<RowPack*>(y + head) + first;
#pragma unroll
      for (int u = 0; u < kPacks; ++u) {
        if (!this->has(u)) break;
        RowPack x[1];
        held_x.get(u, x);
        store_pack<kAccess>(to, input_gradients(held_g[u], x[0], d));
        to = next(to);
      }
    });
  }

 private:
  // Calls set(u, pack) for the thread's packs of an operand, which lie in this row as the output's do, or not.
  template <typename Set>
  __device__ __forceinline__ void load_from(const T* row, const Set& set) const {
    const RowPack* from = reinterpret_cast<const RowPack*>(row + head) + first;
    const auto each = [&](const auto& load) {
#pragma unroll
      for (int u = 0; u < kPacks; ++u) {
        set(u, load(from, this->has(u)));
        from = next(from);
      }
    };
    if ((reinterpret_cast<uintptr_t>(row) ^ reinterpret_cast<uintptr_t>(y)) % kPackBytes == 0) {
      each([](const RowPack* at, bool there) { return load_pack<kAccess>(at, there); });
    } else {
      each([](const RowPack* at, bool there) {
        return load_anywhere<kAccess, kPack>(reinterpret_cast<const T*>(at), there);
      });
    }
  }
};

// What a thread keeps of a row in either direction.
template <typename T, bool kBackward, int kPacks, int kEdge, bool kAnyOutput, int kStep, Access kAccess = Access::kOnce,
          bool kAlike = true, int kStart = kPackBytes>
using RowOf = std::conditional_t<kBackward, HeldPair<T, kPacks, kEdge, kStep, kAccess, false, kAlike>,
                                 Held<T, kPacks, kEdge, kAnyOutput, kStep, kAccess, kStart>>;

}  // namespace l1norm::cuda
