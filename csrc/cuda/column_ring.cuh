// What warps of a column ring do ahead of results: they load windows, add up tiles, and tell each other the sums.
#pragma once

#include "column_tally.cuh"
#include "gradient.cuh"
#include "reduce.cuh"
#include "window_quotients.cuh"

namespace l1norm::cuda {
namespace column_ring_kernel {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

template <class W>
struct RingSums : Ring<W> {
  using Ring<W>::c;
  using Ring<W>::l;
  using Ring<W>::tables;
  using Ring<W>::memory;
  using Ring<W>::first_step;
  using typename Ring<W>::Element;
  static constexpr bool kHalves = sizeof(Element) == 2;

  // A lane copies a pack of an operand's window of a step, its neighbours the others, and those of the other operand.
  __device__ __forceinline__ void load(int warp) const {
    constexpr int kLanes = W::kBytes / kPackBytes, kSteps = 32 / (kLanes * W::kOperands);
    constexpr int kStride = kSteps * kWindowLoaders;
    const int lane = lane_of_warp(), chunk = lane % kLanes * kPackBytes;
    const int mine = kSteps * warp + lane / (kLanes * W::kOperands);
    const bool of_grad = W::kBackward && lane / kLanes % 2 != 0;
    const int64_t apart = of_grad ? l.grad_step : l.input_step, jump = of_grad ? l.grad_jump : l.input_jump;
    char* const ring = memory + (of_grad ? W::kBytes : 0) + chunk;
    const int turn = static_cast<int>(kStride * l.output_step) & (W::kBytes - 1);
    Turn turns;
    Place at;
    const auto source_of = [&] {
      const Offsets plane = this->plane_of(at);
      const int64_t offset = (of_grad ? plane.grad : plane.input) * int64_t{sizeof(Element)};
      return static_cast<const char*>(of_grad ? c.grad : c.input) + offset;
    };
    const char *source = source_of(), *output = this->output_of(at, 0);
#pragma unroll 1
    for (int n = 0; n < l.windows; ++n) {
#pragma unroll 1
      for (int part = 0; part < W::kParts; ++part) {
        int step = this->steps_ahead(part) + mine;
        const int end = this->steps_ahead(part + 1);
        await_phase(shared_address(&tables.empty[turns.slot][part]), turns.parity ^ 1);
        int before = this->past(output + step * l.output_step);
        const char* from = source + this->offset_of(step, apart, jump) + at.window * W::kBytes + chunk;
        int of_run = this->ahead_in_run(step);
        char* to = ring + turns.slot * l.slot_bytes + step * W::kStepBytes;
        const auto each = [&](const auto& copy) {
          copy();
          before = (before + turn) & (W::kBytes - 1);
          from += kStride * apart;
          to += kStride * W::kStepBytes;
          if (W::kWhole && (of_run += kStride) >= l.run) {
            of_run -= l.run;
            from += jump;
          }
        };
        if (!this->is_edge(at)) {
#pragma unroll 6
          for (; step < end; step += kStride) {
            each([&] {
              if (W::kBytes == kNarrowWindow && l.asks_wide) {
                copy_asking_wide(to, from - before);
              } else if (W::kBytes == kNarrowestWindow) {
                copy_asking_line(to, from - before);
              } else {
                copy_async<Access::kOnce>(to, from - before);
              }
            });
          }
        } else {
#pragma unroll 1
          for (; step < end; step += kStride) {
            const int64_t column = (int64_t{at.window} * W::kBytes + chunk - before) / int64_t{sizeof(float)};
            each([&] {
#pragma unroll
              for (int k = 0; k < 4; ++k) {
                if (column + k >= 0 && column + k < l.columns) copy_element_async(to + 4 * k, from - before + 4 * k);
              }
            });
          }
        }
        arrive_with_copies(shared_address(&tables.full[turns.slot][part]));
      }
      turns.next(l);
      if (at.next(l) && n + 1 < l.windows) {
        source = source_of();
        output = this->output_of(at, 0);
      }
    }
  }

  // Columns that a lane adds, of whole windows neighbours, and lanes that share them.
  static constexpr int kColumnsALane = W::kWhole ? Ring<W>::kAcross : W::kBytes > kNarrowWindow ? 2 : 1;
  static constexpr int kSharers = 32 * kColumnsALane / W::kColumns;
  static __device__ __forceinline__ int column_of(int lane, int k) {
    return W::kWhole ? kColumnsALane * lane + k : lane + 32 * k;
  }

