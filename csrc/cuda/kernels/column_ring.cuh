// The column ring kernel, instantiated for each dtype by column_ring_*.cu.
#pragma once

#include "column_ring.h"

#include "../column_ring.cuh"
#include "../launch.h"
#include "../unset.cuh"
#include "../window_exchange.cuh"
#include "../window_results.cuh"

namespace l1norm::cuda {
namespace column_ring_kernel {

template <class W>
__global__ void __launch_bounds__(W::kThreads, 1)
    kernel(const __grid_constant__ Call c, const __grid_constant__ Layout l, double2* const scratch) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  extern __shared__ __align__(kSharedLine) uint4 memory[];
  Tables<W>& tables = *reinterpret_cast<Tables<W>*>(memory);
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32;
  const int rank = static_cast<int>(blockIdx.x) % kWindowCluster,
            cluster = static_cast<int>(blockIdx.x) / kWindowCluster;
  if (thread == 0) {
    for (int slot = 0; slot < l.slots; ++slot) {
      for (int part = 0; part < W::kParts; ++part) {
        start_barrier(shared_address(&tables.full[slot][part]), kWindowLoaders * 32);
        start_barrier(shared_address(&tables.empty[slot][part]), kWindowAdders + W::warps_of(part) / l.teams);
      }
    }
    for (int tile = 0; tile < W::kTiles; ++tile) {
      start_barrier(shared_address(&tables.hands[tile]), 1);
      start_barrier(shared_address(&tables.known[tile]), 1);
    }
    start_barrier(shared_address(&tables.written), kWindowAdders);
    start_barrier(shared_address(&tables.taken), W::kTakers);
    show_barriers();
  }
  for (int k = thread; k < static_cast<int>(sizeof tables.results / sizeof(uint4)); k += W::kThreads) {
    reinterpret_cast<uint4*>(&tables.results)[k] = uint4{};
  }
  meet_cluster();
  await_stream();
  const int64_t first_step = static_cast<int64_t>(blockIdx.x) * l.steps;
  const int64_t left = l.all_steps - first_step;
  const int steps = left <= 0 ? 0 : static_cast<int>(left < l.steps ? left : l.steps);
  const Ring<W> ring{c, l, tables, reinterpret_cast<char*>(memory) + kTablesBytes<W>, steps, first_step};
  if (warp < kWindowLoaders) {
    RingSums<W>{ring}.load(warp);
  } else if (warp < kWindowLoaders + kWindowDividers) {
    RingResults<W>{{ring}}.divide(warp - kWindowLoaders);
  } else if (warp < kWindowLoaders + kWindowDividers + kWindowAdders) {
    RingSums<W>{ring}.add(warp - kWindowLoaders - kWindowDividers, rank);
  } else {
    RingExchange<W>{ring}.exchange(warp - kWindowLoaders - kWindowDividers - kWindowAdders, rank, cluster, scratch);
  }
  __syncwarp();
  meet_cluster();  // none is written to that has ended
#endif
}

template <class W>
cudaError_t launch(const Call& c, const ColumnRingPlan& plan, void* scratch, cudaStream_t stream) {
  static_assert(kTablesBytes<W> == W::kSize.tables_bytes());
  static Prepared prepared;
  const Walk &rows = c.geometry.rows, &row = c.geometry.row;
  const int last = rows.dims - 1;
  const auto bytes_of = [&](int64_t elements) { return elements * static_cast<int64_t>(sizeof(typename W::Element)); };
  Layout l{};
  l.columns = rows.size[last];
  l.all_steps = row.count;
  l.input_step = bytes_of(row.stride[row.dims - 1].input);
  l.grad_step = bytes_of(row.stride[row.dims - 1].grad);
  l.output_step = bytes_of(row.stride[row.dims - 1].output);
  l.windows = static_cast<int>(plan.windows);
  l.a_plane = static_cast<int>(windows_of(l.columns, W::kColumns, W::kWhole));
  l.steps = plan.steps;
  l.slots = plan.slots;
  l.slot_bytes = plan.steps * W::kStepBytes;
  l.teams = plan.teams;
  l.held = plan.held;
  l.clusters = plan.clusters;
  l.by_plane = Divider(static_cast<uint32_t>(l.a_plane));
  l.by_slots = Divider(static_cast<uint32_t>(l.slots));
  l.run = static_cast<int>(row.size[row.dims - 1]);
  l.by_run = Divider(static_cast<uint32_t>(l.run));
  if (row.dims == 2) {
    l.input_jump = bytes_of(row.jump(&Offsets::input));
    l.grad_jump = bytes_of(row.jump(&Offsets::grad));
    l.output_jump = bytes_of(row.jump(&Offsets::output));
  }
  // Where all steps begin alike, a window's columns are its tile's.
  bool alike = l.output_step % W::kBytes == 0;
  for (int d = 0; d < last; ++d) alike &= rows.stride[d].output % W::kColumns == 0;
  l.shift = alike ? static_cast<int>(reinterpret_cast<uintptr_t>(c.output) / sizeof(typename W::Element) % W::kColumns)
                  : W::kColumns - 1;
  l.lag = alike ? 0 : 1;
  l.asks_wide = !alike;
  const int shared = kTablesBytes<W> + plan.slots * l.slot_bytes;
  cudaError_t error = prepared.for_launch(c.device, reinterpret_cast<const void*>(kernel<W>), shared);
  if (error != cudaSuccess) return error;
  error = unset_scratch(c, scratch, static_cast<size_t>(plan.scratch_bytes), stream);
  if (error != cudaSuccess) return error;
  return launch_clusters_at_once(c.starts_early, kernel<W>, static_cast<int64_t>(plan.clusters) * kWindowCluster,
                                 W::kThreads, static_cast<size_t>(shared), kWindowCluster, stream, c, l,
                                 static_cast<double2*>(scratch));
}

using Launch = cudaError_t (*)(const Call&, const ColumnRingPlan&, void*, cudaStream_t);

// Null where there is no kernel.
template <typename T, int kBytes, bool kWhole>
Launch launch_of(bool backward, bool many) {
  const auto of = [&](auto grads, auto slots) -> Launch {
    using W = Windows<T, kBytes, decltype(grads)::value, decltype(slots)::value, kWhole>;
    if constexpr (W::kSize.has_kernel()) return launch<W>;
    return nullptr;
  };
  const std::true_type yes;
  const std::false_type no;
  return backward ? (many ? of(yes, yes) : of(yes, no)) : many ? of(no, yes) : of(no, no);
}
template <typename T>
Launch launch_of(const WindowSize& size) {
  const auto of = [&](auto whole) {
    constexpr bool kWhole = decltype(whole)::value;
    return size.bytes == kWideWindow     ? launch_of<T, kWideWindow, kWhole>(size.backward, size.many)
           : size.bytes == kNarrowWindow ? launch_of<T, kNarrowWindow, kWhole>(size.backward, size.many)
                                         : launch_of<T, kNarrowestWindow, kWhole>(size.backward, size.many);
  };
  return size.whole ? of(std::true_type{}) : of(std::false_type{});
}

}  // namespace column_ring_kernel

template <DType D>
cudaError_t column_ring(const Call& c, const ColumnRingPlan& plan, void* scratch, cudaStream_t stream) {
  using T = typename ElementOf<D>::type;
  const WindowSize size = plan.size(sizeof(T), c.grad != nullptr);
  const auto start = column_ring_kernel::launch_of<T>(size);
  return start == nullptr ? cudaErrorInvalidValue : start(c, plan, scratch, stream);
}

}  // namespace l1norm::cuda
