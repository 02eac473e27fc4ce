// The resident kernel, instantiated for one dtype by each resident_*.cu.
#pragma once

#include "../accumulate.cuh"
#include "../quotient.cuh"
#include "../reduce.cuh"
#include "resident.h"

namespace l1norm::cuda {
namespace resident_kernel {

// kCluster blocks hold one row in registers, kPacks packs a thread; blockIdx.x / kCluster is the row.
template <typename T, int kPacks, int kCluster>
__global__ void __launch_bounds__(kResidentThreads<kPacks>) kernel(const __grid_constant__ Call c) {
  constexpr int kPack = kPackBytes / sizeof(T);
  using RowPack = Pack<T, kPack>;
  __shared__ ClusterSumStorage<kCluster, kResidentThreads<kPacks> / 32> sums;
  // A block may write to a peer's shared memory only once the peer has started: the loads hide the wait.
  cluster_arrive<kCluster>();
  const int rank = cluster_rank<kCluster>();
  const Geometry& g = c.geometry;
  const Offsets o = g.rows.at(blockIdx.x / kCluster);
  const T* x = static_cast<const T*>(c.input) + o.input;
  T* y = static_cast<T*>(c.output) + o.output;

  // The head up to a line belongs to the first block, the tail after the last pack to the last one: an element a
  // thread.
  const int length = static_cast<int>(g.row.count);
  const int head = min(elements_to_line(x), length), packs = (length - head) / kPack;
  const int tail = head + packs * kPack;
  const bool in_head = rank == 0 && threadIdx.x < head;
  const bool in_tail = rank == kCluster - 1 && static_cast<int>(threadIdx.x) < length - tail;
  const int first = rank * kPacks * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x);
  const RowPack* body = reinterpret_cast<const RowPack*>(x + head);
  RowPack held[kPacks];
#pragma unroll
  for (int u = 0; u < kPacks; ++u) {
    const int i = first + u * static_cast<int>(blockDim.x);
    held[u] = i < packs ? body[i] : RowPack{};
  }
  const Wide<T> head_value[1] = {in_head ? widen(x[threadIdx.x]) : Wide<T>{}};
  const Wide<T> tail_value[1] = {in_tail ? widen(x[tail + threadIdx.x]) : Wide<T>{}};
  Sum sum;
  add_magnitudes(sum, head_value);
  add_magnitudes(sum, tail_value);
  constexpr int kGroup = kPacks * kPack < 16 ? kPacks : 16 / kPack;  // packs that enter the sum as one term
  static_assert(kPacks % kGroup == 0);
#pragma unroll
  for (int u = 0; u < kPacks; u += kGroup) {
    Wide<T> values[kGroup * kPack];
#pragma unroll
    for (int k = 0; k < kGroup * kPack; ++k) values[k] = widen(held[u + k / kPack].at[k % kPack]);
    add_magnitudes(sum, values);
  }

  // Widened values are made again for the quotients: kept from here on, they would not fit the registers.
#pragma unroll
  for (int u = 0; u < kPacks; ++u) forget_derived(held[u]);
  const Divisor m = make_divisor<Wide<T>>(cluster_sum<kCluster>(sum, sums, rank), c.count, c.eps);
  Quotient<T> quotient;
  quotient.set(m);
  if (c.denominator != nullptr && rank == 0 && threadIdx.x == 0) {
    static_cast<Wide<T>*>(c.denominator)[o.denominator] = rounded(m, Wide<T>{});
  }

  if (in_head) y[threadIdx.x] = divide_one(quotient, head_value, m);
  if (in_tail) y[tail + threadIdx.x] = divide_one(quotient, tail_value, m);
  unsigned unproven = quotient.usable ? 0 : ~0u;
  if (quotient.usable) {
    RowPack* result = reinterpret_cast<RowPack*>(y + head);
    const bool aligned = reinterpret_cast<uintptr_t>(result) % sizeof(RowPack) == 0;
#pragma unroll
    for (int u = 0; u < kPacks; ++u) {
      const int i = first + u * static_cast<int>(blockDim.x);
      Wide<T> values[kPack];
#pragma unroll
      for (int k = 0; k < kPack; ++k) values[k] = widen(held[u].at[k]);
      RowPack pack;
      if (!quotient.divide(values, pack)) {
        unproven |= 1u << u;
      } else if (i < packs) {
        if (aligned) {
          result[i] = pack;
        } else {
#pragma unroll
          for (int k = 0; k < kPack; ++k) y[head + i * kPack + k] = pack.at[k];
        }
      }
    }
  }
  // Read again, after the rest is done with, so that this rare path takes no registers from the common one.
  while (unproven != 0) {
    const int u = __ffs(static_cast<int>(unproven)) - 1, i = first + u * static_cast<int>(blockDim.x);
    unproven &= unproven - 1;
    if (u >= kPacks || i >= packs) break;
#pragma unroll 1
    for (int k = head + i * kPack; k < head + (i + 1) * kPack; ++k) y[k] = exact_quotient<T>(widen(x[k]), m);
  }
}

// What a kernel needs before its first launch on a device: all of the L1 cache for loads in flight (half of it as
// shared memory cost 23% on an H200), and leave for clusters of more than 8.
inline cudaError_t prepare(const void* function, int cluster) {
  cudaError_t error = cudaFuncSetAttribute(function, cudaFuncAttributePreferredSharedMemoryCarveout, 0);
  if (error == cudaSuccess && cluster > 8) {
    error = cudaFuncSetAttribute(function, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  }
  return error;
}

template <typename T, int kPacks, int kCluster>
cudaError_t launch(const Call& c, int threads, cudaStream_t stream) {
  const auto function = kernel<T, kPacks, kCluster>;
  const cudaError_t prepared = prepare(reinterpret_cast<const void*>(function), kCluster);
  if (prepared != cudaSuccess) return prepared;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(c.geometry.rows.count * kCluster));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.stream = stream;
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = kCluster;
  cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
  config.attrs = &cluster;
  config.numAttrs = kCluster > 1 ? 1 : 0;
  return cudaLaunchKernelEx(&config, function, c);
}

}  // namespace resident_kernel

template <DType D>
cudaError_t resident(const Call& call, const ResidentPlan& plan, cudaStream_t stream) {
  using T = typename ElementOf<D>::type;
  using resident_kernel::launch;
  const auto is = [&](int packs, int cluster) { return plan.packs == packs && plan.cluster == cluster; };
  if (is(4, 1)) return launch<T, 4, 1>(call, plan.threads, stream);
  if constexpr (D != DType::kBFloat16) {
    if (is(8, 1)) return launch<T, 8, 1>(call, plan.threads, stream);
    if (is(16, 1)) return launch<T, 16, 1>(call, plan.threads, stream);
    if (is(16, 2)) return launch<T, 16, 2>(call, plan.threads, stream);
    if (is(16, 4)) return launch<T, 16, 4>(call, plan.threads, stream);
    if (is(16, 8)) return launch<T, 16, 8>(call, plan.threads, stream);
    if (is(16, 16)) return launch<T, 16, 16>(call, plan.threads, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace l1norm::cuda