  using Mine = Pack<Element, kColumnsALane>;

  template <typename Tally>
  static __device__ __forceinline__ void extend(Tally& tally, const Pack<Element, 1>& x, const Pack<Element, 1>& g) {
    if constexpr (W::kBackward) {
      tally.template extend<1>(&g, &x, 1.0);
    } else {
      tally.template extend<1>(&x);
    }
  }

  // What a lane adds to the sums of its columns of a part. each(take) calls take(x, g) for each of its steps.
  template <typename Each>
  __device__ __forceinline__ void add_up(const Each& each, Sum (&sums)[kColumnsALane]) const {
    if constexpr (kHalves) {
      using Tallies = std::conditional_t<W::kBackward, DotTally<Element>, ColumnTally<Element>>;
      Least<Element> least;
      Sum some[kColumnsALane];
      const auto add = [&](auto& tallies) {
        each([&](const Mine& x, const Mine& g) {
          if (!W::kBackward) note_first<1>(tallies[0], least, &x);
#pragma unroll
          for (int k = 0; k < kColumnsALane; ++k)
            extend(tallies[k], Pack<Element, 1>{{x[k]}}, Pack<Element, 1>{{g[k]}});
        });
      };
      sum_each<Tallies>(least, add, some);
#pragma unroll
      for (int k = 0; k < kColumnsALane; ++k) sums[k] = W::kParts == 1 ? some[k] : sums[k] + some[k];
    } else if constexpr (W::kBackward) {
      DotTally<float> tallies[kColumnsALane];
      each([&](const Mine& x, const Mine& g) {
#pragma unroll
        for (int k = 0; k < kColumnsALane; ++k) {
          const Pack<float, 1> of_x{{x[k]}}, of_g{{g[k]}};
          tallies[k].template extend<1>(&of_g, &of_x, 1.0);
        }
      });
#pragma unroll
      for (int k = 0; k < kColumnsALane; ++k) accumulate(sums[k], tallies[k].sum().hi);
    } else {
      double some[kColumnsALane] = {};
      uint32_t least = ~0u;
      each([&](const Mine& packed, const Mine&) {
#pragma unroll
        for (int k = 0; k < kColumnsALane; ++k) {
          const uint32_t bits = __float_as_uint(packed[k]), x = bits & 0x7fffffffu;
          least = __viaddmin_u32(x, ~0u, least);
          some[k] += __hiloint2double(static_cast<int>(x >> 3), static_cast<int>(bits << 29));
        }
      });
      const Least<float> bound{2 * least + 1};
      uint32_t most = 0;
#pragma unroll
      for (int k = 0; k < kColumnsALane; ++k) most = max(most, upper_word(some[k]));
      if (most < PlacedFloat::exact_below(bound)) {
#pragma unroll
        for (int k = 0; k < kColumnsALane; ++k) accumulate(sums[k], PlacedFloat::unscaled({some[k], 0.0}).hi);
      } else {
        each([&](const Mine& x, const Mine&) {
#pragma unroll
          for (int k = 0; k < kColumnsALane; ++k) accumulate(sums[k], static_cast<double>(fabsf(x[k])));
        });
      }
    }
  }

