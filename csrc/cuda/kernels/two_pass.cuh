// The two-pass kernel, instantiated for one result type by each two_pass_*.cu.
#pragma once

#include "../accumulate.cuh"
#include "../quotient.cuh"
#include "../reduce.cuh"
#include "two_pass.h"

namespace l1norm::cuda {
namespace two_pass_kernel {

// A row's elements as neighbours in memory: a scalar head up to a line, packs, a scalar tail.
template <typename In, typename T>
struct UnitRow {
  static constexpr int kPack = kPackBytes / (sizeof(In) > sizeof(T) ? sizeof(In) : sizeof(T));
  // Packs that a thread has in flight; more would spill at 1024 threads. The first pass's last batch stays in registers
  // for the second.
  static constexpr int kBatch = kPack == 8 || sizeof(T) == 8 ? 3 : 4;
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
        head(min(static_cast<int64_t>(elements_to_line(x)), length)),
        packs((length - head) / kPack) {}

  __device__ __forceinline__ Sum sum() {
    Sum sum;
    each_outside_packs([&](int64_t i) {
      const Wide<T> value[1] = {read<T>(x[i])};
      add_magnitudes(sum, value);
    });
    const int64_t step = static_cast<int64_t>(blockDim.x) * kBatch;
    const int64_t last = packs > 0 ? (packs - 1) / step * step : 0;
    for (held_first = threadIdx.x;; held_first += step) {
#pragma unroll
      for (int u = 0; u < kBatch; ++u) {
        const int64_t i = held_first + u * static_cast<int64_t>(blockDim.x);
        held[u] = i < packs ? load_keeping(pack(i)) : InPack{};
      }
#pragma unroll
      for (int u = 0; u < kBatch; ++u) {
        Wide<T> values[kPack];
        widen_pack(held[u], values);
        add_magnitudes(sum, values);
      }
      if (held_first >= last) return sum;
    }
  }

