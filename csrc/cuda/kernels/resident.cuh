// The resident kernel, instantiated for one dtype by each resident_*.cu.
#pragma once

#include "../gradient.cuh"
#include "../launch.h"
#include "../reduce.cuh"
#include "resident.h"

#include <type_traits>

namespace l1norm::cuda {
namespace resident_kernel {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
constexpr bool kHasClusters = false;
#else
constexpr bool kHasClusters = true;
#endif

// Threads that registers must do for; backward, more would spill.
template <typename T, bool kBackward, int kPacks>
constexpr int bound() {
  if (!kBackward) return kResidentThreads<kPacks>;
  if (kPacks > kFewPairPacks) return pair_threads(sizeof(T));
  return kHasClusters && sizeof(T) < 8 ? 640 : 512;
}

// kCluster blocks hold one row, kPacks packs a thread in registers and, with kShared, shared_packs in shared memory;
// blockIdx.x / kCluster is the row.
template <typename T, bool kBackward, int kPacks, int kCluster, bool kShared>
__global__ void __launch_bounds__(bound<T, kBackward, kPacks>())
    kernel(const __grid_constant__ Call c, const int shared_packs) {
  if constexpr (kCluster == 1 || kHasClusters) {
    __shared__ ClusterSumStorage<kCluster, kResidentThreads<kPacks> / 32> sums;
    extern __shared__ uint4 places[];
    // A block may write to a peer's shared memory only once the peer has started: the loads hide the wait.
    cluster_arrive<kCluster>();
    const int rank = cluster_rank<kCluster>();
    const Geometry& g = c.geometry;
    const Offsets o = g.rows.at(blockIdx.x / kCluster);

    // The head belongs to the first block, the tail to the last: an element a thread, so that a block of one warp takes
    // a shorter line for 2-byte elements.
    const int threads = static_cast<int>(blockDim.x), thread = static_cast<int>(threadIdx.x);
    const int in_shared = kShared ? shared_packs : 0;
    const RowOf<T, kBackward, kPacks, 1, !kShared, 0> row(
        c, o, 0, static_cast<int>(g.row.count), min(kLineBytes, threads * static_cast<int>(sizeof(T))),
        rank * (kPacks + in_shared) * threads + thread, threads, rank == 0 ? thread : kLineBytes,
        rank == kCluster - 1 ? thread : kLineBytes);
    const auto total_of = [&](const Sum& sum) { return cluster_sum<kCluster>(sum, sums, rank); };
    if constexpr (kBackward) {
      __shared__ GradientScale scale;
      if (thread == 0) scale = load_gradient_scale<T>(c, o.denominator);
      row.finish(total_of(row.sum(c)), scale);  // past a barrier
    } else {
      normalize_held<T, kPacks, kShared>(c, row, shared_packs, places,
                                         c.denominator != nullptr && rank == 0 ? o.denominator : -1, total_of);
    }
  }
}

template <int n>
using Int = std::integral_constant<int, n>;

template <typename T, bool kBackward, int kPacks, int kCluster, bool kShared>
cudaError_t launch(const Call& c, const ResidentPlan& plan, cudaStream_t stream) {
  const auto function = kernel<T, kBackward, kPacks, kCluster, kShared>;
  static Prepared prepared;
  const int shared_bytes = plan.shared_packs * plan.threads * kPackBytes;
  const cudaError_t error = prepared.for_launch(c.device, reinterpret_cast<const void*>(function), shared_bytes);
  if (error != cudaSuccess) return error;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(c.geometry.rows.count * kCluster));
  config.blockDim = dim3(static_cast<unsigned>(plan.threads));
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  config.stream = stream;
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = kCluster;
  cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
  config.attrs = &cluster;
  config.numAttrs = kCluster > 1 ? 1 : 0;
  return cudaLaunchKernelEx(&config, function, c, plan.shared_packs);
}

}  // namespace resident_kernel

template <DType D>
cudaError_t resident(const Call& call, const ResidentPlan& plan, cudaStream_t stream) {
  using T = typename ElementOf<D>::type;
  using resident_kernel::Int;
  using resident_kernel::launch;
  cudaError_t error = cudaErrorInvalidValue;
  const auto one = [&](auto backward, auto packs, auto shared, auto cluster) {
    constexpr int kPacks = decltype(packs)::value, kCluster = decltype(cluster)::value;
    constexpr bool kShared = decltype(shared)::value;
    constexpr bool kBackward = decltype(backward)::value;
    if (kBackward == (call.grad != nullptr) && plan.packs == kPacks && plan.cluster == kCluster &&
        (plan.shared_packs > 0) == kShared) {
      error = launch<T, kBackward, kPacks, kCluster, kShared>(call, plan, stream);
    }
  };
  const auto each = [&](auto backward, auto packs, auto shared, auto... clusters) {
    (one(backward, packs, shared, clusters), ...);
  };
  constexpr std::false_type kForward, kNone;
  constexpr std::true_type kBackward, kShared;
  if constexpr (sizeof(T) == 2) each(kForward, Int<8>{}, kNone, Int<1>{});
  each(kForward, Int<16>{}, kNone, Int<1>{}, Int<2>{}, Int<4>{}, Int<8>{});
  each(kForward, Int<kPacksBesideShared>{}, kShared, Int<1>{}, Int<2>{}, Int<3>{}, Int<4>{}, Int<8>{});
  each(kBackward, Int<kFewPairPacks>{}, kNone, Int<1>{});
  each(kBackward, Int<kPairPacks>{}, kNone, Int<1>{}, Int<2>{}, Int<3>{}, Int<4>{}, Int<6>{}, Int<8>{});
  return error;
}

}  // namespace l1norm::cuda
