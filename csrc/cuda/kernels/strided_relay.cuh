// The strided relay, instantiated for one dtype by each strided_relay_*.cu.
#pragma once

#include "../cells.cuh"
#include "../jobs.cuh"
#include "../launch.h"
#include "strided_relay.h"

namespace l1norm::cuda {
namespace strided_relay_kernel {

// What tiles are besides their Tiling.
struct Bands {
  int parts;   // of a tile
  int adders;  // blocks that add up a tile's parts, some columns each
  int period;  // rows that columns of a tile are in turn, or 0 where each is one of its own
  int grain;   // elements at whose multiples in memory results begin: divided columns are shifted to those, or 1
};

// Elements of results that whole sectors and lines are of: those of a thread's steps all begin alike there.
template <typename T>
int grain_of(const Lattice& l, const StridedRelayPlan& plan) {
  const Walk &units = l.geometry.rows, &steps = l.geometry.row;
  if (l.unit != Unit::kElement || l.along || plan.lanes != 32 || plan.width != plan.lanes * plan.across ||
      units.dims != 1 || steps.dims != 1 || units.stride[0].output != 1) {
    return 1;
  }
  for (int bytes = kLineBytes; bytes >= 32; bytes /= 2) {
    const int64_t grain = bytes / static_cast<int64_t>(sizeof(T));
    if (grain <= 32 && plan.warps * steps.stride[0].output % grain == 0) return static_cast<int>(grain);
  }
  return 1;
}

// The rows that columns of a tile are.
struct Columns {
  const Tiling& t;
  const Bands& bands;
  const Walk& units;

  // Where a column's divisor is, or -1 where there is no such column.
  __device__ __forceinline__ int64_t denominator(unsigned tile, int column) const {
    const int64_t first_unit = static_cast<int64_t>(tile) * t.width;
    if (column < 0) {
      return tile == 0 || first_unit + column >= units.count ? -1 : offsets_of(units, first_unit + column).denominator;
    }
    if (bands.period == 0) return denominator_of(t, units, first_unit, column);
    const int unit = column % t.side(), k = column / t.side();
    if (unit >= t.width || first_unit >= units.count) return -1;
    return offsets_of(units, first_unit).denominator + (unit * t.columns + k) % bands.period * t.denominator_step;
  }

  // The sum of the row that a column is of, given those of the columns.
  __device__ __forceinline__ Sum row(int column, const double2* sums) const {
    const int unit = column % t.side(), k = column / t.side();
    Sum sum;
    for (int at = (unit * t.columns + k) % bands.period; at < t.width * t.columns; at += bands.period) {
      const double2 part = sums[at % t.columns * t.side() + at / t.columns];
      sum = sum + Sum{part.x, part.y};
    }
    return sum;
  }

