#include "signs.h"

#include <cstdint>
#include <type_traits>

#include "../early.cuh"
#include "../gradient.cuh"
#include "../held.cuh"
#include "../launch.h"
#include "../reduce.cuh"

namespace l1norm::cuda {
namespace {

// Packs of a thread that are on their way at once.
template <typename T>
constexpr int kBatch = sizeof(T) == 4 ? 8 : 4;
constexpr int kSignBits = 2;  // of an element: whether it is no zero, and whether it is negative

// Of a pack.
template <typename T>
using Signs = std::conditional_t<sizeof(T) == 2, uint16_t, uint8_t>;

template <typename T>
__device__ __forceinline__ unsigned sign_of(T x) {
  using Bits = std::conditional_t<sizeof(T) == 8, uint64_t, std::conditional_t<sizeof(T) == 4, uint32_t, uint16_t>>;
  Bits bits;
  memcpy(&bits, &x, sizeof bits);
  const unsigned negative = static_cast<unsigned>(bits >> (sizeof(T) * 8 - 1));
  return (static_cast<Bits>(bits << 1) != 0 ? 1u : 0u) | negative << 1;
}

// What elements become, by their sign.
template <typename T>
struct ThreeGradients {
  T of_positive, of_negative, of_zero;

  ThreeGradients() = default;
  template <typename D>
  __device__ __forceinline__ ThreeGradients(T one, const D& d) {
    const auto ones = make_pack<T, 4>([&](int) { return one; });
    const auto signs = make_pack<T, 4>([&](int k) { return narrow<T>(Wide<T>(k == 0 ? 1 : k == 1 ? -1 : 0)); });
    const Pack<T, 4> three = input_gradients(ones, signs, d);
    of_positive = three[0];
    of_negative = three[1];
    of_zero = three[2];
  }

  __device__ __forceinline__ T operator[](unsigned sign) const {
    const T nonzero = (sign & 2) != 0 ? of_negative : of_positive;
    return (sign & 1) != 0 ? nonzero : of_zero;
  }
};

// A cluster of blocks has a row, kMany or one of them, each `part` packs of it.
template <typename T, bool kMany>
__global__ void __launch_bounds__(kSignsThreads, kSignsBlocks) kernel(const __grid_constant__ Call c, const int part) {
  if constexpr (!kMany || kHasClusters) {
    constexpr int kPack = kPackBytes / sizeof(T);
    using RowPack = Pack<T, kPack>;
    static_assert(sizeof(Signs<T>) == sign_bytes(1, sizeof(T)));
    extern __shared__ __align__(kSharedLine) uint4 memory[];
    __shared__ double2 sums[(kMany ? kMaxCluster : 1) * kSignsThreads / 32];
    __shared__ GradientScale scale;
    const Cluster cluster(kMany);
    const int threads = static_cast<int>(blockDim.x), thread = static_cast<int>(threadIdx.x);
    if constexpr (kMany) cluster.expect(cluster_sums(cluster.size, threads));
    const int rank = cluster.rank;
    const unsigned row = kMany ? blockIdx.x / cluster.size : blockIdx.x;
    const Geometry& g = c.geometry;
    const Offsets o = g.rows.at(row);
    const T* const x = static_cast<const T*>(c.input) + o.input;
    T* const y = static_cast<T*>(c.output) + o.output;
    await_stream();
    wait_for_turn(c.stagger, row);
    const int begin = rank * part;
    const Share<T, 1, 0> share(x, static_cast<int>(g.row.count), kLineBytes, begin + thread, threads,
                               rank == 0 ? thread : kLineBytes, rank == cluster.size - 1 ? thread : kLineBytes);
    const int end = min(share.packs, begin + part);
    Signs<T>* const signs = reinterpret_cast<Signs<T>*>(memory) - begin;
    if (thread == 0) scale = RowDivisor<T>(c, o.denominator).scale(c);
    const double by = dot_scale_of<T>(c, o.denominator);
    const T one = *static_cast<const T*>(c.one_grad);

    Pack<T, 1> edge_x[2], edge_g[2];
    share.load_edge(x, edge_x);
    fill_packs(edge_g, one);
    RowPack gradients[kBatch<T>];
    fill_packs(gradients, one);
    const RowPack* const from = reinterpret_cast<const RowPack*>(x + share.head);
    const Sum sum = dot_of<T>([&](auto& tally) {
      tally.template add<2>(edge_g, edge_x, by);
#pragma unroll 1
      for (int first = share.first; first < end; first += kBatch<T> * threads) {
        RowPack batch[kBatch<T>];
#pragma unroll
        for (int u = 0; u < kBatch<T>; ++u) {
          const int i = first + u * threads;
          batch[u] = load_pack<Access::kOnce>(from + i, i < end);
        }
        constexpr int kGroup = kGroupOf<kBatch<T>, kPack>;
#pragma unroll
        for (int u = 0; u < kBatch<T>; u += kGroup) tally.template add<kGroup>(gradients, batch + u, by);
#pragma unroll
        for (int u = 0; u < kBatch<T>; ++u) {
          unsigned code = 0;
#pragma unroll
          for (int k = 0; k < kPack; ++k) code |= sign_of(batch[u][k]) << (k * kSignBits);
          if (first + u * threads < end) signs[first + u * threads] = static_cast<Signs<T>>(code);
        }
      }
    });
    const Sum total = cluster_sum<kMany>(sum, sums, cluster);
    if constexpr (kMany) __syncthreads();

    ThreeGradients<T> gradient;
    with_gradient<T>(make_gradient<Wide<T>>(total, scale),
                     [&](const auto& d) { gradient = ThreeGradients<T>(one, d); });
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      if (share.edge[e] >= 0) y[share.edge[e]] = gradient[sign_of(edge_x[e][0])];
    }
    RowPack* const to = reinterpret_cast<RowPack*>(y + share.head);
#pragma unroll 4
    for (int i = share.first; i < end; i += threads) {
      const unsigned code = signs[i];  // the thread's own
      store_pack<Access::kOnce>(to + i, make_pack<T, kPack>([&](int k) { return gradient[code >> (k * kSignBits)]; }));
    }
  }
}

template <typename T, bool kMany>
cudaError_t launch(const Call& c, const SignsPlan& plan, cudaStream_t stream) {
  const auto shared_bytes = static_cast<size_t>(sign_bytes(plan.packs, sizeof(T)));
  static Prepared prepared;
  const cudaError_t error =
      prepared.for_launch(c.device, reinterpret_cast<const void*>(kernel<T, kMany>), static_cast<int>(shared_bytes));
  if (error != cudaSuccess) return error;
  return launch_in_stream(c, kernel<T, kMany>, c.geometry.rows.count * plan.cluster, plan.threads, shared_bytes,
                          plan.cluster, stream, c, plan.packs);
}

template <typename T>
cudaError_t launch(const Call& c, const SignsPlan& plan, cudaStream_t stream) {
  return plan.cluster > 1 ? launch<T, true>(c, plan, stream) : launch<T, false>(c, plan, stream);
}

}  // namespace

cudaError_t signs(const Call& call, const SignsPlan& plan, cudaStream_t stream) {
  switch (call.dtype) {
    case DType::kHalf:
      return launch<__half>(call, plan, stream);
    case DType::kBFloat16:
      return launch<__nv_bfloat16>(call, plan, stream);
    case DType::kFloat:
      return launch<float>(call, plan, stream);
    case DType::kDouble:
      return launch<double>(call, plan, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace l1norm::cuda