  // A lane adds its columns of a tile, of one step of kWindowAdders; where lanes share columns, of one of so many more.
  __device__ __forceinline__ void add(int warp, int rank) const {
    constexpr int kLanes = W::kColumns / kColumnsALane, kStride = kWindowAdders * kSharers;
    const int lane = lane_of_warp() % kLanes, share = lane_of_warp() / kLanes;
    const int turn = static_cast<int>(kStride * l.output_step) & (W::kBytes - 1);
    Turn turns;
    Place at;
    const char* output = this->output_of(at, 0);
    constexpr int kOfWarp = 32 / W::kLanesATaken, kTaken = kWindowAdders / W::kLanesATaken;
    int last = l.slots - 1, taker = warp;
#pragma unroll 1
    for (int n = 0; n < l.windows; ++n) {
      Sum sums[kColumnsALane];
      // From there to what lies in the window before.
      const uint32_t wrap = static_cast<uint32_t>((last - turns.slot) * l.slot_bytes + W::kBytes);
      const int base = (lane - this->shift()) * 4;
#pragma unroll 1
      for (int part = 0; part < W::kParts; ++part) {
        await_phase(shared_address(&tables.full[turns.slot][part]), turns.parity);
        const int first = this->steps_ahead(part) + warp * kSharers + share, end = this->steps_ahead(part + 1);
        const char* const begin = memory + turns.slot * l.slot_bytes + first * W::kStepBytes;
        const int from = this->past(output + first * l.output_step);
        const auto each = [&](const auto& take) {
          const char* row = begin;
          if constexpr (W::kWhole) {
#pragma unroll 4
            for (int step = first; step < end; step += kStride) {
              const Mine* const place = reinterpret_cast<const Mine*>(row) + lane;
              const Mine x = place[0], g = W::kBackward ? place[W::kBytes / sizeof(Mine)] : Mine{};
              take(x, g);
              row += kStride * W::kStepBytes;
            }
          } else {
            int before = from;
#pragma unroll 3
            for (int step = first; step < end; step += kStride) {
              Mine x{}, g{};
#pragma unroll
              for (int k = 0; k < kColumnsALane; ++k) {
                // Negative numbers are large: the lesser one is none of those, or both are and it is the second.
                const uint32_t offset = static_cast<uint32_t>(base + before + k * 128);
                const char* const place = row + static_cast<int>(__viaddmin_u32(offset, wrap, offset));
                x.units[k] = *reinterpret_cast<const float*>(place);
                if (W::kBackward) g.units[k] = *reinterpret_cast<const float*>(place + W::kBytes);
              }
              take(x, g);
              before = (before + turn) & (W::kBytes - 1);
              row += kStride * W::kStepBytes;
            }
          }
        };
        add_up(each, sums);
        __syncwarp();
        // Tiles of windows that are not whole have elements of the window before.
        const int done = W::kWhole ? turns.slot : last;
        if (lane_of_warp() == 0 && (W::kWhole || n > 0)) arrive_at(shared_address(&tables.empty[done][part]));
      }
      // Lanes that share columns add up some of them each, or all what one of them writes.
      constexpr bool kPart = kSharers == 2 && kColumnsALane > 1;
      constexpr int kLeft = kPart ? kColumnsALane / 2 : kColumnsALane;
      int first = 0;
      if constexpr (kPart) {
        share_sums<kLeft>(sums, kLanes, first);
      } else {
#pragma unroll
        for (int apart = kLanes; apart < 32; apart *= 2) {
#pragma unroll
          for (int k = 0; k < kColumnsALane; ++k) sums[k] = sums[k] + shuffled(sums[k], apart);
        }
      }
      const unsigned parity = n % 2;
      await_phase(shared_address(&tables.taken), parity ^ 1);  // what was added of the last tile
#pragma unroll
      for (int k = 0; k < kLeft; ++k) {
        if (kPart || share == 0) tables.added[warp][column_of(lane, first + k)] = both_words(sums[k]);
      }
      __syncwarp();
      if (lane_of_warp() == 0) arrive_at(shared_address(&tables.written));
      // By turns, some warps add up what all have.
      if (taker < W::kTakers) {
        const int column = taker * kOfWarp + lane_of_warp() % kOfWarp, part = lane_of_warp() / kOfWarp;
        await_phase(shared_address(&tables.written), parity);
        Sum parts[kTaken];
#pragma unroll
        for (int k = 0; k < kTaken; ++k) {
          const double2 words = tables.added[k * W::kLanesATaken + part][column];
          parts[k] = {words.x, words.y};
        }
        __syncwarp();
        if (lane_of_warp() == 0) arrive_at(shared_address(&tables.taken));
#pragma unroll
        for (int k = 1; k < kTaken; ++k) parts[0] = parts[0] + parts[k];
        if (W::kLanesATaken == 2) parts[0] = parts[0] + shuffled(parts[0], kOfWarp);
        if (part == 0) {
          const int tile = n % W::kTiles, owner = column / W::kOwned;
          send(mapped_to(shared_address(&tables.handed[tile][rank][column % W::kOwned]), owner), both_words(parts[0]),
               mapped_to(shared_address(&tables.hands[tile]), owner));
        }
        taker += kWindowAdders;
      }
      taker -= W::kTakers;
      last = turns.slot;
      turns.next(l);
      if (at.next(l) && n + 1 < l.windows) output = this->output_of(at, 0);
    }
  }

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
    if constexpr (W::kBackward && !kHalves) {
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
