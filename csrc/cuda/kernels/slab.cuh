// The slab kernel, instantiated for each dtype by slab.cu.
#pragma once

#include "../early.cuh"
#include "../launch.h"
#include "../slab.cuh"
#include "slab.h"

namespace l1norm::cuda {
namespace slab_kernel {

template <typename T, bool kBackward>
__global__ void __launch_bounds__(kSlabThreads) kernel(const __grid_constant__ Call c, const Slabs s) {
  if constexpr (kHasClusters) {
    ask_ahead<kBackward>(c);
    const Cluster cluster;
    const unsigned slab_number = blockIdx.x >> log2_of(cluster.size);
    const bool many = cluster.size > 1;
    const int rows = s.rows.columns;
    if (many) cluster.expect((cluster.size - 1) * rows);
    const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
    Slab<T, kBackward> slab(c, s, slab_number, cluster);
    slab.start_barriers();
    await_stream();
    wait_for_turn(c.stagger, slab_number);
    slab.load();
    slab.clear_parts();
    if constexpr (kBackward) {
      for (int k = thread; k < rows; k += threads) slab.divisors[k] = RowDivisor<T>(c, slab.denominator(k));
    }
    __syncthreads();
    slab.add_up();
    if (many) {
      double2* const mine = slab.ranks + cluster.rank * rows;
      slab.each_row([&](int row, int member) {
        const Sum sum = slab.sum_of_block(row, member);
        if (row < rows && member == 0) mine[row] = both_words(sum);
      });
      cluster.wait();
      __syncthreads();
      for (int k = thread; k < rows * cluster.size; k += threads) {
        const int peer = s.rows.turn_of(k), row = s.rows.column_of(k);
        if (peer != cluster.rank) cluster.store(mine + row, peer, mine[row]);
      }
      cluster.await_sums();
    }
    slab.each_row([&](int row, int member) {
      Sum total;
      if (!many) total = slab.sum_of_block(row, member);
      if (row >= rows) return;
      if (many) {
        for (int rank = 0; rank < cluster.size; ++rank) {
          const double2 part = slab.ranks[rank * rows + row];
          total = total + Sum{part.x, part.y};
        }
      }
      if constexpr (kBackward) {
        slab.set_result(row, member, total, Slope<T>(read_gradient<T>(total, slab.divisors[row], c)));
      } else {
        slab.set_result(row, member, total, Quotient<T>(total, c.count, c.eps));
        if (c.denominator != nullptr && cluster.rank == 0 && member == 0) {
          write_denominator<T>(c, slab.denominator(row), total);
        }
      }
    });
    __syncthreads();
    slab.finish();
  }
}

template <typename T, bool kBackward>
cudaError_t launch(const Call& call, const SlabPlan& plan, cudaStream_t stream) {
  Call c = call;
  // Of elements, whatever packs they are in.
  const Lattice lattice = make_lattice(call.geometry, kPackBytes / sizeof(T), false, true);
  c.geometry = lattice.geometry;
  const Rounds slab = lattice.slab();
  const size_t shared_bytes = static_cast<size_t>(slab_bytes(slab, kBackward, sizeof(T), plan));
  const auto function = kernel<T, kBackward>;
  static Prepared prepared;
  const cudaError_t error =
      prepared.for_launch(c.device, reinterpret_cast<const void*>(function), static_cast<int>(shared_bytes));
  if (error != cudaSuccess) return error;
  const int64_t blocks = c.geometry.rows.count / slab.columns() * plan.cluster;
  return launch_in_stream(c, function, blocks, plan.threads, shared_bytes, plan.cluster, stream, c,
                          Slabs(slab, kBackward, sizeof(T), plan));
}

}  // namespace slab_kernel

template <DType D>
cudaError_t slab(const Call& call, const SlabPlan& plan, cudaStream_t stream) {
  using T = typename ElementOf<D>::type;
  if (call.grad == nullptr) return slab_kernel::launch<T, false>(call, plan, stream);
  if constexpr (D != DType::kDouble) return slab_kernel::launch<T, true>(call, plan, stream);
  return cudaErrorInvalidValue;
}

}  // namespace l1norm::cuda
