// The strided kernel, instantiated for one dtype by each strided_*.cu.
#pragma once

#include "../cells.cuh"
#include "../columns.cuh"
#include "../launch.h"
#include "strided.h"

namespace l1norm::cuda {
namespace strided_kernel {

// Where cells in shared memory follow the block's desks.
template <typename T, bool kBackward>
__device__ __forceinline__ uint4* strided_places(const Tiling& t, int cluster) {
  extern __shared__ uint4 memory[];
  const int tiles = t.tile_a_warp() ? static_cast<int>(blockDim.x) / 32 : 1;
  return memory + tiles * Desk<T, kBackward>::bytes(t.count(), t.warps, cluster) / sizeof(uint4);
}

template <typename T, bool kBackward, int kPacks, bool kElements, bool kShared>
__global__ void __launch_bounds__(strided_threads(kShared), kShared ? kSharedBlocks : strided_blocks(kBackward, kPacks))
    kernel(const __grid_constant__ Call c, const __grid_constant__ Tiling t) {
  using Held = HeldCells<T, kBackward, kPacks, kElements, kShared>;
  using Memory = typename Held::Memory;
  const Cluster cluster;
  cluster.arrive();
  const Walk &units = c.geometry.rows, &steps = c.geometry.row;
  const auto make_place = [&] {
    return Place(t, units, thread_anew(), blockIdx.x / static_cast<unsigned>(cluster.size), false);
  };
  Held held(strided_places<T, kBackward>(t, cluster.size));
  // A thread a column, of which a tile has 32 at the most.
  RowDivisor<T> divisor{};
  {
    const Place place = make_place();
    if (kBackward && place.thread < t.count()) {
      const int64_t denominator = denominator_of(t, units, place.first_unit, place.thread);
      if (denominator >= 0) divisor = RowDivisor<T>(c, denominator);
    }
    held.load(c, place.offsets(units), place.way(t, steps, cluster.rank));
  }
  {
    const Place place = make_place();
    const Memory desk(place, t, cluster.size);
    const auto scale = [&] {
      if (kBackward && place.thread < t.count()) desk.scales[place.thread] = divisor.scale(c);
    };
    // While the elements are on their way, unless they leave no registers for it.
    if constexpr (kShared) scale();
    held.hand_in(c, t, place, desk);
    if constexpr (!kShared) scale();
  }
  const Place place = make_place();
  const Memory desk(place, t, cluster.size);
  add_up<T, kBackward>(t, place, desk, cluster, [&](int column, const Sum& total) {
    if constexpr (kBackward) {
      desk.results[column] = Slope<T>(make_gradient<Wide<T>>(total, desk.scales[column]));
    } else {
      desk.results[column] = Quotient<T>(total, c.count, c.eps);
      desk.parts[column] = make_double2(total.hi, total.lo);
      if (c.denominator == nullptr || cluster.rank != 0) return;
      const int64_t to = denominator_of(t, units, place.first_unit, column);
      if (to >= 0) write_denominator<T>(c, to, total);
    }
  });
  held.finish(c, t, cluster, make_place);
}

template <typename T, bool kBackward, int kSteps, int kColumns, int kUnits>
__global__ void __launch_bounds__(kStridedWarps * 32, column_blocks(kBackward, kSteps, sizeof(T) == 2))
    columns_kernel(const __grid_constant__ Call c, const __grid_constant__ Tiling t) {
  const int64_t tile = static_cast<int64_t>(blockIdx.x) * kStridedWarps + threadIdx.x / 32;
  WholeColumns<T, kBackward, kSteps, kColumns, kUnits> columns(c, t, tile * t.width + threadIdx.x % 32);
  if constexpr (kBackward) {
    columns.differentiate();
  } else {
    columns.normalize();
  }
}

template <typename T, bool kBackward, int kSteps, bool kElements>
cudaError_t launch_columns(const Call& c, const Tiling& t, unsigned blocks, cudaStream_t stream) {
  constexpr int kColumns = kElements ? 1 : kPackBytes / sizeof(T);
  constexpr int kUnits = column_units(kBackward, kSteps, kElements ? sizeof(T) : kPackBytes);
  columns_kernel<T, kBackward, kSteps, kColumns, kUnits><<<blocks, kStridedWarps * 32, 0, stream>>>(c, t);
  return cudaGetLastError();
}

template <typename T, bool kBackward, int kPacks, bool kElements, bool kShared>
cudaError_t launch_tiles(const Call& c, const Tiling& t, const StridedPlan& plan, unsigned blocks,
                         cudaStream_t stream) {
  const auto function = kernel<T, kBackward, kPacks, kElements, kShared>;
  const int tiles_a_block = strided_tiles_a_block(plan), threads = plan.warps * tiles_a_block * 32;
  size_t shared_bytes =
      static_cast<size_t>(tiles_a_block) * Desk<T, kBackward>::bytes(t.count(), plan.warps, plan.cluster);
  if constexpr (kShared) {
    shared_bytes += static_cast<size_t>(threads) * kPacks * kPackBytes * (kBackward ? 2 : 1);
    static Prepared prepared;
    const cudaError_t error =
        prepared.for_launch(c.device, reinterpret_cast<const void*>(function), static_cast<int>(shared_bytes));
    if (error != cudaSuccess) return error;
  }
  return launch_in_clusters(function, blocks, threads, shared_bytes, plan.cluster, stream, c, t);
}

template <typename T, bool kBackward, bool kElements>
cudaError_t launch(const Call& call, const Lattice& lattice, const StridedPlan& plan, cudaStream_t stream) {
  Call c = call;
  c.geometry = lattice.geometry;
  const int64_t steps = c.geometry.row.count;
  const auto at_pack = [](const void* p) { return reinterpret_cast<uintptr_t>(p) % kPackBytes == 0; };
  // Units of neighbouring rows start at multiples of a unit's denominators, where these are neighbours.
  const bool packed = lattice.denominator_step == 1 && at_pack(c.denominator) && at_pack(c.grad_denominator);
  const Tiling t{lattice.denominator_step,
                 lattice.columns,
                 plan.lanes,
                 1,
                 plan.width,
                 plan.warps,
                 static_cast<int>(ceil_div(steps, plan.cluster)),
                 lattice.along,
                 packed};
  const unsigned blocks = static_cast<unsigned>(strided_grid(c.geometry.rows.count, plan));
  cudaError_t error = cudaErrorInvalidValue;
  const auto tiles = [&](auto shared) {
    constexpr bool kShared = decltype(shared)::value;
    constexpr int kPacks = strided_cells(kBackward, kElements ? sizeof(T) : kPackBytes, sizeof(T), kShared);
    if (!plan.whole && plan.packs == kPacks && plan.shared == kShared) {
      error = launch_tiles<T, kBackward, kPacks, kElements, kShared>(c, t, plan, blocks, stream);
    }
  };
  const auto whole = [&](auto packs) {
    constexpr int kSteps = decltype(packs)::value;
    if (plan.whole && plan.packs == kSteps)
      error = launch_columns<T, kBackward, kSteps, kElements>(c, t, blocks, stream);
  };
  using std::integral_constant;
  tiles(std::false_type{});
  if constexpr (!kElements && sizeof(T) > 2) tiles(std::true_type{});
  if constexpr (kElements) {
    whole(integral_constant<int, 3>{});
    whole(integral_constant<int, kBackward ? 8 : 16>{});
  } else {
    whole(integral_constant<int, 2>{});
    whole(integral_constant<int, 4>{});
    whole(integral_constant<int, 8>{});
    if constexpr (!kBackward) whole(integral_constant<int, 16>{});
  }
  return error;
}

}  // namespace strided_kernel

template <DType D>
cudaError_t strided(const Call& call, const StridedPlan& plan, cudaStream_t stream) {
  using T = typename ElementOf<D>::type;
  using strided_kernel::launch;
  const Lattice lattice = lattice_of(call, kPackBytes);
  if (lattice.unit == Unit::kElement) {
    return call.grad == nullptr ? launch<T, false, true>(call, lattice, plan, stream)
                                : launch<T, true, true>(call, lattice, plan, stream);
  }
  return call.grad == nullptr ? launch<T, false, false>(call, lattice, plan, stream)
                              : launch<T, true, false>(call, lattice, plan, stream);
}

}  // namespace l1norm::cuda
