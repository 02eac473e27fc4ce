// The strided kernel, instantiated for one dtype by each strided_*.cu.
#pragma once

#include "../cells.cuh"
#include "strided.h"

namespace l1norm::cuda {
namespace strided_kernel {

template <typename T, bool kBackward, int kPacks, bool kElements>
__global__ void __launch_bounds__(strided_threads(kPacks), strided_blocks(kBackward || sizeof(T) == 2, kPacks))
    kernel(const __grid_constant__ Call c, const __grid_constant__ Tiling t) {
  using Held = HeldCells<T, kBackward, kPacks, kElements>;
  using Memory = typename Held::Memory;
  const Cluster cluster;
  cluster.arrive();
  const Walk &units = c.geometry.rows, &steps = c.geometry.row;
  const auto make_place = [&] { return Place(t, units, thread_anew(), cluster.size); };
  Held held;
  {
    const Place place = make_place();
    held.load(c, place.offsets(units), place.way(t, steps, cluster.rank));
  }
  {
    const Place place = make_place();
    const Memory desk(place, t, cluster.size);
    if constexpr (kBackward) {
      for (int k = place.thread; k < t.columns * t.lanes; k += t.warps * 32) {
        const int64_t from = denominator_of(t, units, place.first_unit, k);
        if (from >= 0) desk.denominators[k] = RowDivisor<T>(c, from);
      }
    }
    held.hand_in(c, t, place, desk);
  }
  const Place place = make_place();
  const Memory desk(place, t, cluster.size);
  add_up<T, kBackward>(t, place, desk, cluster, [&](int column, const Sum& total) {
    if constexpr (kBackward) {
      const GradientScale scale = desk.denominators[column].scale(c);
      desk.results[column] = Memory::result(make_gradient<Wide<T>>(total, scale));
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

template <typename T, bool kBackward, int kPacks, bool kElements>
cudaError_t launch(const Call& call, const Lattice& lattice, const StridedPlan& plan, cudaStream_t stream) {
  Call c = call;
  c.geometry = lattice.geometry;
  const Tiling t{lattice.denominator_step,
                 lattice.columns,
                 plan.lanes,
                 plan.width,
                 plan.warps,
                 static_cast<int>(ceil_div(c.geometry.row.count, plan.cluster)),
                 lattice.along};
  const int tiles_a_block = strided_tiles_a_block(plan);
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(strided_grid(c.geometry.rows.count, plan)));
  config.blockDim = dim3(static_cast<unsigned>(plan.warps * tiles_a_block * 32));
  config.dynamicSmemBytes =
      static_cast<size_t>(tiles_a_block) * Desk<T, kBackward>::bytes(t.columns * t.lanes, plan.warps, plan.cluster);
  config.stream = stream;
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = static_cast<unsigned>(plan.cluster);
  cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
  config.attrs = &cluster;
  config.numAttrs = plan.cluster > 1 ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel<T, kBackward, kPacks, kElements>, c, t);
}

template <typename T, bool kBackward, bool kElements>
cudaError_t launch(const Call& call, const Lattice& lattice, const StridedPlan& plan, cudaStream_t stream) {
  constexpr int kMany = many_cells(kBackward, kElements && sizeof(T) == 2);
  if (plan.packs == kFewCells) return launch<T, kBackward, kFewCells, kElements>(call, lattice, plan, stream);
  if (plan.packs == kMany) return launch<T, kBackward, kMany, kElements>(call, lattice, plan, stream);
  return cudaErrorInvalidValue;
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
