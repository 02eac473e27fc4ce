// The warp kernel, instantiated for one dtype by each warp_*.cu.
#pragma once

#include "../early.cuh"
#include "../gradient.cuh"
#include "../launch.h"
#include "../reduce.cuh"
#include "warp.h"

#include <utility>

namespace l1norm::cuda {
namespace warp_kernel {

// Of halves, forward, as the next one. 333 of them in six packs: bfloat16 0.913 with 20, 0.998 with 28, float16 0.95
// with 24, 0.991 with 28 (H200).
constexpr int warps_of_halves(int packs) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
  return packs <= 5 ? 24 : packs <= 8 ? 20 : 16;  // some would spill with more
#else
  return packs <= 6 ? 28 : packs <= 8 ? 24 : packs <= 10 ? 20 : 16;  // 12 of float16 would spill with more
#endif
}

// Of their gradients of five packs.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
constexpr int kGradientsOfFive = 20;  // bfloat16 would spill with more
#else
constexpr int kGradientsOfFive = 22;
#endif

// Warps on a multiprocessor that registers are shared between (299 float16 in five packs: 0.954 with 24, 0.981 with 28;
// 200 float32 in seven: 1.038 with 20, 1.05 with 24; 800: 1.033, 1.05). Gradients lose up to 1% by more of them where
// all lanes' packs are full, and gain where some are empty and while the GPU's clock is low: 200 float32 0.98 to 1.02,
// 1100 bfloat16 0.93 to 0.98, 512 float64 0.85 to 0.99.
constexpr int warp_kernel_warps(bool backward, int element_size, int packs) {
  if (backward) {
    if (element_size == 8) return packs <= 4 ? 20 : packs <= 8 ? 16 : 12;  // would spill with more
    return packs <= 3   ? 32
           : packs <= 4 ? 24
           : packs <= 5 ? (element_size == 2 ? kGradientsOfFive : 22)
           : packs <= 6 ? 18
           : packs <= 8 ? 16
                        : 12;
  }
  if (element_size == 2) return warps_of_halves(packs);
  return packs <= 4 ? 28 : packs <= 8 ? 24 : 16;
}

// Where a row's packs begin: at a sector of memory, as long as a lane has one element at most ahead of them and one
// behind. Lanes whose packs begin within sectors read and write one more (127 float32: 0.965, and 0.985), but gradients
// of doubles have too much arithmetic for more elements outside packs (511: 0.830, and 0.841).
template <typename T, bool kBackward, int kLanes>
constexpr int warp_line() {
  const bool one_each = kSectorBytes / static_cast<int>(sizeof(T)) - 1 <= kLanes;
  return one_each && !(kBackward && sizeof(T) == 8) ? kSectorBytes : kPackBytes;
}

// Where packs of the first lane begin, if there is room: halves, of which a lane would have two ahead of a sector, have
// a lane without a pack instead (511 float16: 0.955, with two 0.975, and so 0.98).
template <typename T, bool kBackward, int kLine>
constexpr int warp_start() {
  return !kBackward && sizeof(T) == 2 && kLine < kSectorBytes ? kSectorBytes : kPackBytes;
}

template <typename T, bool kBackward, int kPacks>
constexpr int kThreads = warp_kernel_threads(kBackward, sizeof(T), kPacks);

// Blocks that a multiprocessor takes: what asks for more of them is ignored.
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ < 800 || __CUDA_ARCH__ == 860)
constexpr int kMostBlocks = 16;
#elif defined(__CUDA_ARCH__) && (__CUDA_ARCH__ == 890 || __CUDA_ARCH__ >= 1200)
constexpr int kMostBlocks = 24;
#else
constexpr int kMostBlocks = 32;
#endif
template <typename T, bool kBackward, int kPacks>
constexpr int kBlocks =
    std::min(warp_kernel_warps(kBackward, sizeof(T), kPacks) * 32 / kThreads<T, kBackward, kPacks>, kMostBlocks);

// The sum of a row of bfloat16 as one double. The roundings of some dozens of terms are far below what a quotient's
// proof allows for, so that it is exact only where it has to be: for divisors, and for quotients that are not proven.
template <int kLanes, typename Row>
class NearSum {
 public:
  __device__ __forceinline__ explicit NearSum(const Row& row) : row_(row) {
    HalfTally<T, double> tally;
    Least<T> least;
    row.add(tally, least);
    placed_ = warp_sum<kLanes>(tally.placed());
  }

  // Whether an infinity or NaN may be in it: without a least magnitude, what one reads as is the bound.
  __device__ __forceinline__ bool is_special() const { return upper() >= Least<T>{}.exact_below(); }

  // That sum, or the exact one for rows of the warp, if a lane of it wants that.
  __device__ __forceinline__ Sum exact(bool wanted) const {
    constexpr uint32_t kAll = 0xffffffffu;
    const Sum near = Magnitude<T>::unscaled({placed_, 0.0});
    if (!__any_sync(kAll, wanted)) return near;
    Least<T> least;
    row_.note(least);
    if (!__any_sync(kAll, upper() >= least.exact_below())) return near;
    CarefulTally<T> tally;
    row_.add(tally, least);
    return warp_sum<kLanes>(tally.sum());
  }

