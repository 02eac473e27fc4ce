// The warp columns kernel, instantiated for each dtype by warp_columns.cu.
#pragma once

#include "../early.cuh"
#include "../launch.h"
#include "../warp_run.cuh"
#include "warp_columns.h"

#include <iterator>
#include <utility>

namespace l1norm::cuda {
namespace warp_columns_kernel {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
constexpr int kMostBlocks = 12;  // more spill
#else
constexpr int kMostBlocks = 14;
#endif
// Blocks on a multiprocessor that registers are shared between.
template <bool kBackward, int kPacks>
constexpr int kBlocks = kPacks <= (kBackward ? 4 : 6)    ? kMostBlocks
                        : kPacks <= (kBackward ? 6 : 10) ? 10
                                                         : 8;

template <typename T, bool kBackward, int kPacks>
__global__ void __launch_bounds__(kWarpColumnsThreads, (kBlocks<kBackward, kPacks>))
    kernel(const __grid_constant__ Call c, const __grid_constant__ WarpColumns s, int desk_bytes) {
  if constexpr (kHasClusters) {
    using Run = WarpRun<T, kBackward, kPacks>;
    using MyDesk = TeamDesk<typename Run::SharedResult, T>;
    extern __shared__ __align__(kSharedLine) unsigned char memory[];
    ask_ahead<kBackward>(c);
    const int thread = static_cast<int>(threadIdx.x), team = thread >> s.team_bits, lane = thread & (s.team() - 1);
    const bool alone = s.warps == 1;
    const int columns = s.turns.columns, warp = alone ? 0 : team;  // of those that share a run
    const auto block = static_cast<int64_t>(blockIdx.x);
    Run run(c, s, alone ? block * (kWarpColumnsThreads >> s.team_bits) + team : block, warp);
    const MyDesk desk(s, memory + team * desk_bytes);
    const bool has_column = lane < columns && run.exists();
    await_stream();
    RowDivisor<T> divisor{};
    if (kBackward && has_column) divisor = RowDivisor<T>(c, run.denominator(lane));
    run.load();
    const TeamParts<double, T> parts(desk.parts);
    const bool kept = run.hand_in(parts);
    const auto least = run.least_of_warp();
    auto* const leasts = reinterpret_cast<std::remove_const_t<decltype(least)>*>(desk.ranks);
    if (s.is_block()) leasts[thread / 32] = least;
    await_team(s);
    const double placed = sum_of_column(s, parts);
    Sum total = Run::sum(placed);
    bool exact = Run::is_exact(placed, least);
    if (s.is_block()) exact &= Run::is_exact(placed, leasts[1 - thread / 32]);
    if (any_of_team(s, !kept || (has_column && !exact))) {
      const TeamParts<Sum, T> careful(desk.parts);
      run.hand_in_carefully(careful);
      await_team(s);
      total = sum_of_column(s, careful);
    }
    if (!alone) {
      if (lane < columns) desk.ranks[lane] = both_words(total);
      __syncthreads();
      total = {};
      for (int w = 0; w < s.warps && lane < columns; ++w) {
        const double2 part = MyDesk(s, memory + w * desk_bytes).ranks[lane];
        total = total + Sum{part.x, part.y};
      }
    }
    if (has_column) {
      typename Run::Result result;
      if constexpr (kBackward) {
        result = Slope<T>(read_gradient<T>(total, divisor, c));
      } else {
        result = Quotient<T>(total, c.count, c.eps);
        if (c.denominator != nullptr && warp == 0) write_denominator<T>(c, run.denominator(lane), total);
      }
      for (int k = lane; k < columns + MyDesk::kPack; k += columns) {
        desk.sums[k] = both_words(total);
        desk.results[k].of = result;
      }
    }
    await_team(s);
    run.finish(desk.results, desk.sums);
  }
}

template <typename T, bool kBackward, int kPacks>
cudaError_t launch(const Call& c, const WarpColumns& s, const WarpColumnsPlan& plan, cudaStream_t stream) {
  using Result = typename WarpRun<T, kBackward, kPacks>::SharedResult;
  const int teams = kWarpColumnsThreads >> s.team_bits, desk = TeamDesk<Result, T>::bytes(s);
  return launch_in_stream(c, kernel<T, kBackward, kPacks>, warp_columns_blocks(s.runs, plan), kWarpColumnsThreads,
                          static_cast<size_t>(teams * desk), 1, stream, c, s, desk);
}

template <typename T, bool kBackward, size_t... kAt>
cudaError_t launch_one_of(const Call& c, const WarpColumns& s, const WarpColumnsPlan& plan, cudaStream_t stream,
                          std::index_sequence<kAt...>) {
  cudaError_t error = cudaErrorInvalidValue;
  const auto take = [&](auto at) {
    constexpr int kPacks = kWarpColumnPacks[at];
    if constexpr (kPacks <= most_warp_column_packs(kBackward)) {
      if (plan.packs == kPacks) error = launch<T, kBackward, kPacks>(c, s, plan, stream);
    }
  };
  (take(std::integral_constant<size_t, kAt>{}), ...);
  return error;
}

template <typename T, bool kBackward>
cudaError_t launch(const Call& call, const WarpColumnsPlan& plan, cudaStream_t stream) {
  Call c = call;
  const RunsOfTurns runs(call.geometry, kPackBytes / sizeof(T));
  c.geometry = runs.geometry;
  const WarpColumns s{c.geometry.rows.count,
                      runs.beside,
                      call.geometry.span(&Offsets::input),
                      call.geometry.span(&Offsets::grad),
                      static_cast<int>(c.geometry.row.count),
                      Turns(static_cast<int>(runs.columns)),
                      bits_of(static_cast<uint32_t>(plan.team)) - 1,
                      plan.lanes,
                      plan.warps,
                      Divider(static_cast<uint32_t>(plan.lanes * plan.warps))};
  return launch_one_of<T, kBackward>(c, s, plan, stream, std::make_index_sequence<std::size(kWarpColumnPacks)>{});
}

}  // namespace warp_columns_kernel

template <DType D>
cudaError_t warp_columns(const Call& call, const WarpColumnsPlan& plan, cudaStream_t stream) {
  using T = typename ElementOf<D>::type;
  return call.grad == nullptr ? warp_columns_kernel::launch<T, false>(call, plan, stream)
                              : warp_columns_kernel::launch<T, true>(call, plan, stream);
}

}  // namespace l1norm::cuda
