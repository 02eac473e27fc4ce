#include "signs.h"

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "../early.cuh"
#include "../gradient.cuh"
#include "../launch.h"
#include "../reduce.cuh"

namespace l1norm::cuda {
namespace {

// Of doubles the compiler would take a stack for more, and where it is not told of three blocks a multiprocessor, for
// which one of compute capability 7.5 has no room.
template <typename T>
constexpr int kMostThreads = sizeof(T) == 8 ? 384 : 512;
template <typename T>
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
constexpr int kBlocks = 0;
#else
constexpr int kBlocks = sizeof(T) == 8 ? 3 : 0;
#endif
constexpr int kBatch = 4;          // packs of a thread that are on their way at once
constexpr int kPacksAThread = 16;  // of a row, about
constexpr int kSignBits = 2;       // of an element: whether it is no zero, and whether it is negative

// Of a pack.
template <typename T>
using Signs = std::conditional_t<sizeof(T) == 2, uint16_t, uint8_t>;

constexpr int64_t packs_of(int64_t length, int64_t element_size) { return length * element_size / kPackBytes; }
constexpr int64_t sign_bytes(int64_t length, int64_t element_size) {
  return packs_of(length, element_size) * static_cast<int64_t>(element_size == 2 ? sizeof(Signs<__half>) : 1);
}

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

template <typename T>
__global__ void __launch_bounds__(kMostThreads<T>, kBlocks<T>) kernel(const __grid_constant__ Call c) {
  constexpr int kPack = kPackBytes / sizeof(T);
  using RowPack = Pack<T, kPack>;
  extern __shared__ __align__(kSharedLine) uint4 memory[];
  Signs<T>* const signs = reinterpret_cast<Signs<T>*>(memory);
  __shared__ double2 sums[kMostThreads<T> / 32];
  __shared__ GradientScale scale;
  const Geometry& g = c.geometry;
  const Offsets o = g.rows.at(blockIdx.x);
  const T* const x = static_cast<const T*>(c.input) + o.input;
  T* const y = static_cast<T*>(c.output) + o.output;
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const int length = static_cast<int>(g.row.count), head = elements_to(x, kLineBytes);
  const int packs = (length - head) / kPack, tail = head + packs * kPack;
  await_stream();
  if (thread == 0) scale = RowDivisor<T>(c, o.denominator).scale(c);
  const double by = dot_scale_of<T>(c, o.denominator);
  const T one = *static_cast<const T*>(c.one_grad);

  // Elements outside packs, of which a thread has one ahead of them and one behind.
  const int edge[2] = {thread < head ? thread : -1, thread < length - tail ? tail + thread : -1};
  Pack<T, 1> edge_x[2], edge_g[2];
#pragma unroll
  for (int e = 0; e < 2; ++e) edge_x[e].units[0] = edge[e] >= 0 ? x[edge[e]] : T{};
  fill_packs(edge_g, one);
  RowPack gradients[kBatch];
  fill_packs(gradients, one);
  const RowPack* const from = reinterpret_cast<const RowPack*>(x + head);
  const Sum sum = dot_of<T>([&](auto& tally) {
    tally.template add<2>(edge_g, edge_x, by);
#pragma unroll 1
    for (int first = thread; first < packs; first += kBatch * threads) {
      RowPack batch[kBatch];
#pragma unroll
      for (int u = 0; u < kBatch; ++u) {
        const int i = first + u * threads;
        batch[u] = load_pack<Access::kOnce>(from + i, i < packs);
      }
      constexpr int kGroup = kGroupOf<kBatch, kPack>;
#pragma unroll
      for (int u = 0; u < kBatch; u += kGroup) tally.template add<kGroup>(gradients, batch + u, by);
#pragma unroll
      for (int u = 0; u < kBatch; ++u) {
        unsigned code = 0;
#pragma unroll
        for (int k = 0; k < kPack; ++k) code |= sign_of(batch[u][k]) << (k * kSignBits);
        if (first + u * threads < packs) signs[first + u * threads] = static_cast<Signs<T>>(code);
      }
    }
  });
  const Sum total = cluster_sum<false>(sum, sums, Cluster(false));

  ThreeGradients<T> gradient;
  with_gradient<T>(make_gradient<Wide<T>>(total, scale), [&](const auto& d) { gradient = ThreeGradients<T>(one, d); });
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    if (edge[e] >= 0) y[edge[e]] = gradient[sign_of(edge_x[e][0])];
  }
  RowPack* const to = reinterpret_cast<RowPack*>(y + head);
#pragma unroll 4
  for (int i = thread; i < packs; i += threads) {
    const unsigned code = signs[i];  // the thread's own
    store_pack<Access::kOnce>(to + i, make_pack<T, kPack>([&](int k) { return gradient[code >> (k * kSignBits)]; }));
  }
}

template <typename T>
cudaError_t launch(const Call& c, cudaStream_t stream) {
  const int64_t packs = packs_of(c.geometry.row.count, sizeof(T));
  const int threads =
      static_cast<int>(std::clamp<int64_t>(ceil_div(packs, kPacksAThread * 32) * 32, 64, kMostThreads<T>));
  const size_t shared_bytes = static_cast<size_t>(sign_bytes(c.geometry.row.count, sizeof(T)));
  static Prepared prepared;
  const cudaError_t error =
      prepared.for_launch(c.device, reinterpret_cast<const void*>(kernel<T>), static_cast<int>(shared_bytes));
  if (error != cudaSuccess) return error;
  return launch_in_stream(c, kernel<T>, c.geometry.rows.count, threads, shared_bytes, 1, stream, c);
}

}  // namespace

// As fractions of a copy's speed on an H200, of 1 GiB, and as kernels of rows have it from a copy of a gradient: 8191
// float32 0.96 (0.90), 65535 0.92 (0.78), 450001 0.71 (0.61), but 4096 0.97 (1.01); 4096 bfloat16 0.93 (0.74), 65535
// 0.86 (0.75), 450001 0.82 (0.54); doubles, of up to 512 threads a row, 2048 0.95 (0.78), 65535 0.85 (0.66).
bool takes_signs(const Geometry& g, int64_t element_size, const Device& device) {
  const int64_t least_bytes = element_size == 4 ? 20 << 10 : element_size == 8 ? 12 << 10 : 8 << 10;
  constexpr int kOtherShared = 2 << 10;  // of a block, the system's part included
  const int64_t signs = sign_bytes(g.row.count, element_size);
  return g.row.count * element_size >= least_bytes && g.row.count <= INT32_MAX &&
         2 * (signs + kOtherShared) <= device.shared_bytes_per_multiprocessor &&
         signs + kOtherShared <= device.shared_bytes && g.rows.count >= 2 * device.multiprocessors &&
         g.rows.count <= INT32_MAX;
}

cudaError_t signs(const Call& call, cudaStream_t stream) {
  switch (call.dtype) {
    case DType::kHalf:
      return launch<__half>(call, stream);
    case DType::kBFloat16:
      return launch<__nv_bfloat16>(call, stream);
    case DType::kFloat:
      return launch<float>(call, stream);
    case DType::kDouble:
      return launch<double>(call, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace l1norm::cuda
