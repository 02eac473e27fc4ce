// What warps of a column ring do first: they load windows and add up a block's part of tiles.
#pragma once

#include "access.cuh"
#include "column_tally.cuh"
#include "dot.cuh"
#include "windows.cuh"

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
    if constexpr (W::kHalves) {
      using Tallies = std::conditional_t<W::kBackward, DotTally<Element>, ColumnTally<Element>>;
      Least<Element> least;
      Sum some[kColumnsALane];
      const auto add = [&](auto& tallies) {
        each([&](const Mine& x, const Mine& g) {
          if (!W::kBackward) note_first<1>(tallies[0], least, &x);
#pragma unroll
          for (int k = 0; k < kColumnsALane; ++k) {
            extend(tallies[k], Pack<Element, 1>{{x[k]}}, Pack<Element, 1>{{g[k]}});
          }
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
          const uint32_t x = __float_as_uint(packed[k]) & 0x7fffffffu;
          least = __viaddmin_u32(x, ~0u, least);
          some[k] += PlacedFloat::multiplied(x);
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

  // A lane's columns of a step; base: bytes from the step's window to the first of them, and wrap from what lies so far
  // ahead of it to where that is, in the window before.
  static __device__ __forceinline__ void load_mine(const char* step, int base, uint32_t wrap, int lane, bool there,
                                                   Mine& x, Mine& g) {
    if constexpr (W::kWhole) {
      const Mine* const place = reinterpret_cast<const Mine*>(step) + lane;
      if (there) x = place[0];
      if (W::kBackward && there) g = place[W::kBytes / sizeof(Mine)];
    } else {
#pragma unroll
      for (int k = 0; k < kColumnsALane; ++k) {
        // Negative numbers are large: the lesser one is none of those, or both are and it is the second.
        const uint32_t offset = static_cast<uint32_t>(base + k * 128);
        const char* const place = step + static_cast<int>(__viaddmin_u32(offset, wrap, offset));
        if (there) x.units[k] = *reinterpret_cast<const float*>(place);
        if (W::kBackward && there) g.units[k] = *reinterpret_cast<const float*>(place + W::kBytes);
      }
    }
  }

  // A lane adds its columns of a tile, of one step of kWindowAdders; where lanes share columns, of one of so many more.
  __device__ __forceinline__ void add(int warp_of_lane, int rank) const {
    const int warp = __shfl_sync(0xffffffffu, warp_of_lane, 0);  // lest addresses have parts of their own in each lane
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
          constexpr int kAtOnce = 4;
          const char* row = begin;
          int before = from, left = end - first;
          const auto take_some = [&](const auto& is_there) {
            Mine x[kAtOnce]{}, g[kAtOnce]{};
#pragma unroll
            for (int u = 0; u < kAtOnce; ++u) {
              load_mine(row + u * kStride * W::kStepBytes, base + before, wrap, lane, is_there(u), x[u], g[u]);
              before = (before + turn) & (W::kBytes - 1);
            }
#pragma unroll
            for (int u = 0; u < kAtOnce; ++u) take(x[u], g[u]);
          };
#pragma unroll 1
          for (; left > (kAtOnce - 1) * kStride; left -= kAtOnce * kStride) {
            take_some([](int) { return true; });
            row += kAtOnce * kStride * W::kStepBytes;
          }
          // Zeros where a step is not there: a loop over what is left of some steps takes longer.
          if (left > 0) take_some([&](int u) { return left > u * kStride; });
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
};

#endif

}  // namespace column_ring_kernel
}  // namespace l1norm::cuda
