// The two-pass kernel, instantiated for each result type by two_pass.cu.
#pragma once

#include "../early.cuh"
#include "../gradient.cuh"
#include "../launch.h"
#include "../reduce.cuh"
#include "two_pass.h"

#include <algorithm>

namespace l1norm::cuda {
namespace two_pass_kernel {

// More would spill.
template <typename In, typename T>
constexpr int kTwoPassThreads = sizeof(T) == 8 || (sizeof(T) == 2 && !std::is_same_v<In, T>) ? 736 : kMaxThreads;

// A row's elements as neighbours in memory: a scalar head up to a line, packs, a scalar tail.
template <typename In, typename T>
struct UnitRow {
  static constexpr int kPack = kPackBytes / (sizeof(In) > sizeof(T) ? sizeof(In) : sizeof(T));
  // Packs that a thread has in flight; more would spill. The first pass's last batch stays in registers
  // for the second.
  static constexpr int kBatch = std::is_same_v<In, T> && sizeof(T) == 4 ? 3 : 2;
  using InPack = Pack<In, kPack>;
  using OutPack = Pack<T, kPack>;

  const In* x;
  T* y;
  const int64_t length;
  const int64_t head;
  const int64_t packs;
  InPack held[kBatch];
  int64_t held_first;  // the thread's first pack of the batch that is held

  __device__ __forceinline__ UnitRow(const In* x_, T* y_, const Walk& walk)
      : x(x_),
        y(y_),
        length(walk.count),
        head(min(static_cast<int64_t>(elements_to(x, kLineBytes)), length)),
        packs((length - head) / kPack) {}

  __device__ __forceinline__ Sum sum() {
    Least<T> least;
    return sum_of<LongTally<T>>(least, [&](auto& tally) { add(tally, least); });
  }

  template <typename Sums>
  __device__ __forceinline__ void add(Sums& tally, Least<T>& least) {
    each_outside_packs([&](int64_t i) {
      const Pack<T, 1> value{{read<T>(x[i])}};
      least.note(value);
      tally.template add<1>(&value);
    });
    const int64_t step = static_cast<int64_t>(blockDim.x) * kBatch;
    const int64_t last = packs > 0 ? (packs - 1) / step * step : 0;
    for (held_first = threadIdx.x;; held_first += step) {
#pragma unroll
      for (int u = 0; u < kBatch; ++u) {
        const int64_t i = held_first + u * static_cast<int64_t>(blockDim.x);
        held[u] = i < packs ? load_keeping(pack(i), true) : InPack{};
      }
#pragma unroll
      for (int u = 0; u < kBatch; ++u) {
        const OutPack values = cast(held[u]);
        least.note(values);
        tally.template add<1>(&values);
      }
      if (held_first >= last) return;
    }
  }

  __device__ __forceinline__ void divide(const Quotient<T>& quotient, const Sum& total, const Call& c) const {
    each_outside_packs([&](int64_t i) {
      const Pack<T, 1> value{{read<T>(x[i])}};
      Pack<T, 1> result;
      y[i] = quotient.divide(value, result) ? result[0] : exact_quotient(value[0], exact_divisor<T>(total, c));
    });
    if (reinterpret_cast<uintptr_t>(y + head) % sizeof(OutPack) == 0) {
      divide_packs<true>(quotient, total, c);
    } else {
      divide_packs<false>(quotient, total, c);
    }
  }

 private:
  template <typename Work>
  __device__ __forceinline__ void each_outside_packs(const Work& work) const {
    for (int64_t i = threadIdx.x; i < head; i += blockDim.x) work(i);
    for (int64_t i = head + packs * kPack + threadIdx.x; i < length; i += blockDim.x) work(i);
  }

  __device__ __forceinline__ const InPack* pack(int64_t i) const {
    return reinterpret_cast<const InPack*>(x + head + i * kPack);
  }

  __device__ __forceinline__ static OutPack cast(const InPack& pack) {
    if constexpr (std::is_same_v<In, T>) {
      return pack;
    } else {
      return make_pack<T, kPack>([&](int k) { return read<T>(pack[k]); });
    }
  }

  // False where a quotient is not proven; nothing is stored then.
  template <bool kAligned>
  __device__ __forceinline__ bool divide_pack(int64_t i, const InPack& in, const Quotient<T>& quotient) const {
    OutPack pack;
    if (!quotient.divide(cast(in), pack)) return false;
    T* to = y + head + i * kPack;
    if constexpr (kAligned) {
      store_streaming(reinterpret_cast<OutPack*>(to), pack);
    } else {
#pragma unroll
      for (int k = 0; k < kPack; ++k) to[k] = pack[k];
    }
    return true;
  }

