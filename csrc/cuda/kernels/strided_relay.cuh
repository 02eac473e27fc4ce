// The strided relay, instantiated for one dtype by each strided_relay_*.cu.
#pragma once

#include "../held_cells.cuh"
#include "../interleaved.cuh"
#include "../jobs.cuh"
#include "../launch.h"
#include "../skewed.cuh"
#include "../unset.cuh"
#include "strided_relay.h"

namespace l1norm::cuda {
namespace strided_relay_kernel {

// What tiles are besides their Tiling.
struct Bands {
  int parts;   // of a tile
  int beside;  // tiles whose parts follow each other part by part, as memory does: a row to the order of blocks
  int adders;  // blocks that add up a tile's parts, some columns each
  Divider by_beside, by_adders;

  explicit Bands(const StridedRelayPlan& plan)
      : parts(plan.parts),
        beside(plan.beside),
        adders(plan.adders),
        by_beside(static_cast<uint32_t>(beside)),
        by_adders(static_cast<uint32_t>(adders)) {}
};

// What a task is of those.
struct BandTask {
  Job job;
  unsigned tile;
  unsigned part;  // or the adder's number

  __device__ __forceinline__ BandTask(const Task& task, const Bands& bands) : job(task.job) {
    const unsigned beside = static_cast<unsigned>(bands.beside), adders = static_cast<unsigned>(bands.adders);
    const bool adds = job == Job::kTotal;
    const unsigned group = (adds ? bands.by_adders : bands.by_beside).quotient(task.chunk);
    const unsigned member = task.chunk - group * (adds ? adders : beside);
    part = adds ? member : group;
    tile = task.row * beside + (adds ? group : member);
  }
};

// A tile's parts of the columns that are the adder's: as many threads a column as are left of the block's; mine: room
// for a sum a thread. Calls done(column, sum) for each.
template <typename Done>
__device__ __forceinline__ void add_parts(const double2* parts, int count, int all, int adders, int adder,
                                          double2* mine, const Done& done) {
  const int across = (all + adders - 1) / adders, thread = static_cast<int>(threadIdx.x);
  const int depth = static_cast<int>(blockDim.x) / across, member = thread / across;
  const int at = adder * across + thread % across;
  Sum sum;
  if (member < depth && at < all) {
    sum = await_all(parts + at, static_cast<int64_t>(member) * all, static_cast<int64_t>(count) * all,
                    static_cast<int64_t>(depth) * all);
  }
  __syncwarp();
  sum = add_members(sum, depth, across, mine);
  if (member == 0 && at < all) done(at, sum);
}

// Calls done(result, column, offset of its denominator, sum of its row) for what a tile divides by; mine: room for a
// sum a thread.
template <typename Tile, typename Done>
__device__ __forceinline__ void each_result(const Tile& tile, const double2* totals, double2* mine, const Done& done) {
  const int all = tile.results(), thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  if (!tile.is_folded()) {
    for (int k = thread; k < all; k += threads) {
      const int column = tile.column_of(k);
      const int64_t denominator = tile.denominator(column);
      if (denominator >= 0) done(k, column, denominator, await(totals + column));
    }
    __syncwarp();
    return;
  }
  // Blocks have threads for all results, and for each as many as are left.
  const int depth = threads / all, member = thread / all, k = thread - member * all;
  const int column = tile.column_of(k);
  const int64_t denominator = tile.denominator(column);
  Sum sum;
  if (member < depth && denominator >= 0) sum = tile.await_columns(totals, column, member, depth);
  __syncwarp();
  sum = add_members(sum, depth, all, mine);
  if (member == 0 && denominator >= 0) done(k, column, denominator, sum);
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
  const unsigned tile = task.tile, part = task.part;
  const int64_t first_unit = static_cast<int64_t>(tile) * t.width;
  double2* const parts = board.parts + static_cast<size_t>(tile) * bands.parts * t.count();
  double2* const totals = board.totals + static_cast<size_t>(tile) * t.count();
  const auto make_place = [&] { return Place(t, units, thread_anew(), tile, kAcross); };
  // A block of its own, as which it has a part of the steps.
  Cluster alone(false);
  await_stream();
  if (task.job == Job::kDivide) {
    Last held;
    {
      const Place place = make_place();
      held.load(c, t, place.offsets(t, units), place.way(t, steps, static_cast<int>(part)));
    }
    const Place place = make_place();
    const Desk<T, kBackward> desk(place, t, 1);
    for (int k = place.thread; k < t.count(); k += t.tile_threads()) {
      if constexpr (kBackward) {
        const int64_t denominator = denominator_of(t, units, first_unit, k);
        if (denominator < 0) continue;
        const GradientScale scale = RowDivisor<T>(c, denominator).scale(c);
        desk.results[k] = Slope<T>(make_gradient<Wide<T>>(await(totals + k), scale));
      } else {
        const Sum sum = await(totals + k);
        desk.results[k] = Quotient<T>(sum, c.count, c.eps);
        desk.parts[k] = both_words(sum);
      }
    }
    __syncwarp();
    __syncthreads();
    alone.rank = static_cast<int>(part);
    held.finish(c, t, alone, make_place);
  } else if (task.job == Job::kSum) {
    First held;
    {
      const Place place = make_place();
      held.load(c, t, place.offsets(t, units), place.way(t, steps, static_cast<int>(part)));
    }
    const Place place = make_place();
    const Desk<T, kBackward> desk(place, t, 1);
    held.hand_in(c, t, place, 1, make_place);
    double2* const mine = parts + static_cast<size_t>(part) * t.count();
    add_up<T, kBackward>(t, place, desk, alone, [&](int column, const Sum& sum) { publish(mine + column, sum); });
  } else if (task.job == Job::kTotal) {
    extern __shared__ __align__(kSharedLine) uint4 memory[];
    add_parts(parts, bands.parts, t.count(), bands.adders, static_cast<int>(part), reinterpret_cast<double2*>(memory),
              [&](int at, const Sum& sum) {
                publish(totals + at, sum);
                if (kBackward || c.denominator == nullptr) return;
                const int64_t to = denominator_of(t, units, first_unit, at);
                if (to >= 0) write_denominator<T>(c, to, sum);
              });
  }
}

// Packs that begin at any place of a row, in tiles of one way or another.
template <typename T, bool kBackward, typename Tiles>
__global__ void __launch_bounds__(kStridedRelayThreads)
    loose_kernel(const __grid_constant__ Call c, const __grid_constant__ Tiles s, const __grid_constant__ Bands bands,
                 const __grid_constant__ Board board, const __grid_constant__ Order order) {
  constexpr int kPacks = kLoosePacks<kBackward, sizeof(T)>;
  using First = Loose<T, kBackward, kPacks, Access::kFirst>;
  using Last = Loose<T, kBackward, kPacks, Access::kLast>;
  using Tile = typename Tiles::template Tile<T>;
  using Place = typename Tile::Place;
  extern __shared__ __align__(kSharedLine) uint4 memory[];
  double2* const sums = reinterpret_cast<double2*>(memory);
  const BandTask task(task_of(blockIdx.x, order), bands);
  const Tile tile(c, s, task.tile, task.part);
  double2* const parts = board.parts + static_cast<size_t>(task.tile) * bands.parts * tile.width();
  double2* const totals = board.totals + static_cast<size_t>(task.tile) * tile.width();
  await_stream();
  if (task.job == Job::kDivide) {
    Last held;
    held.load(c, Place(tile, true));
    const typename Last::Results results(sums + tile.results());
    each_result(tile, totals, sums, [&](int k, int column, int64_t denominator, const Sum& sum) {
      if constexpr (kBackward) {
        results[k] = Slope<T>(make_gradient<Wide<T>>(sum, RowDivisor<T>(c, denominator).scale(c)));
      } else {
        results[k] = Quotient<T>(sum, c.count, c.eps);
        sums[k] = both_words(sum);
        const bool writes = c.denominator != nullptr && tile.is_folded() && task.part == 0 && tile.leads(column);
        if (writes) write_denominator<T>(c, denominator, sum);
      }
    });
    __syncthreads();
    held.finish(c, Place(tile, true), results, sums);
  } else if (task.job == Job::kSum) {
    First held;
    held.load(c, Place(tile, false));
    const Parts<T> handed(memory);
    held.hand_in(c, Place(tile, false), handed);
    __syncthreads();
    double2* const to = parts + static_cast<size_t>(task.part) * tile.width();
    tile.each_row(handed, sums + Parts<T>::bytes(tile.slots()) / sizeof(double2),
                  [&](int row, const Sum& sum) { publish(to + row, sum); });
  } else if (task.job == Job::kTotal) {
    add_parts(parts, bands.parts, tile.width(), bands.adders, static_cast<int>(task.part), sums,
              [&](int column, const Sum& sum) {
                publish(totals + column, sum);
                if (kBackward || c.denominator == nullptr || tile.is_folded()) return;
                const int64_t to = tile.denominator(column);
                if (to >= 0) write_denominator<T>(c, to, sum);
              });
  }
}

inline Order order_of(const StridedRelayPlan& plan) {
  const auto beside = static_cast<unsigned>(plan.beside);
  return Order(static_cast<unsigned>(plan.tiles) / beside, static_cast<unsigned>(plan.parts) * beside,
               static_cast<unsigned>(plan.adders) * beside, static_cast<unsigned>(plan.ahead), plan.turns_back);
}

// columns: of a tile, with a sum each.
template <typename Shape>
cudaError_t launch_bands(void (*function)(Call, Shape, Bands, Board, Order), Prepared& prepared, const Call& c,
                         const Shape& shape, const StridedRelayPlan& plan, int columns, size_t shared, void* scratch,
                         cudaStream_t stream) {
  const int threads = plan.warps * plan.across * 32;
  shared = std::max(shared, static_cast<size_t>(threads) * sizeof(double2));
  cudaError_t error = prepared.for_launch(c.device, reinterpret_cast<const void*>(function), static_cast<int>(shared));
  if (error != cudaSuccess) return error;
  error = unset_scratch(c, scratch, static_cast<size_t>(plan.scratch_bytes), stream);
  if (error != cudaSuccess) return error;
  const size_t sums = static_cast<size_t>(plan.tiles) * static_cast<size_t>(plan.parts) * static_cast<size_t>(columns);
  const Board board = board_in(scratch, sums);
  const Bands bands(plan);
  const Order order = order_of(plan);
  return launch_in_stream(c, function, order.blocks(), threads, shared, 1, stream, c, shape, bands, board, order);
}

// slots: what threads hand in; results: of columns, some of which may stand there twice.
template <typename T, bool kBackward, typename Tiles>
cudaError_t launch_loose(const Call& c, const Tiles& tiles, const StridedRelayPlan& plan, int slots, int results,
                         void* scratch, cudaStream_t stream) {
  using Results = LooseResults<T, kBackward>;
  static Prepared prepared;
  const size_t threads = static_cast<size_t>(plan.warps) * 32;
  const size_t shared = std::max(static_cast<size_t>(results) * sizeof(double2) + Results::bytes(results),
                                 Parts<T>::bytes(slots) + threads * sizeof(double2));
  return launch_bands(loose_kernel<T, kBackward, Tiles>, prepared, c, tiles, plan, plan.width, shared, scratch, stream);
}

template <typename T, bool kBackward>
cudaError_t launch_skewed(const Call& call, const Lattice& lattice, const StridedRelayPlan& plan, void* scratch,
                          cudaStream_t stream) {
  Call c = call;
  c.geometry = lattice.geometry;
  const Offsets extent = extent_of(c.geometry);
  Rounds rounds{lattice.inner};
  if (!lattice.skewed) {
    rounds = lattice.rounds;
    c.geometry.row.count = rounds.repeats;  // the outermost loop's steps
  }
  const int64_t outer = c.geometry.rows.count / rounds.columns();
  const unsigned across = static_cast<unsigned>(plan.tiles / outer);
  const Skewing s{rounds.period,     across,
                  Divider(across),   extent,
                  plan.lanes,        plan.warps,
                  plan.width,        static_cast<int>(ceil_div(c.geometry.row.count, plan.parts)),
                  Turns(plan.width), Divider(static_cast<uint32_t>(plan.warps * (32 / plan.lanes))),
                  rounds.columns(),  Folds(rounds)};
  return launch_loose<T, kBackward>(c, s, plan, plan.warps * plan.lanes * static_cast<int>(kPackBytes / sizeof(T)),
                                    plan.width + kSectorElements<T>, scratch, stream);
}

template <typename T, bool kBackward>
cudaError_t launch_interleaved(const Call& call, const Lattice& lattice, const StridedRelayPlan& plan, void* scratch,
                               cudaStream_t stream) {
  constexpr int kPack = kPackBytes / static_cast<int>(sizeof(T));
  Call c = call;
  c.geometry = lattice.geometry;
  const Rounds& rounds = lattice.rounds;
  const int threads = plan.warps * 32, units = static_cast<int>(interleaved_units(rounds.period, kPack, threads));
  const Interleaving s(rounds, units, kLoosePacks<kBackward, sizeof(T)>, plan.parts / static_cast<int>(rounds.runs));
  return launch_loose<T, kBackward>(c, s, plan, units * kPack, s.turns.columns + kPack, scratch, stream);
}

template <typename T, bool kBackward, bool kElements>
cudaError_t launch(const Call& call, const Lattice& lattice, const StridedRelayPlan& plan, void* scratch,
                   cudaStream_t stream) {
  static Prepared prepared;
  Call c = call;
  c.geometry = lattice.geometry;
  const Tiling t(lattice, plan.lanes, plan.across, plan.width, plan.warps,
                 static_cast<int>(ceil_div(c.geometry.row.count, plan.parts)), 0, false);
  return launch_bands(kernel<T, kBackward, kElements>, prepared, c, t, plan, t.count(),
                      Desk<T, kBackward>::bytes(t.count(), plan.warps, 1), scratch, stream);
}

}  // namespace strided_relay_kernel

template <DType D>
cudaError_t strided_relay(const Call& call, const StridedRelayPlan& plan, void* scratch, cudaStream_t stream) {
  using T = typename ElementOf<D>::type;
  using strided_relay_kernel::launch;
  using strided_relay_kernel::launch_interleaved;
  using strided_relay_kernel::launch_skewed;
  const Lattice lattice = lattice_of(call, kPackBytes, !plan.interleaved);
  if (plan.interleaved) {
    return call.grad == nullptr ? launch_interleaved<T, false>(call, lattice, plan, scratch, stream)
                                : launch_interleaved<T, true>(call, lattice, plan, scratch, stream);
  }
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