 private:
  using T = typename Row::Element;

  const Row& row_;
  double placed_;

  __device__ __forceinline__ uint32_t upper() const { return upper_word(placed_); }
};

// kLanes lanes hold a row, kPacks packs a lane. kAlike: as HeldPair has it.
template <typename T, bool kBackward, int kLanes, int kPacks, bool kAlike>
__global__ void __launch_bounds__(kThreads<T, kBackward, kPacks>, kBlocks<T, kBackward, kPacks>)
    kernel(const __grid_constant__ Call c) {
  constexpr int kLine = warp_line<T, kBackward, kLanes>();
  // Of floats, where they end too (127: 0.979, and 0.985; gradients of 125: 1.0, 1.005; the same is not measured of
  // other types).
  constexpr int kUnit = sizeof(T) == 4 ? kLine / kPackBytes : 1;
  constexpr int kEdge = (kLine / static_cast<int>(sizeof(T)) - 1 + kLanes - 1) / kLanes;
  ask_ahead<kBackward>(c);
  const Geometry& g = c.geometry;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int64_t index =
      static_cast<int64_t>(blockIdx.x) * (kThreads<T, kBackward, kPacks> / kLanes) + threadIdx.x / kLanes;
  // Whole warps go on, so that shuffles find all their lanes.
  const bool exists = index < g.rows.count;
  const Offsets o = g.rows.at(exists ? index : 0);
  using Row =
      RowOf<T, kBackward, kPacks, kEdge, true, kLanes, Access::kOnce, kAlike, warp_start<T, kBackward, kLine>()>;
  const int length = exists ? static_cast<int>(g.row.count) : 0;
  await_stream();
  if constexpr (kBackward) {
    // Read ahead of the row and not after its sum: 0.85 to 1.0 of torch.add at 127 float32.
    const RowDivisor<T> divisor(c, o.denominator);
    const Row row(c, o, 0, length, kLine, lane, kLanes, lane, lane, kUnit);
    const GradientScale scale = divisor.scale(c);
    row.finish(warp_sum<kLanes>(row.sum(c)), scale);
  } else {
    const Row row(c, o, 0, length, kLine, lane, kLanes, lane, lane, kUnit);
    Least<T> least;
    const auto write = [&](const Sum& total) {
      if (c.denominator != nullptr && exists && lane == 0) write_denominator<T>(c, o.denominator, total);
    };
    if constexpr (std::is_same_v<T, __nv_bfloat16>) {
      const NearSum<kLanes, Row> sum(row);
      const Sum total = sum.exact(c.denominator != nullptr || sum.is_special());
      write(total);
      row.finish_near(total, [&](bool wanted) { return sum.exact(wanted); }, c, least);
    } else {
      Sum total = sum_of<Tally<T>>(least, [&](auto& tally) { row.add(tally, least); });
      if constexpr (std::is_same_v<T, __half>) {
        total = {warp_sum<kLanes>(total.hi), 0.0};  // as in a thread's tally, nothing of so few is lost
      } else {
        total = warp_sum<kLanes>(total);
      }
      write(total);
      row.finish(total, c, least);
    }
  }
}

template <typename T, bool kBackward, int kLanes, int kPacks, bool kAlike>
cudaError_t launch(const Call& c, cudaStream_t stream) {
  constexpr int kBlock = kThreads<T, kBackward, kPacks>;
  constexpr int64_t kRows = kBlock / kLanes;
  const int64_t blocks = (c.geometry.rows.count + kRows - 1) / kRows;
  return launch_in_stream(c, kernel<T, kBackward, kLanes, kPacks, kAlike>, blocks, kBlock, 0, 1, stream, c);
}

// kAt: places in the table of choices.
template <typename T, bool kBackward, bool kAlike, size_t... kAt>
cudaError_t launch_one_of(const Call& c, const WarpPlan& plan, cudaStream_t stream, std::index_sequence<kAt...>) {
  constexpr auto& kChoices = kWarpChoices<kBackward, kAlike, sizeof(T)>;
  cudaError_t error = cudaErrorInvalidValue;
  static_cast<void>(
      ((plan == kChoices[kAt].plan &&
        (error = launch<T, kBackward, kChoices[kAt].plan.lanes, kChoices[kAt].plan.packs, kAlike>(c, stream), true)) ||
       ...));
  return error;
}

template <typename T, bool kBackward, bool kAlike>
cudaError_t launch_planned(const Call& c, const WarpPlan& plan, cudaStream_t stream) {
  return launch_one_of<T, kBackward, kAlike>(
      c, plan, stream, std::make_index_sequence<kWarpChoices<kBackward, kAlike, sizeof(T)>.size()>{});
}

}  // namespace warp_kernel

template <DType D>
cudaError_t warp(const Call& call, const WarpPlan& plan, cudaStream_t stream) {
  using T = typename ElementOf<D>::type;
  using warp_kernel::launch_planned;
  if (call.grad == nullptr) return launch_planned<T, false, true>(call, plan, stream);
  return plan.alike ? launch_planned<T, true, true>(call, plan, stream)
                    : launch_planned<T, true, false>(call, plan, stream);
}

}  // namespace l1norm::cuda