  // Divides the packs of a batch that `unproven` names by their bits. They are read again, after the batch is done
  // with, so that this rare path takes no registers from the common one.
  __device__ __forceinline__ void divide_rest(int64_t first, unsigned unproven, const Quotient<T>& quotient,
                                              const Sum& total, const Call& c) const {
    if (unproven == 0) return;
    const Exactly<T> exactly(total, c);
    while (unproven != 0) {
      const int u = __ffs(static_cast<int>(unproven)) - 1;
      unproven &= unproven - 1;
      const int64_t at = head + (first + u * static_cast<int64_t>(blockDim.x)) * kPack;
#pragma unroll 1
      for (int k = 0; k < kPack; ++k) y[at + k] = divide_again(read<T>(x[at + k]), quotient, exactly);
    }
  }

  // What is held first, then backwards: what was read last is in the nearest cache. y may be x, so a load comes before
  // a store only of the thread's own packs.
  template <bool kAligned>
  __device__ __forceinline__ void divide_packs(const Quotient<T>& quotient, const Sum& total, const Call& c) const {
    unsigned unproven = 0;
#pragma unroll
    for (int u = 0; u < kBatch; ++u) {
      const int64_t i = held_first + u * static_cast<int64_t>(blockDim.x);
      if (i < packs && !divide_pack<kAligned>(i, held[u], quotient)) unproven |= 1u << u;
    }
    divide_rest(held_first, unproven, quotient, total, c);
    const int64_t step = static_cast<int64_t>(blockDim.x) * kBatch;
    for (int64_t first = held_first - step; first >= 0; first -= step) {
      InPack in_flight[kBatch];
#pragma unroll
      for (int u = 0; u < kBatch; ++u) {
        in_flight[u] = load_last(pack(first + u * static_cast<int64_t>(blockDim.x)), true);
      }
      unproven = 0;
#pragma unroll
      for (int u = 0; u < kBatch; ++u) {
        const int64_t i = first + u * static_cast<int64_t>(blockDim.x);
        if (!divide_pack<kAligned>(i, in_flight[u], quotient)) unproven |= 1u << u;
      }
      divide_rest(first, unproven, quotient, total, c);
    }
  }
};

// A row's elements wherever the walk puts them.
template <typename In, typename T>
struct StridedRow {
  const In* x;
  T* y;
  const Walk& walk;

  __device__ __forceinline__ StridedRow(const In* x_, T* y_, const Walk& walk_) : x(x_), y(y_), walk(walk_) {}

  __device__ __forceinline__ Sum sum() const {
    Least<T> least;
    return sum_of<LongTally<T>>(least, [&](auto& tally) {
      for (int64_t i = threadIdx.x; i < walk.count; i += blockDim.x) {
        const Pack<T, 1> value{{read<T>(x[walk.at(i).input])}};
        least.note(value);
        tally.template add<1>(&value);
      }
    });
  }