  __device__ __forceinline__ void divide(const Quotient<T>& quotient, Divisor m) const {
    if (!quotient.usable) {
      for (int64_t i = threadIdx.x; i < length; i += blockDim.x) y[i] = exact_quotient<T>(read<T>(x[i]), m);
      return;
    }
    each_outside_packs([&](int64_t i) {
      const Wide<T> value[1] = {read<T>(x[i])};
      y[i] = divide_one(quotient, value, m);
    });
    if (reinterpret_cast<uintptr_t>(y + head) % sizeof(OutPack) == 0) {
      divide_packs<true>(quotient, m);
    } else {
      divide_packs<false>(quotient, m);
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

  __device__ __forceinline__ static void widen_pack(const InPack& pack, Wide<T> (&values)[kPack]) {
#pragma unroll
    for (int k = 0; k < kPack; ++k) values[k] = read<T>(pack.at[k]);
  }

  // False where a quotient is not proven; nothing is stored then.
  template <bool kAligned>
  __device__ __forceinline__ bool divide_pack(int64_t i, const InPack& in, const Quotient<T>& quotient) const {
    Wide<T> values[kPack];
    widen_pack(in, values);
    OutPack pack;
    if (!quotient.divide(values, pack)) return false;
    T* to = y + head + i * kPack;
    if constexpr (kAligned) {
      store_streaming(reinterpret_cast<OutPack*>(to), pack);
    } else {
#pragma unroll
      for (int k = 0; k < kPack; ++k) to[k] = pack.at[k];
    }
    return true;
  }

  // Divides the packs of a batch that `unproven` names by their bits. They are read again, after the batch is done
  // with, so that this rare path takes no registers from the common one.
  __device__ __forceinline__ void divide_exactly_again(int64_t first, unsigned unproven, Divisor m) const {
    while (unproven != 0) {
      const int u = __ffs(static_cast<int>(unproven)) - 1;
      unproven &= unproven - 1;
      const int64_t at = head + (first + u * static_cast<int64_t>(blockDim.x)) * kPack;
#pragma unroll 1
      for (int k = 0; k < kPack; ++k) y[at + k] = exact_quotient<T>(read<T>(x[at + k]), m);
    }
  }

  // What is held first, then backwards: what was read last is in the nearest cache. y may be x, so a load comes before
  // a store only of the thread's own packs.
  template <bool kAligned>
  __device__ __forceinline__ void divide_packs(const Quotient<T>& quotient, Divisor m) const {
    unsigned unproven = 0;
#pragma unroll
    for (int u = 0; u < kBatch; ++u) {
      const int64_t i = held_first + u * static_cast<int64_t>(blockDim.x);
      if (i < packs && !divide_pack<kAligned>(i, held[u], quotient)) unproven |= 1u << u;
    }
    divide_exactly_again(held_first, unproven, m);
    const int64_t step = static_cast<int64_t>(blockDim.x) * kBatch;
    for (int64_t first = held_first - step; first >= 0; first -= step) {
      InPack in_flight[kBatch];
#pragma unroll
      for (int u = 0; u < kBatch; ++u) {
        in_flight[u] = load_last(pack(first + u * static_cast<int64_t>(blockDim.x)));
      }
      unproven = 0;
#pragma unroll
      for (int u = 0; u < kBatch; ++u) {
        const int64_t i = first + u * static_cast<int64_t>(blockDim.x);
        if (!divide_pack<kAligned>(i, in_flight[u], quotient)) unproven |= 1u << u;
      }
      divide_exactly_again(first, unproven, m);
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
    Sum sum;
    for (int64_t i = threadIdx.x; i < walk.count; i += blockDim.x) {
      const Wide<T> value[1] = {read<T>(x[walk.at(i).input])};
      add_magnitudes(sum, value);
    }
    return sum;
  }

  __device__ __forceinline__ void divide(const Quotient<T>& quotient, Divisor m) const {
    for (int64_t i = threadIdx.x; i < walk.count; i += blockDim.x) {
      const Offsets o = walk.at(i);
      const Wide<T> value[1] = {read<T>(x[o.input])};
      y[o.output] = divide_one(quotient, value, m);
    }
  }
};

template <typename T>
struct Shared {
  BlockSumStorage sums;
  Divisor divisor;
  Quotient<T> quotient;
};

template <typename In, typename T, bool kUnitStride>
__global__ void __launch_bounds__(kMaxThreads) kernel(const __grid_constant__ Call c) {
  __shared__ Shared<T> shared;
  const Geometry& g = c.geometry;
  for (int64_t r = blockIdx.x; r < g.rows.count; r += gridDim.x) {
    const Offsets o = g.rows.at(r);
    std::conditional_t<kUnitStride, UnitRow<In, T>, StridedRow<In, T>> row(static_cast<const In*>(c.input) + o.input,
                                                                           static_cast<T*>(c.output) + o.output, g.row);
    const Sum sum = block_sum(row.sum(), shared.sums);
    if (threadIdx.x == 0) {
      shared.divisor = make_divisor<Wide<T>>(sum, c.count, c.eps);
      shared.quotient.set(shared.divisor);
      if (c.denominator != nullptr) {
        static_cast<Wide<T>*>(c.denominator)[o.denominator] = rounded(shared.divisor, Wide<T>{});
      }
    }
    // Orders this row's use of shared memory; the next row's divisor waits for the barrier in block_sum, or, in a block
    // of one warp, for the one below.
    __syncthreads();
    const Quotient<T> quotient = shared.quotient;
    const Divisor divisor = shared.divisor;
    if (blockDim.x == 32) __syncwarp();
    row.divide(quotient, divisor);
  }
}

template <typename In, typename T>
cudaError_t launch(const Call& c, const TwoPassPlan& plan, cudaStream_t stream) {
  const auto function = c.geometry.unit_stride() ? kernel<In, T, true> : kernel<In, T, false>;
  function<<<plan.blocks, plan.threads, 0, stream>>>(c);
  return cudaGetLastError();
}

}  // namespace two_pass_kernel

template <DType T>
cudaError_t two_pass(const Call& call, const TwoPassPlan& plan, cudaStream_t stream) {
  using Element = typename ElementOf<T>::type;
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
