// The resident kernel, instantiated for one dtype by each resident_*.cu.
#pragma once

#include "../early.cuh"
#include "../gradient.cuh"
#include "../launch.h"
#include "../reduce.cuh"
#include "resident.h"

#include <algorithm>
#include <type_traits>

namespace l1norm::cuda {
namespace resident_kernel {

template <typename T>
struct Type {
  using type = T;
};

// Threads that registers must do for.
template <typename T, bool kBackward, int kPacks>
constexpr int bound() {
  if (!kBackward) return kResidentThreads<kPacks>;
  return kHasClusters ? pair_of(kPacks, sizeof(T)).threads : std::min(pair_of(kPacks, sizeof(T)).threads, 512);
}

// Whether blocks wait for their stream before they work out what is theirs to read, and not after: of gradients of
// halves, where registers are few (1 x 4096 bfloat16 on an H100: 2.45 us, 2.59; float32: 2.46, 2.33; forward 1.87,
// 1.80). On compute capability 12.0 a kernel of bfloat16 would spill so.
template <typename T, bool kBackward>
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1200
constexpr bool kWaitsFirst = kBackward && std::is_same_v<T, __half>;
#else
constexpr bool kWaitsFirst = kBackward && sizeof(T) == 2;
#endif

// Blocks a multiprocessor that the compiler is told of: where it is told of one, it takes all registers that threads
// may have, so that a thread's quotients overlap, which counts where warps are few (1 x 4096 float32: 1.74 us, and 1.86
// where it is told of none). Gradients gain nothing (2.38, 2.35), and bfloat16 with 16 packs loses (131071: 0.968,
// 0.997).
template <typename T, bool kBackward, int kPacks>
constexpr int kBlocks = kBackward || (std::is_same_v<T, __nv_bfloat16> && kPacks == 16) ? 0 : 1;

// A cluster of blocks, of one each unless kMany, holds one row: kPacks packs a thread in registers and, with kShared,
// shared_packs in shared memory, or backward kPacks of the input; rows are in the clusters' order. kAlike: as HeldPair
// has it.
template <typename T, bool kBackward, int kPacks, bool kMany, bool kShared, bool kAlike>
__global__ void __launch_bounds__(bound<T, kBackward, kPacks>(), kBlocks<T, kBackward, kPacks>)
    kernel(const __grid_constant__ Call c, const int shared_packs) {
  if constexpr (!kMany || kHasClusters) {
    extern __shared__ __align__(kSharedLine) uint4 shared[];
    ask_ahead<kBackward>(c);
    // A block may write to a peer's shared memory only once the peer has started: the loads hide the wait.
    const Cluster cluster(kMany);
    const int count = cluster_sums(cluster.size, static_cast<int>(blockDim.x));
    if constexpr (kMany) cluster.expect(count);
    const int rank = cluster.rank;
    double2* const sums = reinterpret_cast<double2*>(shared);
    uint4* const places = shared + to_line(count);
    const Geometry& g = c.geometry;
    // Not %clusterid, which is the same quotient in float arithmetic.
    const unsigned row_number = kMany ? blockIdx.x / cluster.size : blockIdx.x;
    const Offsets o = g.rows.at(row_number);

    // The head belongs to the first block, the tail to the last: an element a thread, so that a block of one warp takes
    // a shorter line for 2-byte elements.
    const int threads = static_cast<int>(blockDim.x), thread = static_cast<int>(threadIdx.x);
    const int packs = kPacks + (kShared && !kBackward ? shared_packs : 0);
    const auto wait_if = [&](bool wanted) {
      if (!wanted) return;
      await_stream();
      if constexpr (kAlike) wait_for_turn(c.stagger, row_number);
    };
    constexpr bool kFirst = kWaitsFirst<T, kBackward>;
    wait_if(kFirst);
    const auto wait = [&] { wait_if(!kFirst); };
    const auto hold = [&](auto row_type, auto... rest) {
      return typename decltype(row_type)::type(
          c, o, 0, static_cast<int>(g.row.count), min(kLineBytes, threads * static_cast<int>(sizeof(T))),
          rank * packs * threads + thread, threads, rank == 0 ? thread : kLineBytes,
          rank == cluster.size - 1 ? thread : kLineBytes, rest...);
    };
    const auto total_of = [&](const Sum& sum) { return cluster_sum<kMany>(sum, sums, cluster); };
    if constexpr (kBackward) {
      __shared__ GradientScale scale;
      const auto row = hold(Type<HeldPair<T, kPacks, 1, 0, Access::kOnce, kShared, kAlike>>{}, 1, places, wait);
      if (thread == 0) scale = RowDivisor<T>(c, o.denominator).scale(c);
      const Sum total = total_of(row.sum(c));
      if constexpr (kMany) __syncthreads();
      row.finish(total, scale);
    } else {
      const auto row = hold(Type<Held<T, kPacks, 1, !kShared>>{}, 1, wait);
      normalize_held<T, kPacks, kShared>(c, row, shared_packs, places,
                                         c.denominator != nullptr && rank == 0 ? o.denominator : -1, total_of);
    }
  }
}

template <int n>
using Int = std::integral_constant<int, n>;

// Of shared memory, 16 KB for the sums of blocks: with what a multiprocessor has by itself, it takes so few blocks of
// one warp or two that registers stay empty (5000 bfloat16 in two warps: 0.95, and 0.995; 4096 x 1024 float32 in
// one: 14.2 us, and 10.3). With 32 KB, blocks of four warps are 13% slower.
constexpr int kSumsPercent = 7;

template <typename T, bool kBackward, int kPacks, bool kMany, bool kShared, bool kAlike>
cudaError_t launch(const Call& c, const ResidentPlan& plan, cudaStream_t stream) {
  const auto function = kernel<T, kBackward, kPacks, kMany, kShared, kAlike>;
  static Prepared prepared;
  const int places_bytes = plan.shared_packs * plan.threads * kPackBytes;
  const int sums_bytes = to_line(cluster_sums(plan.cluster, plan.threads)) * static_cast<int>(sizeof(double2));
  const int shared_bytes = places_bytes == 0 ? 0 : places_bytes + sums_bytes;
  const cudaError_t error =
      prepared.for_launch(c.device, reinterpret_cast<const void*>(function), shared_bytes, kMany ? 0 : kSumsPercent);
  if (error != cudaSuccess) return error;
  return launch_in_stream(c, function, c.geometry.rows.count * plan.cluster, plan.threads,
                          static_cast<size_t>(places_bytes + sums_bytes), plan.cluster, stream, c, plan.shared_packs);
}

}  // namespace resident_kernel

template <DType D>
cudaError_t resident(const Call& call, const ResidentPlan& plan, cudaStream_t stream) {
  using T = typename ElementOf<D>::type;
  using resident_kernel::Int;
  using resident_kernel::launch;
  cudaError_t error = cudaErrorInvalidValue;
  const auto one = [&](auto backward, auto packs, auto shared, auto many, auto alike) {
    constexpr bool kBackward = decltype(backward)::value, kMany = decltype(many)::value;
    constexpr bool kShared = decltype(shared)::value, kAlike = decltype(alike)::value;
    if (kBackward == (call.grad != nullptr) && plan.packs == decltype(packs)::value && plan.alike == kAlike &&
        (plan.shared_packs > 0) == kShared && (plan.cluster > 1) == kMany) {
      error = launch<T, kBackward, decltype(packs)::value, kMany, kShared, kAlike>(call, plan, stream);
    }
  };
  constexpr std::false_type kForward, kNone, kOne, kApart;
  constexpr std::true_type kBackward, kShared, kMany, kAlike;
  const auto each = [&](auto backward, auto packs, auto shared, auto alike) {
    one(backward, packs, shared, kOne, alike);
    one(backward, packs, shared, kMany, alike);
  };
  each(kForward, Int<8>{}, kNone, kAlike);
  each(kForward, Int<16>{}, kNone, kAlike);
  each(kForward, Int<kPacksBesideShared>{}, kShared, kAlike);
  one(kBackward, Int<kFewPairPacks>{}, kNone, kOne, kAlike);
  if constexpr (sizeof(T) < 8) each(kBackward, Int<kPairPacks>{}, kNone, kAlike);
  each(kBackward, Int<kPairPacksBesideShared>{}, kShared, kAlike);
  each(kBackward, Int<kFewPairPacks>{}, kNone, kApart);
  return error;
}

}  // namespace l1norm::cuda