  __device__ __forceinline__ void divide(const Quotient<T>& quotient, const Sum& total, const Call& c) const {
    for (int64_t i = threadIdx.x; i < walk.count; i += blockDim.x) {
      const Offsets o = walk.at(i);
      const Pack<T, 1> value{{read<T>(x[o.input])}};
      Pack<T, 1> result;
      y[o.output] = quotient.divide(value, result) ? result[0] : exact_quotient(value[0], exact_divisor<T>(total, c));
    }
  }
};

template <typename T>
struct Shared {
  BlockSumStorage sums;
  Sum total;
  Quotient<T> quotient;
};

template <typename In, typename T, bool kUnitStride>
__global__ void __launch_bounds__(kTwoPassThreads<In, T>, 1) kernel(const __grid_constant__ Call c) {
  __shared__ Shared<T> shared;
  ask_ahead<false>(c);
  const Geometry& g = c.geometry;
  await_stream();
  for (int64_t r = blockIdx.x; r < g.rows.count; r += gridDim.x) {
    const Offsets o = g.rows.at(r);
    std::conditional_t<kUnitStride, UnitRow<In, T>, StridedRow<In, T>> row(static_cast<const In*>(c.input) + o.input,
                                                                           static_cast<T*>(c.output) + o.output, g.row);
    const Sum sum = block_sum(row.sum(), shared.sums);
    if (threadIdx.x == 0) {
      shared.total = sum;
      shared.quotient = Quotient<T>(sum, c.count, c.eps);
      if (c.denominator != nullptr) write_denominator<T>(c, o.denominator, sum);
    }
    // Orders this row's use of shared memory; the next row's divisor waits for the barrier in block_sum, or, in a block
    // of one warp, for the one below.
    __syncthreads();
    const Quotient<T> quotient = shared.quotient;
    const Sum total = shared.total;
    if (blockDim.x == 32) __syncwarp();
    row.divide(quotient, total, c);
  }
}

template <typename In, typename T>
cudaError_t launch(const Call& c, const TwoPassPlan& plan, cudaStream_t stream) {
  const auto function = c.geometry.unit_stride() ? kernel<In, T, true> : kernel<In, T, false>;
  return launch_in_stream(c, function, plan.blocks, std::min(plan.threads, kTwoPassThreads<In, T>), 0, 1, stream, c);
}

// Steps at a time; more would spill.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
constexpr int kUnrolled = 2;
#else
constexpr int kUnrolled = 4;
#endif

// The gradient of rows that lie anyhow.
template <typename T, bool kUnitStride>
__global__ void __launch_bounds__(kTwoPassThreads<T, T>) backward_kernel(const __grid_constant__ Call c) {
  __shared__ BlockSumStorage sums;
  __shared__ Gradient shared;
  ask_ahead<true>(c);
  const Walk& walk = c.geometry.row;
  const auto at = [&](int64_t i) {
    if constexpr (kUnitStride) {
      return Offsets{i, i, i, 0};
    } else {
      return walk.at(i);
    }
  };
  await_stream();
  for (int64_t r = blockIdx.x; r < c.geometry.rows.count; r += gridDim.x) {
    const Offsets o = c.geometry.rows.at(r);
    const T* x = static_cast<const T*>(c.input) + o.input;
    const T* g = static_cast<const T*>(c.grad) + o.grad;
    T* y = static_cast<T*>(c.output) + o.output;
    const GradientScale scale = RowDivisor<T>(c, o.denominator).scale(c);
    const double by = dot_scale<Wide<T>>(scale.m, c.count);
    typename DotTally<T>::Careful tally;
#pragma unroll 2
    for (int64_t i = threadIdx.x; i < walk.count; i += blockDim.x) {
      const Offsets p = at(i);
      const Pack<T, 1> value{{x[p.input]}}, grad{{g[p.grad]}};
      tally.template add<1>(&grad, &value, by);
    }
    const Sum dot = block_sum(tally.sum(), sums);
    if (threadIdx.x == 0) shared = make_gradient<Wide<T>>(dot, scale);
    __syncthreads();
    const Gradient gradient = shared;
    with_gradient<T>(gradient, [&](const auto& d) {
#pragma unroll kUnrolled
      for (int64_t i = threadIdx.x; i < walk.count; i += blockDim.x) {
        const Offsets p = at(i);
        const Pack<T, 1> value{{x[p.input]}}, grad{{g[p.grad]}};
        y[p.output] = input_gradients(grad, value, d)[0];
      }
    });
    __syncthreads();  // before the next row's gradient takes this one's place
  }
}

template <typename T>
cudaError_t launch_backward(const Call& c, const TwoPassPlan& plan, cudaStream_t stream) {
  const auto function = c.geometry.unit_stride() ? backward_kernel<T, true> : backward_kernel<T, false>;
  return launch_in_stream(c, function, plan.blocks, std::min(plan.threads, kTwoPassThreads<T, T>), 0, 1, stream, c);
}

}  // namespace two_pass_kernel

template <DType T>
cudaError_t two_pass(const Call& call, const TwoPassPlan& plan, cudaStream_t stream) {
  using Element = typename ElementOf<T>::type;
  if (call.grad != nullptr) return two_pass_kernel::launch_backward<Element>(call, plan, stream);
  switch (call.input_dtype) {
    case DType::kHalf:
      return two_pass_kernel::launch<__half, Element>(call, plan, stream);
    case DType::kBFloat16:
      return two_pass_kernel::launch<__nv_bfloat16, Element>(call, plan, stream);
    case DType::kFloat:
      return two_pass_kernel::launch<float, Element>(call, plan, stream);
    default:
      return two_pass_kernel::launch<double, Element>(call, plan, stream);
  }
}

}  // namespace l1norm::cuda
