// The strided kernel, instantiated for one dtype by each strided_*.cu.
#pragma once

#include "../column_gradients.cuh"
#include "../column_quotients.cuh"
#include "../early.cuh"
#include "../held_cells.cuh"
#include "../interleaved.cuh"
#include "../launch.h"
#include "../skewed.cuh"
#include "strided.h"

namespace l1norm::cuda {
namespace strided_kernel {

// The cluster's number; of a power of two of blocks.
__device__ __forceinline__ unsigned group_of(const Cluster& cluster) { return blockIdx.x >> log2_of(cluster.size); }

// Where cells in shared memory follow the block's desks.
template <typename T, bool kBackward>
__device__ __forceinline__ uint4* strided_places(const Tiling& t, int cluster) {
  extern __shared__ __align__(kSharedLine) uint4 memory[];
  const int tiles = t.tile_a_warp() ? static_cast<int>(blockDim.x) / 32 : 1;
  return memory + tiles * Desk<T, kBackward>::bytes(t.count(), t.warps, cluster) / sizeof(uint4);
}

template <typename T, bool kBackward, int kPacks, bool kElements, bool kShared>
__global__ void __launch_bounds__(strided_most_threads(kPacks), strided_blocks(kBackward, kPacks))
    kernel(const __grid_constant__ Call c, const __grid_constant__ Tiling t) {
  using Held = HeldCells<T, kBackward, kPacks, kElements, kShared>;
  using Memory = typename Held::Memory;
  constexpr bool kAcross = has_narrow_warps(sizeof(T), kElements);
  ask_ahead<kBackward>(c);
  const Cluster cluster;
  if (cluster.size > 1) cluster.expect(cluster.size * t.count());
  const Walk &units = c.geometry.rows, &steps = c.geometry.row;
  const auto make_place = [&] { return Place(t, units, thread_anew(), group_of(cluster), kAcross); };
  Held held(t, strided_places<T, kBackward>(t, cluster.size));
  await_stream();
  wait_for_turn(c.stagger, group_of(cluster));
  // A thread a column, of which a warp's side has 32 at the most.
  RowDivisor<T> divisor{};
  {
    const Place place = make_place();
    if (kBackward && place.thread < t.count()) {
      const int64_t denominator = denominator_of(t, units, place.first_unit, place.thread);
      if (denominator >= 0) divisor = RowDivisor<T>(c, denominator);
    }
    held.load(c, t, place.offsets(t, units), place.way(t, steps, cluster.rank));
  }
  {
    const Place place = make_place();
    const Memory desk(place, t, cluster.size);
    held.hand_in(c, t, place, cluster.size, make_place);
    if (kBackward && place.thread < t.count()) desk.scales[place.thread] = divisor.scale(c);
  }
  const Place place = make_place();
  const Memory desk(place, t, cluster.size);
  add_up<T, kBackward>(t, place, desk, cluster, [&](int column, const Sum& total) {
    if constexpr (kBackward) {
      desk.results[column] = Slope<T>(make_gradient<Wide<T>>(total, desk.scales[column]));
    } else {
      desk.results[column] = Quotient<T>(total, c.count, c.eps);
      desk.parts[column] = both_words(total);
      if (c.denominator == nullptr || cluster.rank != 0) return;
      const int64_t to = denominator_of(t, units, place.first_unit, column);
      if (to >= 0) write_denominator<T>(c, to, total);
    }
  });
  held.finish(c, t, cluster, make_place);
}

template <typename T, bool kBackward, typename Tiles>
constexpr bool kSharesX = std::is_same_v<Tiles, HeldSkewing> && is_skewed_x_shared(kBackward, sizeof(T));

// Packs that begin at any place of a row, in tiles of one way or another. A thread has one of a tile's sums at most.
template <typename T, bool kBackward, int kPacks, typename Tiles>
__global__ void __launch_bounds__(kSharesX<T, kBackward, Tiles> ? kSharingThreads : kStridedThreads)
    loose_kernel(const __grid_constant__ Call c, const __grid_constant__ Tiles s) {
  using Held = Loose<T, kBackward, kPacks, Access::kOnce, kSharesX<T, kBackward, Tiles>>;
  using Tile = typename Tiles::template Tile<T>;
  using Place = typename Tile::Place;
  extern __shared__ __align__(kSharedLine) uint4 memory[];
  ask_ahead<kBackward>(c);
  const Cluster cluster;
  const Turns& turns = s.turns;
  const int count = turns.columns, thread = static_cast<int>(threadIdx.x);
  if (cluster.size > 1) cluster.expect((cluster.size - 1) * count);
  const Tile tile(c, s, group_of(cluster), static_cast<unsigned>(cluster.rank));
  // What threads hand in; a sum a thread; a block of the cluster and column; a column.
  const Parts<T> parts(memory);
  double2* const mine = reinterpret_cast<double2*>(memory) + Parts<T>::bytes(tile.slots()) / sizeof(double2);
  double2* const ranks = mine + blockDim.x;
  double2* const sums = ranks + cluster.size * count;
  const typename Held::Results results(sums + tile.results());
  await_stream();
  wait_for_turn(c.stagger, group_of(cluster));
  RowDivisor<T> divisor{};
  if (kBackward && thread < count) {
    const int64_t denominator = tile.denominator(tile.column_of(thread));
    if (denominator >= 0) divisor = RowDivisor<T>(c, denominator);
  }
  Held held;
  if constexpr (kSharesX<T, kBackward, Tiles>) held.x.held = decltype(held.x.held)(results.behind(tile.results()));
  held.load(c, Place(tile, false));
  held.hand_in(c, Place(tile, false), parts);
  __syncthreads();
  Sum total;
  tile.each_sum(parts, mine, [&](int, const Sum& sum) { total = sum; });
  if (cluster.size > 1) {
    if (thread < count) ranks[cluster.rank * count + thread] = both_words(total);
    cluster.wait();
    __syncthreads();
    for (int k = thread; k < count * cluster.size; k += static_cast<int>(blockDim.x)) {
      double2* const part = &ranks[cluster.rank * count + turns.column_of(k)];
      if (turns.turn_of(k) != cluster.rank) cluster.store(part, turns.turn_of(k), *part);
    }
    cluster.await_sums();
    total = {};
    for (int rank = 0; thread < count && rank < cluster.size; ++rank) {
      const double2 part = ranks[rank * count + thread];
      total = total + Sum{part.x, part.y};
    }
  }
  if (thread < count) {
    LooseResult<T, kBackward> result;
    if constexpr (kBackward) {
      result = Slope<T>(read_gradient<T>(total, divisor, c));
    } else {
      result = Quotient<T>(total, c.count, c.eps);
      const int column = tile.column_of(thread);
      if (c.denominator != nullptr && cluster.rank == 0 && tile.owns(column)) {
        const int64_t to = tile.denominator(column);
        if (to >= 0) write_denominator<T>(c, to, total);
      }
    }
    for (int k = thread; k < tile.results(); k += count) {
      sums[k] = both_words(total);
      results[k] = result;
    }
  }
  __syncthreads();
  held.finish(c, Place(tile, true), results, sums);
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
constexpr int kMostColumnBlocks = 8;  // as many threads as a T4 takes
#else
constexpr int kMostColumnBlocks = 9;
#endif
// More spill: quotients of two halves in packs, and what lanes share, and gradients of bfloat16 one by one, on
// datacenter Blackwells and what came after them.
template <typename T, bool kBackward, int kSteps, int kColumns, Sharing kSharing>
constexpr int most_blocks() {
  if (kSharing == Sharing::kNothing) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
    if (std::is_same_v<T, __nv_bfloat16> && kBackward && kColumns == 1) return 3;
#endif
    return sizeof(T) == 2 && !kBackward && kSteps == 2 && kColumns > 1 ? 5 : kMostColumnBlocks;
  }
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
  const bool most = std::is_same_v<T, __nv_bfloat16> && kBackward && kSteps > 6 && kSharing == Sharing::kSums;
  return most ? 2 : 3;
#else
  // Quotients of bfloat16 over 16, 32, 56 and 64 steps run at 0.92, 0.89, 0.80 and 0.87 of a copy's speed on an H200,
  // in four blocks at 0.865, 0.835, 0.74 and 0.82; of float16 no faster.
  return std::is_same_v<T, __nv_bfloat16> && !kBackward ? 5 : 4;
#endif
}

template <typename T, bool kBackward, int kSteps, int kColumns, int kUnits, Sharing kSharing>
__global__ void __launch_bounds__(kStridedWarps * 32,
                                  std::min(column_blocks(kBackward, kSteps, kColumns * sizeof(T), sizeof(T)),
                                           most_blocks<T, kBackward, kSteps, kColumns, kSharing>()))
    columns_kernel(const __grid_constant__ Call c, const __grid_constant__ Tiling t) {
  constexpr bool kShared = kSharing != Sharing::kNothing;
  ask_ahead<kBackward>(c);
  const int64_t tile = static_cast<int64_t>(blockIdx.x) * kStridedWarps + threadIdx.x / 32;
  await_stream();
  const unsigned lane = threadIdx.x % 32;
  const int64_t first_unit = tile * t.width + (kShared ? lane & static_cast<unsigned>(t.lanes - 1) : lane);
  if constexpr (kBackward) {
    ColumnGradients<T, kSteps, kColumns, kUnits, kSharing>(c, t, first_unit).differentiate();
  } else {
    ColumnQuotients<T, kSteps, kColumns, kUnits, kShared>(c, t, first_unit).normalize();
  }
}

template <typename T, bool kBackward, int kSteps, bool kElements, Sharing kSharing>
cudaError_t launch_columns(const Call& c, const Tiling& t, unsigned blocks, cudaStream_t stream) {
  constexpr int kColumns = kElements ? 1 : kPackBytes / sizeof(T);
  constexpr int kUnits = column_units(kBackward, kSteps, kElements ? sizeof(T) : kPackBytes, sizeof(T));
  size_t shared_bytes = 0;
  if constexpr (kBackward) shared_bytes = ColumnGradients<T, kSteps, kColumns, kUnits, kSharing>::shared_bytes(t.lanes);
  return launch_in_stream(c, columns_kernel<T, kBackward, kSteps, kColumns, kUnits, kSharing>, blocks,
                          kStridedWarps * 32, shared_bytes, 1, stream, c, t);
}

template <typename T, bool kBackward, int kPacks, bool kElements, bool kShared>
cudaError_t launch_tiles(const Call& c, const Tiling& t, const StridedPlan& plan, unsigned blocks,
                         cudaStream_t stream) {
  const auto function = kernel<T, kBackward, kPacks, kElements, kShared>;
  const int tiles_a_block = strided_tiles_a_block(plan), threads = strided_threads(plan);
  size_t shared_bytes =
      static_cast<size_t>(tiles_a_block) * Desk<T, kBackward>::bytes(t.count(), plan.warps, plan.cluster);
  if constexpr (kShared) {
    shared_bytes += static_cast<size_t>(threads * plan.shared_packs) * kPackBytes * (kBackward ? 2 : 1);
    static Prepared prepared, wide;
    const void* const address = reinterpret_cast<const void*>(function);
    cudaError_t error = prepared.for_launch(c.device, address, static_cast<int>(shared_bytes));
    // No other kernel takes such clusters.
    if (error == cudaSuccess && plan.cluster > kMaxCluster) error = wide.for_wide_clusters(c.device, address);
    if (error != cudaSuccess) return error;
  }
  return launch_in_stream(c, function, blocks, threads, shared_bytes, plan.cluster, stream, c, t);
}

// slots: what threads hand in; results: of columns, some of which may stand there twice.
template <typename T, bool kBackward, int kPacks, typename Tiles>
cudaError_t launch_loose(const Call& c, const Tiles& tiles, const StridedPlan& plan, unsigned blocks, int slots,
                         int results, cudaStream_t stream) {
  const auto function = loose_kernel<T, kBackward, kPacks, Tiles>;
  const int threads = strided_threads(plan), sums = threads + plan.cluster * tiles.turns.columns + results;
  const size_t cells = kSharesX<T, kBackward, Tiles> ? static_cast<size_t>(threads * kPacks + 1) : 0;
  const size_t shared_bytes = Parts<T>::bytes(slots) + static_cast<size_t>(sums) * sizeof(double2) +
                              LooseResults<T, kBackward>::bytes(results) + cells * kPackBytes;
  static Prepared prepared;
  const cudaError_t error =
      prepared.for_launch(c.device, reinterpret_cast<const void*>(function), static_cast<int>(shared_bytes));
  if (error != cudaSuccess) return error;
  return launch_in_stream(c, function, blocks, threads, shared_bytes, plan.cluster, stream, c, tiles);
}

template <typename T, bool kBackward>
cudaError_t launch_interleaved(const Call& c, const Lattice& lattice, const StridedPlan& plan, unsigned blocks,
                               cudaStream_t stream) {
  constexpr int kPack = kPackBytes / static_cast<int>(sizeof(T));
  const Rounds& rounds = lattice.rounds;
  const int threads = strided_threads(plan), inner = static_cast<int>(rounds.period);
  const int units = static_cast<int>(interleaved_units(inner, kPack, threads));
  const int64_t each = ceil_div(ceil_div(rounds.elements() + kPack - 1, kPack), int64_t{units} * plan.cluster);
  const Interleaving s(rounds, units, static_cast<int>(each), plan.cluster);
  return launch_loose<T, kBackward, kLoosePacks<kBackward, sizeof(T)>>(c, s, plan, blocks, units * kPack, inner + kPack,
                                                                       stream);
}

template <typename T, bool kBackward>
cudaError_t launch_skewed(const Call& c, const Lattice& lattice, const StridedPlan& plan, unsigned blocks,
                          cudaStream_t stream) {
  constexpr int kPack = kPackBytes / static_cast<int>(sizeof(T));
  const int sums = plan.width + kPack;
  const auto tiles = static_cast<unsigned>(skewed_tiles(lattice.inner, kPack, plan.width));
  const HeldSkewing s{{lattice.inner, tiles, Divider(tiles), extent_of(c.geometry), plan.lanes, plan.warps, plan.width,
                       static_cast<int>(ceil_div(c.geometry.row.count, plan.cluster)), Turns(sums),
                       Divider(static_cast<uint32_t>(plan.warps * (32 / plan.lanes))), lattice.inner,
                       Folds({lattice.inner})}};
  constexpr int kMost = skewed_packs(kBackward, sizeof(T), false), kFewer = skewed_packs(kBackward, sizeof(T), true);
  const int slots = plan.warps * plan.lanes * kPack;
  if constexpr (has_fewer_packs(kBackward, sizeof(T))) {
    if (plan.packs == kFewer) return launch_loose<T, kBackward, kFewer>(c, s, plan, blocks, slots, sums, stream);
  }
  return launch_loose<T, kBackward, kMost>(c, s, plan, blocks, slots, sums, stream);
}

// Calls use(kFirst), use(kFirst + kBy) and so on, as constants.
template <int kFirst, int kBy, int... kNumbers, typename Use>
void each_of(std::integer_sequence<int, kNumbers...>, const Use& use) {
  (use(std::integral_constant<int, kFirst + kNumbers * kBy>{}), ...);
}

template <typename T, bool kBackward, bool kElements>
cudaError_t launch(const Call& call, const Lattice& lattice, const StridedPlan& plan, cudaStream_t stream) {
  Call c = call;
  c.geometry = lattice.geometry;
  const int64_t steps = c.geometry.row.count;
  const auto at_pack = [](const void* p) { return reinterpret_cast<uintptr_t>(p) % kPackBytes == 0; };
  // Units of neighbouring rows start at multiples of a unit's denominators, where these are neighbours.
  const bool packed = lattice.denominator_step == 1 && at_pack(c.denominator) && at_pack(c.grad_denominator);
  const Tiling t(lattice, plan.lanes, plan.across, plan.width, plan.warps,
                 static_cast<int>(ceil_div(steps, plan.cluster)), plan.shared_packs, packed, plan.own_sectors);
  constexpr int64_t kPack = kPackBytes / sizeof(T);
  const auto blocks = static_cast<unsigned>(strided_grid(c.geometry.rows.count, lattice.inner, kPack, plan));
  if constexpr (kElements) {
    if (plan.interleaved) return launch_interleaved<T, kBackward>(c, lattice, plan, blocks, stream);
  }
  if constexpr (kElements && !(kBackward && sizeof(T) == 8)) {
    if (plan.skewed) return launch_skewed<T, kBackward>(c, lattice, plan, blocks, stream);
  }
  cudaError_t error = cudaErrorInvalidValue;
  using std::integral_constant;
  constexpr int kRegisters = strided_cells(kBackward, kElements ? sizeof(T) : kPackBytes, sizeof(T));
  const auto tiles = [&](auto packs, auto shared) {
    constexpr int kPacks = decltype(packs)::value;
    constexpr bool kShared = decltype(shared)::value;
    if (!plan.whole && plan.packs == kPacks && (plan.shared_packs > 0) == kShared) {
      error = launch_tiles<T, kBackward, kPacks, kElements, kShared>(c, t, plan, blocks, stream);
    }
  };
  const auto columns = [&](auto packs, auto shared) {
    constexpr int kSteps = decltype(packs)::value;
    constexpr bool kShared = decltype(shared)::value;
    // Of halves as many steps are in a kernel of either kind.
    if (!plan.whole || plan.packs != kSteps || (sizeof(T) > 2 && plan.is_shared() != kShared)) return;
    if constexpr (kShared && kBackward && sizeof(T) == 2) {
      if (plan.lanes <= kSlopeSharers) {
        error = launch_columns<T, kBackward, kSteps, kElements, Sharing::kSlopes>(c, t, blocks, stream);
        return;
      }
    }
    constexpr Sharing kSharing = kShared ? Sharing::kSums : Sharing::kNothing;
    error = launch_columns<T, kBackward, kSteps, kElements, kSharing>(c, t, blocks, stream);
  };
  const auto whole = [&](auto packs) { columns(packs, std::false_type{}); };
  const auto shared = [&](auto packs) { columns(packs, std::true_type{}); };
  tiles(integral_constant<int, kRegisters>{}, std::false_type{});
  constexpr int kFewer = fewer_strided_cells(kBackward, kElements ? sizeof(T) : kPackBytes, sizeof(T));
  if constexpr (kFewer > 0) tiles(integral_constant<int, kFewer>{}, std::false_type{});
  if constexpr (!kElements) {
    tiles(integral_constant<int, kRegisters>{}, std::true_type{});
    if constexpr (!kBackward && sizeof(T) > 2) tiles(integral_constant<int, 0>{}, std::true_type{});
  }
  if constexpr (kElements) {
    whole(integral_constant<int, 3>{});
    whole(integral_constant<int, kBackward ? 8 : 16>{});
  } else {
    whole(integral_constant<int, 2>{});
    whole(integral_constant<int, 3>{});
    whole(integral_constant<int, 4>{});
    if constexpr (sizeof(T) > 2) {
      whole(integral_constant<int, 8>{});
      if constexpr (!kBackward) whole(integral_constant<int, 16>{});
    }
    if constexpr (has_shared_steps(kBackward, sizeof(T))) {
      constexpr SharedSteps kOf = shared_steps(kBackward, sizeof(T));
      each_of<kOf.least, kOf.by>(std::make_integer_sequence<int, (kOf.most - kOf.least) / kOf.by + 1>{}, shared);
    }
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
