// The strided relay, instantiated for one dtype by each strided_relay_*.cu.
#pragma once

#include "../cells.cuh"
#include "../jobs.cuh"
#include "../launch.h"
#include "../skewed.cuh"
#include "strided_relay.h"

namespace l1norm::cuda {
namespace strided_relay_kernel {

// What tiles are besides their Tiling.
struct Bands {
  int parts;   // of a tile
  int beside;  // tiles whose parts follow each other part by part, as memory does: a row to the order of blocks
  int adders;  // blocks that add up a tile's parts, some columns each
  int period;  // rows that columns of a tile are in turn, or 0 where each is one of its own
};

// What a task is of those.
struct BandTask {
  Job job;
  unsigned tile;
  unsigned part;  // or the adder's number

  __device__ __forceinline__ BandTask(const Task& task, const Bands& bands) : job(task.job) {
    const unsigned beside = static_cast<unsigned>(bands.beside), adders = static_cast<unsigned>(bands.adders);
    const bool adds = job == Job::kTotal;
    const unsigned at = adds ? task.chunk / adders : task.chunk % beside;
    part = adds ? task.chunk - at * adders : task.chunk / beside;
    tile = task.row * beside + at;
  }
};

// The rows that columns of a tile are.
struct Columns {
  const Tiling& t;
  const Bands& bands;
  const Walk& units;

