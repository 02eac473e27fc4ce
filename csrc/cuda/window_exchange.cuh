// What warps of a column ring do with sums: blocks tell each other those of tiles, and their clusters what follows.
#pragma once

#include "gradient.cuh"
#include "window_quotients.cuh"

namespace l1norm::cuda {
namespace column_ring_kernel {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

template <class W>
struct RingExchange : Ring<W> {
  using Ring<W>::c;
  using Ring<W>::l;
  using Ring<W>::tables;
  using typename Ring<W>::Element;

  // The sum of what groups of lanes have of W::kOwned columns.
  static __device__ __forceinline__ Sum across_lanes(Sum sum) {
#pragma unroll
    for (int lanes = W::kOwned; lanes < 32; lanes *= 2) sum = sum + shuffled(sum, lanes);
    return sum;
  }

  // Adds up this block's columns of every kExchangers-th tile, of its cluster and of all, and tells the cluster.
  __device__ __forceinline__ void exchange(int warp, int rank, int cluster, double2* scratch) const {
    const int lane = lane_of_warp(), column = lane % W::kOwned, group = lane / W::kOwned;
    const int count = l.clusters * W::kOwned;
    const Walk& rows = c.geometry.rows;
    const int64_t denominator_step = rows.stride[rows.dims - 1].denominator;
#pragma unroll 1
    for (int n = warp; n < l.windows; n += W::kExchangers) {
      const Place at(n, l);
      const int tile = n % W::kTiles;
      if (lane == 0) {
        expect_bytes(shared_address(&tables.hands[tile]), W::kColumns * static_cast<int>(sizeof(double2)));
      }
      const int64_t at_column = int64_t{at.window} * W::kColumns - this->shift() + rank * W::kOwned + column;
      const bool exists = at_column >= 0 && at_column < l.columns;
      const int64_t denominator = this->plane_of(at).denominator + at_column * denominator_step;
      RowDivisor<Element> divisor{1.0f, 0.0f};
      if (W::kBackward && exists) divisor = RowDivisor<Element>(c, denominator);
      __syncwarp();
      await_phase(shared_address(&tables.hands[tile]), n / W::kTiles % 2);
      // Not sooner: this block has divided the window whose tile was there before.
      if (lane == 0) {
        expect_bytes(shared_address(&tables.known[tile]), static_cast<int>(sizeof tables.results) / W::kTiles);
      }
      Sum sum;
#pragma unroll
      for (int of = 0; of < kWindowCluster; of += W::kGroups) {
        if (of + group >= kWindowCluster) break;
        const double2 words = tables.handed[tile][of + group][column];
        sum = sum + Sum{words.x, words.y};
      }
      sum = across_lanes(sum);
      if (l.clusters > 1) {
        double2* const slots = scratch + (static_cast<int64_t>(n) * kWindowCluster + rank) * count;
        if (group == 0) publish(slots + cluster * W::kOwned + column, sum);
        Sum parts[W::kPolled];
        bool there;
        do {
          there = true;
#pragma unroll
          for (int i = 0; i < W::kPolled; ++i) parts[i] = peek(slots + min(i * 32 + lane, count - 1));
#pragma unroll
          for (int i = 0; i < W::kPolled; ++i) there &= !is_unset(parts[i]);
        } while (!__all_sync(0xffffffffu, there));
#pragma unroll
        for (int i = 0; i < W::kPolled; ++i) {
          if (i * 32 + lane >= count) parts[i] = Sum{};
        }
#pragma unroll
        for (int apart = 1; apart < W::kPolled; apart *= 2) {
#pragma unroll
          for (int i = 0; i + apart < W::kPolled; i += 2 * apart) parts[i] = parts[i] + parts[i + apart];
        }
        sum = across_lanes(parts[0]);
      }
      tell(tile, rank * W::kOwned + column, group, sum, divisor);
      if constexpr (!W::kBackward) {
        if (c.denominator != nullptr && group == 0 && cluster == n % l.clusters && exists) {
          write_denominator<Element>(c, denominator, sum);
        }
      }
    }
  }

  // Hands what a column of a tile is divided by to the cluster, a group of lanes to some of its blocks.
  __device__ __forceinline__ void tell(int tile, int column, int group, const Sum& sum,
                                       const RowDivisor<Element>& divisor) const {
    const int index = tile * W::kColumns + column, before = (index - 1) & (W::kKnown - 1);
    auto& results = tables.results;
    const auto to_each = [&](const auto& send_to) {
#pragma unroll
      for (int peer = group; peer < kWindowCluster; peer += W::kGroups) {
        const uint32_t known = mapped_to(shared_address(&tables.known[tile]), peer);
        send_to([&](auto& place, const auto& value) { send(mapped_to(shared_address(&place), peer), value, known); });
      }
    };
    if constexpr (W::kBackward && !W::kHalves) {
      const Gradient gradient = read_gradient<Element>(sum, divisor, c);
      to_each([&](const auto& to) {
        to(results.inverses[0][index], gradient.inverse);
        to(results.throughs[0][index], gradient.through);
        if constexpr (!W::kWhole) {
          to(results.inverses[1][before], gradient.inverse);
          to(results.throughs[1][before], gradient.through);
        }
      });
    } else {
      float2 floats;
      double2 doubles;
      if constexpr (W::kBackward) {
        const HalfSlope<Element> slope(read_gradient<Element>(sum, divisor, c));
        floats = make_float2(slope.floats.inverse, slope.floats.through);
        doubles = make_double2(slope.inverse, slope.through);
      } else {
        floats = known_floats<Element>(sum, c);
        doubles = both_words(sum);
      }
      to_each([&](const auto& to) {
        to(results.floats[0][index], floats);
        if constexpr (!W::kWhole) to(results.floats[1][before], floats);
        to(results.doubles[index], doubles);
      });
    }
  }
};

#endif

}  // namespace column_ring_kernel
}  // namespace l1norm::cuda