  // Whether it is its row's first.
  __device__ __forceinline__ bool is_first(int column) const {
    return bands.period == 0 || column % t.side() * t.columns + column / t.side() < bands.period;
  }
};

// Adds up a tile's parts of the columns that are the adder's: as many threads a column as are left of the block's.
template <typename T, bool kBackward>
__device__ __forceinline__ void total(const Call& c, const Columns& columns, const double2* parts, double2* totals,
                                      unsigned tile, int adder) {
  extern __shared__ uint4 memory[];
  double2* const mine = reinterpret_cast<double2*>(memory);
  const int all = columns.t.count(), across = all / columns.bands.adders;
  const int threads = static_cast<int>(blockDim.x), thread = static_cast<int>(threadIdx.x), depth = threads / across;
  const int member = thread / across, at = adder * across + thread % across;
  Sum sum = await_all(parts + at, static_cast<int64_t>(member) * all, static_cast<int64_t>(columns.bands.parts) * all,
                      static_cast<int64_t>(depth) * all);
#pragma unroll 1
  for (int half = depth / 2; half > 0; half /= 2) {
    if (member >= half) mine[thread] = make_double2(sum.hi, sum.lo);
    __syncthreads();
    if (member < half) {
      const double2 other = mine[thread + half * across];
      sum = sum + Sum{other.x, other.y};
    }
    __syncthreads();
  }
  if (columns.bands.period != 0) {
    if (member == 0) mine[thread] = make_double2(sum.hi, sum.lo);
    __syncthreads();
    if (member == 0) sum = columns.row(at, mine);
  }
  if (member != 0) return;
  publish(totals + at, sum);
  if (kBackward || c.denominator == nullptr || !columns.is_first(at)) return;
  const int64_t to = columns.denominator(tile, at);
  if (to >= 0) write_denominator<T>(c, to, sum);
}

template <typename T, bool kBackward, bool kElements>
__global__ void __launch_bounds__(kStridedRelayThreads)
    kernel(const __grid_constant__ Call c, const __grid_constant__ Tiling t, const __grid_constant__ Bands bands,
           const __grid_constant__ Board board, const __grid_constant__ Order order) {
  constexpr int kSteps = kElements ? kPackBytes / static_cast<int>(sizeof(T)) : 1;
  constexpr int kPacks = kStridedRelayPacks<kBackward, kSteps>;
  using First = HeldCells<T, kBackward, kPacks, kElements, false, Access::kFirst>;
  using Last = HeldCells<T, kBackward, kPacks, kElements, false, Access::kLast>;
  const Task task = task_of(blockIdx.x, order);
  const Walk &units = c.geometry.rows, &steps = c.geometry.row;
  const Columns columns{t, bands, units};
  const unsigned tile = task.row, part = task.chunk;
  double2* const parts = board.parts + static_cast<size_t>(tile) * order.chunks * t.count();
  double2* const totals = board.totals + static_cast<size_t>(tile) * t.count();
  const bool shifts = kElements && task.job == Job::kDivide && bands.grain > 1;
  const auto make_place = [&] {
    Place place(t, units, thread_anew(), tile);
    if (shifts) {
      const int64_t step = static_cast<int64_t>(part) * t.part + place.step_warp;
      const auto at = static_cast<int64_t>(reinterpret_cast<uintptr_t>(c.output) / sizeof(T)) + place.first_unit +
                      step * steps.stride[0].output;
      const int shift = static_cast<int>(at & (bands.grain - 1));
      place.index = place.first_unit + place.unit - shift;
      place.unit += bands.grain - shift;
      place.exists = place.index >= 0 && place.index < units.count;
    }
    return place;
  };
  // A block of its own, as which it has a part of the steps.
  Cluster alone(false);
  if (task.job == Job::kDivide) {
    Last held;
    {
      const Place place = make_place();
      held.load(c, place.offsets(units), place.way(t, steps, static_cast<int>(part)));
    }
    const Place place = make_place();
    const Desk<T, kBackward> desk(place, t, 1);
    // With those of the tile before that shifted columns are of.
    const int before = shifts ? bands.grain : 0;
    for (int k = place.thread; k < t.count() + before; k += t.tile_threads()) {
      if (k < before && tile == 0) continue;
      const double2* const from = totals + k - before;
      if constexpr (kBackward) {
        const int64_t denominator = columns.denominator(tile, k - before);
        if (denominator < 0) continue;
        const GradientScale scale = RowDivisor<T>(c, denominator).scale(c);
        desk.results[k] = Slope<T>(make_gradient<Wide<T>>(await(from), scale));
      } else {
        const Sum sum = await(from);
        desk.results[k] = Quotient<T>(sum, c.count, c.eps);
        desk.parts[k] = make_double2(sum.hi, sum.lo);
      }
    }
    __syncthreads();
    alone.rank = static_cast<int>(part);
    held.finish(c, t, alone, make_place);
  } else if (task.job == Job::kSum) {
    First held;
    {
      const Place place = make_place();
      held.load(c, place.offsets(units), place.way(t, steps, static_cast<int>(part)));
    }
    const Place place = make_place();
    const Desk<T, kBackward> desk(place, t, 1);
    held.hand_in(c, t, place, desk);
    double2* const mine = parts + static_cast<size_t>(part) * t.count();
    add_up<T, kBackward>(t, place, desk, alone, [&](int column, const Sum& sum) { publish(mine + column, sum); });
  } else if (task.job == Job::kTotal) {
    total<T, kBackward>(c, columns, parts, totals, tile, static_cast<int>(part));
  }
}

template <typename T, bool kBackward, bool kElements>
cudaError_t launch(const Call& call, const Lattice& lattice, const StridedRelayPlan& plan, void* scratch,
                   cudaStream_t stream) {
  const auto function = kernel<T, kBackward, kElements>;
  const int threads = plan.warps * plan.across * 32, columns = lattice.columns * plan.lanes * plan.across;
  const int grain = grain_of<T>(lattice, plan);
  const size_t desk = Desk<T, kBackward>::bytes(columns, plan.warps, 1) +
                      static_cast<size_t>(grain) * sizeof(typename Desk<T, kBackward>::Result);
  const size_t shared = std::max(desk, static_cast<size_t>(threads) * sizeof(double2));
  static Prepared prepared;
  cudaError_t error =
      prepared.for_launch(call.device, reinterpret_cast<const void*>(function), static_cast<int>(shared));
  if (error != cudaSuccess) return error;
  error = cudaMemsetAsync(scratch, kUnset, static_cast<size_t>(plan.scratch_bytes), stream);
  if (error != cudaSuccess) return error;
  Call c = call;
  c.geometry = lattice.geometry;
  const Tiling t{lattice.denominator_step,
                 lattice.columns,
                 plan.lanes,
                 plan.across,
                 plan.width,
                 plan.warps,
                 static_cast<int>(ceil_div(c.geometry.row.count, plan.parts)),
                 lattice.along,
                 false};
  const size_t sums = static_cast<size_t>(plan.tiles) * static_cast<size_t>(plan.parts * columns);
  const Board board{static_cast<double2*>(scratch), static_cast<double2*>(scratch) + sums};
  const Bands bands{plan.parts, plan.adders,
                    plan.folds ? static_cast<int>(lattice.inner * lattice.columns / lattice.fold) : 0, grain};
  const Order order{static_cast<unsigned>(plan.tiles), static_cast<unsigned>(plan.parts),
                    static_cast<unsigned>(plan.adders), static_cast<unsigned>(plan.ahead), plan.turns_back};
  const unsigned blocks = 2 * order.rows * order.slots();
  function<<<blocks, static_cast<unsigned>(threads), shared, stream>>>(c, t, bands, board, order);
  return cudaGetLastError();
}

}  // namespace strided_relay_kernel

template <DType D>
cudaError_t strided_relay(const Call& call, const StridedRelayPlan& plan, void* scratch, cudaStream_t stream) {
  using T = typename ElementOf<D>::type;
  using strided_relay_kernel::launch;
  Lattice lattice = lattice_of(call, kPackBytes);
  if (plan.folds) lattice = folded(lattice, kPackBytes / element_size(call.dtype));
  if (lattice.unit == Unit::kElement) {
    return call.grad == nullptr ? launch<T, false, true>(call, lattice, plan, scratch, stream)
                                : launch<T, true, true>(call, lattice, plan, scratch, stream);
  }
  return call.grad == nullptr ? launch<T, false, false>(call, lattice, plan, scratch, stream)
                              : launch<T, true, false>(call, lattice, plan, scratch, stream);
}

}  // namespace l1norm::cuda