  // Where a column's divisor is, or -1 where there is no such column.
  __device__ __forceinline__ int64_t denominator(unsigned tile, int column) const {
    const int64_t first_unit = static_cast<int64_t>(tile) * t.width;
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

// A tile's parts of the columns that are the adder's: as many threads a column as are left of the block's. The sum is
// the first one's, who calls done(column, sum).
template <typename Done>
__device__ __forceinline__ void add_parts(const double2* parts, int count, int all, int adders, int adder,
                                          double2* mine, const Done& done) {
  const int across = all / adders, threads = static_cast<int>(blockDim.x), thread = static_cast<int>(threadIdx.x);
  const int depth = threads / across, member = thread / across, at = adder * across + thread % across;
  Sum sum;
  if (member < depth) {
    sum = await_all(parts + at, static_cast<int64_t>(member) * all, static_cast<int64_t>(count) * all,
                    static_cast<int64_t>(depth) * all);
  }
#pragma unroll 1
  for (int half = depth / 2; half > 0; half /= 2) {
    if (member >= half && member < depth) mine[thread] = make_double2(sum.hi, sum.lo);
    __syncthreads();
    if (member < half) {
      const double2 other = mine[thread + half * across];
      sum = sum + Sum{other.x, other.y};
    }
    __syncthreads();
  }
  done(member == 0, at, sum);
}

// One block a multiprocessor where halves go one by one: ptxas takes 64 registers by itself, and spills.
template <typename T, bool kBackward, bool kElements>
__global__ void __launch_bounds__(kStridedRelayThreads, kElements ? 1 : 0)
    kernel(const __grid_constant__ Call c, const __grid_constant__ Tiling t, const __grid_constant__ Bands bands,
           const __grid_constant__ Board board, const __grid_constant__ Order order) {
  constexpr int kSteps = kElements ? kPackBytes / static_cast<int>(sizeof(T)) : 1;
  constexpr int kPacks = kStridedRelayPacks<kBackward, kSteps, sizeof(T)>;
  constexpr bool kAcross = !kElements || sizeof(T) == 2;  // a warp has all elements side by side, but of halves
  using First = HeldCells<T, kBackward, kPacks, kElements, false, Access::kFirst>;
  using Last = HeldCells<T, kBackward, kPacks, kElements, false, Access::kLast>;
  const BandTask task(task_of(blockIdx.x, order), bands);
  const Walk &units = c.geometry.rows, &steps = c.geometry.row;
  const Columns columns{t, bands, units};
  const unsigned tile = task.tile, part = task.part;
  double2* const parts = board.parts + static_cast<size_t>(tile) * bands.parts * t.count();
  double2* const totals = board.totals + static_cast<size_t>(tile) * t.count();
  const auto make_place = [&] { return Place(t, units, thread_anew(), tile, kAcross); };
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
    for (int k = place.thread; k < t.count(); k += t.tile_threads()) {
      if constexpr (kBackward) {
        const int64_t denominator = columns.denominator(tile, k);
        if (denominator < 0) continue;
        const GradientScale scale = RowDivisor<T>(c, denominator).scale(c);
        desk.results[k] = Slope<T>(make_gradient<Wide<T>>(await(totals + k), scale));
      } else {
        const Sum sum = await(totals + k);
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
    extern __shared__ uint4 memory[];
    double2* const mine = reinterpret_cast<double2*>(memory);
    add_parts(parts, bands.parts, t.count(), bands.adders, static_cast<int>(part), mine,
              [&](bool first, int at, Sum sum) {
                if (bands.period != 0) {
                  if (first) mine[at] = make_double2(sum.hi, sum.lo);
                  __syncthreads();
                  if (first) sum = columns.row(at, mine);
                }
                if (!first) return;
                publish(totals + at, sum);
                if (kBackward || c.denominator == nullptr || !columns.is_first(at)) return;
                const int64_t to = columns.denominator(tile, at);
                if (to >= 0) write_denominator<T>(c, to, sum);
              });
  }
}

template <typename T, bool kBackward>
__global__ void __launch_bounds__(kStridedRelayThreads)
    skewed_kernel(const __grid_constant__ Call c, const __grid_constant__ Skewing s,
                  const __grid_constant__ Bands bands, const __grid_constant__ Board board,
                  const __grid_constant__ Order order) {
  constexpr int kPacks = kStridedRelayPacks<kBackward, 1, sizeof(T)>, kBefore = kSectorElements<T>;
  constexpr int kPack = kPackBytes / static_cast<int>(sizeof(T));
  using First = Skewed<T, kBackward, kPacks, Access::kFirst>;
  using Last = Skewed<T, kBackward, kPacks, Access::kLast>;
  extern __shared__ uint4 memory[];
  double2* const mine = reinterpret_cast<double2*>(memory);
  const BandTask task(task_of(blockIdx.x, order), bands);
  const SkewedTile<T> tile(c, s, task.tile, task.part);
  double2* const parts = board.parts + static_cast<size_t>(task.tile) * bands.parts * s.width;
  double2* const totals = board.totals + static_cast<size_t>(task.tile) * s.width;
  const int threads = static_cast<int>(blockDim.x), thread = static_cast<int>(threadIdx.x);
  if (task.job == Job::kDivide) {
    Last held;
    held.load(c, s, tile, SkewedPlace<T>(c, s, tile, true));
    // Of this tile's columns, and of those at the end of the tile before, which are divided here in some steps.
    auto* const results = reinterpret_cast<typename Last::Result*>(mine + s.width + kBefore);
    for (int k = thread; k < s.width + kBefore; k += threads) {
      const int64_t denominator = tile.denominator(c, s, k - kBefore);
      if (denominator < 0) continue;
      const Sum sum = await(totals + k - kBefore);
      if constexpr (kBackward) {
        results[k] = Slope<T>(make_gradient<Wide<T>>(sum, RowDivisor<T>(c, denominator).scale(c)));
      } else {
        results[k] = Quotient<T>(sum, c.count, c.eps);
        mine[k] = make_double2(sum.hi, sum.lo);
      }
    }
    __syncthreads();
    held.finish(c, tile, SkewedPlace<T>(c, s, tile, true), results, mine);
  } else if (task.job == Job::kSum) {
    First held;
    held.load(c, s, tile, SkewedPlace<T>(c, s, tile, false));
    held.hand_in(c, s, tile, SkewedPlace<T>(c, s, tile, false), mine);
    __syncthreads();
    double2* const to = parts + static_cast<size_t>(task.part) * s.width;
    for (int k = thread; k < s.width; k += threads) {
      Sum sum;
      for (int warp = 0; warp < s.warps; ++warp) {
        const double2 part = mine[warp * s.lanes * kPack + k + tile.shift(c, warp)];
        sum = sum + Sum{part.x, part.y};
      }
      publish(to + k, sum);
    }
  } else if (task.job == Job::kTotal) {
    add_parts(parts, bands.parts, s.width, bands.adders, static_cast<int>(task.part), mine,
              [&](bool first, int at, const Sum& sum) {
                if (!first) return;
                publish(totals + at, sum);
                if (kBackward || c.denominator == nullptr) return;
                const int64_t to = tile.denominator(c, s, at);
                if (to >= 0) write_denominator<T>(c, to, sum);
              });
  }
}

inline Order order_of(const StridedRelayPlan& plan) {
  const auto beside = static_cast<unsigned>(plan.beside);
  return {static_cast<unsigned>(plan.tiles) / beside, static_cast<unsigned>(plan.parts) * beside,
          static_cast<unsigned>(plan.adders) * beside, static_cast<unsigned>(plan.ahead), plan.turns_back};
}

// Elements from an operand's first one to past its last one.
inline Offsets extent_of(const Geometry& g) {
  Offsets extent{1, 1, 1, 1};
  for (const Walk* walk : {&g.rows, &g.row}) {
    for (int d = 0; d < walk->dims; ++d) {
      extent.input += (walk->size[d] - 1) * walk->stride[d].input;
      extent.grad += (walk->size[d] - 1) * walk->stride[d].grad;
      extent.output += (walk->size[d] - 1) * walk->stride[d].output;
    }
  }
  return extent;
}

// columns: of a tile, with a sum each; period: as in Bands.
template <typename Shape>
cudaError_t launch_bands(void (*function)(Call, Shape, Bands, Board, Order), Prepared& prepared, const Call& c,
                         const Shape& shape, const StridedRelayPlan& plan, int columns, int period, size_t shared,
                         void* scratch, cudaStream_t stream) {
  const int threads = plan.warps * plan.across * 32;
  shared = std::max(shared, static_cast<size_t>(threads) * sizeof(double2));
  cudaError_t error = prepared.for_launch(c.device, reinterpret_cast<const void*>(function), static_cast<int>(shared));
  if (error != cudaSuccess) return error;
  error = cudaMemsetAsync(scratch, kUnset, static_cast<size_t>(plan.scratch_bytes), stream);
  if (error != cudaSuccess) return error;
  const size_t sums = static_cast<size_t>(plan.tiles) * static_cast<size_t>(plan.parts) * static_cast<size_t>(columns);
  const Board board{static_cast<double2*>(scratch), static_cast<double2*>(scratch) + sums};
  const Bands bands{plan.parts, plan.beside, plan.adders, period};
  const Order order = order_of(plan);
  const unsigned blocks = 2 * order.rows * order.slots();
  function<<<blocks, static_cast<unsigned>(threads), shared, stream>>>(c, shape, bands, board, order);
  return cudaGetLastError();
}

template <typename T, bool kBackward>
cudaError_t launch_skewed(const Call& call, const Lattice& lattice, const StridedRelayPlan& plan, void* scratch,
                          cudaStream_t stream) {
  static Prepared prepared;
  Call c = call;
  c.geometry = lattice.geometry;
  const size_t columns = static_cast<size_t>(plan.width) + kSectorElements<T>;
  const size_t shared =
      std::max(columns * (sizeof(double2) + sizeof(typename Skewed<T, kBackward, 1, Access::kLast>::Result)),
               static_cast<size_t>(plan.warps * plan.lanes) * (kPackBytes / sizeof(T)) * sizeof(double2));
  const int64_t outer = c.geometry.rows.count / lattice.inner;
  const Skewing s{lattice.inner,
                  static_cast<unsigned>(plan.tiles / outer),
                  extent_of(c.geometry),
                  plan.lanes,
                  plan.warps,
                  plan.width,
                  static_cast<int>(ceil_div(c.geometry.row.count, plan.parts))};
  return launch_bands(skewed_kernel<T, kBackward>, prepared, c, s, plan, plan.width, 0, shared, scratch, stream);
}

template <typename T, bool kBackward, bool kElements>
cudaError_t launch(const Call& call, const Lattice& lattice, const StridedRelayPlan& plan, void* scratch,
                   cudaStream_t stream) {
  static Prepared prepared;
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
  const int period = plan.folds ? static_cast<int>(lattice.inner * lattice.columns / lattice.fold) : 0;
  return launch_bands(kernel<T, kBackward, kElements>, prepared, c, t, plan, t.count(), period,
                      Desk<T, kBackward>::bytes(t.count(), plan.warps, 1), scratch, stream);
}

}  // namespace strided_relay_kernel

template <DType D>
cudaError_t strided_relay(const Call& call, const StridedRelayPlan& plan, void* scratch, cudaStream_t stream) {
  using T = typename ElementOf<D>::type;
  using strided_relay_kernel::launch;
  using strided_relay_kernel::launch_skewed;
  Lattice lattice = lattice_of(call, kPackBytes);
  if (plan.folds) lattice = folded(lattice, kPackBytes / element_size(call.dtype));
  if (plan.skewed) {
    return call.grad == nullptr ? launch_skewed<T, false>(call, lattice, plan, scratch, stream)
                                : launch_skewed<T, true>(call, lattice, plan, scratch, stream);
  }
  if (lattice.unit == Unit::kElement) {
    return call.grad == nullptr ? launch<T, false, true>(call, lattice, plan, scratch, stream)
                                : launch<T, true, true>(call, lattice, plan, scratch, stream);
  }
  return call.grad == nullptr ? launch<T, false, false>(call, lattice, plan, scratch, stream)
                              : launch<T, true, false>(call, lattice, plan, scratch, stream);
}

}  // namespace l1norm::cuda
