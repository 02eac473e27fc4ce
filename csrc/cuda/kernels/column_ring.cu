#include "column_ring.h"

#include "../column_ring.cuh"
#include "../launch.h"
#include "../unset.cuh"
#include "../window_quotients.cuh"

namespace l1norm::cuda {
namespace column_ring_kernel {

__global__ void __launch_bounds__(kColumnRingThreads, 1)
    kernel(const __grid_constant__ Call c, const __grid_constant__ Layout l, double2* const scratch) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  extern __shared__ __align__(kSharedLine) uint4 memory[];
  Tables& tables = *reinterpret_cast<Tables*>(memory);
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32;
  const int rank = static_cast<int>(blockIdx.x) % kWindowCluster,
            cluster = static_cast<int>(blockIdx.x) / kWindowCluster;
  if (thread == 0) {
    for (int slot = 0; slot < kWindowSlots; ++slot) {
      for (int quarter = 0; quarter < kQuarters; ++quarter) {
        start_barrier(shared_address(&tables.full[slot][quarter]), kWindowLoaders * 32);
        start_barrier(shared_address(&tables.empty[slot][quarter]), kWindowAdders + warps_of(quarter));
      }
    }
    for (int tile = 0; tile < kTiles; ++tile) {
      start_barrier(shared_address(&tables.hands[tile]), 1);
      start_barrier(shared_address(&tables.known[tile]), 1);
    }
    show_barriers();
  }
  for (int k = thread; k < 2 * kKnown; k += kColumnRingThreads) tables.divisors[k / kKnown][k % kKnown] = float2{};
  meet_cluster();
  await_stream();
  const int64_t first_step = static_cast<int64_t>(blockIdx.x) * l.steps;
  const int64_t left = l.all_steps - first_step;
  const int steps = left <= 0 ? 0 : static_cast<int>(left < l.steps ? left : l.steps);
  const Ring ring{c, l, tables, reinterpret_cast<char*>(memory) + kTablesBytes, steps, first_step};
  if (warp < kWindowLoaders) {
    RingSums{ring}.load(warp);
  } else if (warp < kWindowLoaders + kWindowDividers) {
    RingQuotients{ring}.divide(warp - kWindowLoaders);
  } else if (warp < kWindowLoaders + kWindowDividers + kWindowAdders) {
    RingSums{ring}.add(warp - kWindowLoaders - kWindowDividers, rank);
  } else {
    RingSums{ring}.exchange(rank, cluster, scratch);
  }
  __syncwarp();
  meet_cluster();  // none is written to that has ended
#endif
}

}  // namespace column_ring_kernel

cudaError_t column_ring(const Call& c, const ColumnRingPlan& plan, void* scratch, cudaStream_t stream) {
  using namespace column_ring_kernel;
  static Prepared prepared;
  const Walk &rows = c.geometry.rows, &row = c.geometry.row;
  const int last = rows.dims - 1;
  Layout l{};
  l.columns = rows.size[last];
  l.all_steps = row.count;
  l.input_step = row.stride[0].input * static_cast<int64_t>(sizeof(float));
  l.output_step = row.stride[0].output * static_cast<int64_t>(sizeof(float));
  l.windows = static_cast<int>(plan.windows);
  l.a_plane = static_cast<int>(windows_of(l.columns));
  l.steps = plan.steps;
  l.held = plan.held;
  l.clusters = plan.clusters;
  // Where all steps begin alike, a window's columns are its tile's.
  bool alike = l.output_step % kWindowBytes == 0;
  for (int d = 0; d < last; ++d) alike &= rows.stride[d].output % kWindowColumns == 0;
  l.shift = alike ? static_cast<int>(reinterpret_cast<uintptr_t>(c.output) / sizeof(float) % kWindowColumns)
                  : kWindowColumns - 1;
  l.lag = alike ? 0 : 1;
  const int shared = kTablesBytes + plan.steps * kStepBytes;
  cudaError_t error = prepared.for_launch(c.device, reinterpret_cast<const void*>(kernel), shared);
  if (error != cudaSuccess) return error;
  error = unset_scratch(c, scratch, static_cast<size_t>(plan.scratch_bytes), stream);
  if (error != cudaSuccess) return error;
  return launch_clusters_at_once(c.starts_early, kernel, static_cast<int64_t>(plan.clusters) * kWindowCluster,
                                 kColumnRingThreads, static_cast<size_t>(shared), kWindowCluster, stream, c, l,
                                 static_cast<double2*>(scratch));
}

}  // namespace l1norm::cuda
