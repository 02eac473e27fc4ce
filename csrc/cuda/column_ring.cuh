// What warps of a column ring do ahead of quotients: they load windows, add up tiles, and tell each other the sums.
#pragma once

#include "accumulate.cuh"
#include "held.cuh"
#include "quotient.cuh"
#include "reduce.cuh"
#include "windows.cuh"

namespace l1norm::cuda {
namespace column_ring_kernel {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

struct RingSums : Ring {
  // Half a warp copies a window of a step.
  __device__ __forceinline__ void load(int warp) const {
    constexpr int kStride = 2 * kWindowLoaders;
    const int lane = lane_of_warp(), chunk = lane % 16 * kPackBytes, mine = 2 * warp + lane / 16;
    const int turn = static_cast<int>(kStride * l.output_step) & (kWindowBytes - 1);
    Turn turns;
    Place at;
    const char *input = input_of(at, first_step), *output = output_of(at, first_step);
#pragma unroll 1
    for (int n = 0; n < l.windows; ++n) {
      const bool edge = at.is_edge(l);
#pragma unroll 1
      for (int quarter = 0; quarter < kQuarters; ++quarter) {
        int step = steps_ahead(quarter) + mine;
        const int end = steps_ahead(quarter + 1);
        await_phase(shared_address(&tables.empty[turns.slot][quarter]), turns.parity ^ 1);
        int before = past(output + step * l.output_step);
        const char* from = input + step * l.input_step + at.window * kWindowBytes + chunk;
        char* to = memory + step * kStepBytes + turns.slot * kWindowBytes + chunk;
        if (!edge) {
#pragma unroll 6
          for (; step < end; step += kStride) {
            copy_async<Access::kOnce>(to, from - before);
            before = (before + turn) & (kWindowBytes - 1);
            from += kStride * l.input_step;
            to += kStride * kStepBytes;
          }
        } else {
#pragma unroll 1
          for (; step < end; step += kStride) {
            const int64_t column = (int64_t{at.window} * kWindowBytes + chunk - before) / int64_t{sizeof(float)};
#pragma unroll
            for (int k = 0; k < 4; ++k) {
              if (column + k >= 0 && column + k < l.columns) copy_element_async(to + 4 * k, from - before + 4 * k);
            }
            before = (before + turn) & (kWindowBytes - 1);
            from += kStride * l.input_step;
            to += kStride * kStepBytes;
          }
        }
        arrive_with_copies(shared_address(&tables.full[turns.slot][quarter]));
      }
      turns.next();
      if (at.next(l) && n + 1 < l.windows) {
        input = input_of(at, first_step);
        output = output_of(at, first_step);
      }
    }
  }

  // A lane adds the columns `lane` and `lane + 32` of a tile, of one step of kWindowAdders.
  __device__ __forceinline__ void add(int warp, int rank) const {
    const int lane = lane_of_warp();
    const int turn = static_cast<int>(kWindowAdders * l.output_step) & (kWindowBytes - 1);
    Turn turns;
    Place at;
    const char* output = output_of(at, first_step);
    int last = kWindowSlots - 1;
#pragma unroll 1
    for (int n = 0; n < l.windows; ++n) {
      Sum sums[2];
      // Of what lies in the window before, behind the slots' end where this one is the first of them.
      const uint32_t wrap = turns.slot == 0 ? kStepBytes : 0;
      const int base = turns.slot * kWindowBytes + (lane - l.shift) * 4;
#pragma unroll 1
      for (int quarter = 0; quarter < kQuarters; ++quarter) {
        await_phase(shared_address(&tables.full[turns.slot][quarter]), turns.parity);
        const int first = steps_ahead(quarter) + warp, end = steps_ahead(quarter + 1);
        const int from = past(output + first * l.output_step);
        const auto each = [&](const auto& take) {
          int before = from;
          const char* row = memory + first * kStepBytes;
#pragma unroll 3
          for (int step = first; step < end; step += kWindowAdders) {
            const uint32_t place = static_cast<uint32_t>(base + before);
            take(*reinterpret_cast<const uint32_t*>(row + __viaddmin_u32(place, wrap, place)),
                 *reinterpret_cast<const uint32_t*>(row + __viaddmin_u32(place + 128, wrap, place + 128)));
            before = (before + turn) & (kWindowBytes - 1);
            row += kWindowAdders * kStepBytes;
          }
        };
        double first_sum = 0.0, second_sum = 0.0;
        uint32_t least = ~0u;
        each([&](uint32_t a, uint32_t b) {
          const uint32_t x = a & 0x7fffffffu, y = b & 0x7fffffffu;
          least = __viaddmin_u32(x, ~0u, least);
          least = __viaddmin_u32(y, ~0u, least);
          first_sum += __hiloint2double(static_cast<int>(x >> 3), static_cast<int>(a << 29));
          second_sum += __hiloint2double(static_cast<int>(y >> 3), static_cast<int>(b << 29));
        });
        const Least<float> bound{2 * least + 1};
        const bool exact = max(upper_word(first_sum), upper_word(second_sum)) < PlacedFloat::exact_below(bound);
        if (exact) {
          accumulate(sums[0], PlacedFloat::unscaled({first_sum, 0.0}).hi);
          accumulate(sums[1], PlacedFloat::unscaled({second_sum, 0.0}).hi);
        } else {
          each([&](uint32_t a, uint32_t b) {
            accumulate(sums[0], static_cast<double>(fabsf(__uint_as_float(a))));
            accumulate(sums[1], static_cast<double>(fabsf(__uint_as_float(b))));
          });
        }
        __syncwarp();
        if (lane == 0 && n > 0) arrive_at(shared_address(&tables.empty[last][quarter]));
      }
      meet_adders();  // none reads the last tile's parts any more
      tables.parts[warp][lane] = both_words(sums[0]);
      tables.parts[warp][lane + 32] = both_words(sums[1]);
      meet_adders();
#pragma unroll 1
      for (int owner = warp; owner < kWindowCluster; owner += kWindowAdders) {
        Sum sum;
#pragma unroll
        for (int first = 0; first < kWindowAdders; first += kGroups) {
          const int of = first + lane / kOwned;
          if (of >= kWindowAdders) continue;
          const double2 words = tables.parts[of][owner * kOwned + lane % kOwned];
          sum = sum + Sum{words.x, words.y};
        }
        sum = across_lanes(sum);
        if (lane < kOwned) {
          const int tile = n % kTiles;
          send(mapped_to(shared_address(&tables.handed[tile][rank][lane]), owner), both_words(sum),
               mapped_to(shared_address(&tables.hands[tile]), owner));
        }
      }
      last = turns.slot;
      turns.next();
      if (at.next(l) && n + 1 < l.windows) output = output_of(at, first_step);
    }
  }

  // The sum of what groups of lanes have of kOwned columns.
  static __device__ __forceinline__ Sum across_lanes(Sum sum) {
#pragma unroll
    for (int lanes = kOwned; lanes < 32; lanes *= 2) sum = sum + shuffled(sum, lanes);
    return sum;
  }

  // Adds up this block's columns of each tile, of its cluster and of all, and tells the cluster.
  __device__ __forceinline__ void exchange(int rank, int cluster, double2* scratch) const {
    const int lane = lane_of_warp(), column = lane % kOwned, group = lane / kOwned;
    const int count = l.clusters * kOwned;
    Place at;
    Offsets plane = plane_of(at);
#pragma unroll 1
    for (int n = 0; n < l.windows; ++n) {
      const int tile = n % kTiles;
      if (lane == 0) {
        expect_bytes(shared_address(&tables.hands[tile]), kWindowColumns * static_cast<int>(sizeof(double2)));
        expect_bytes(shared_address(&tables.known[tile]),
                     kWindowColumns * static_cast<int>(sizeof(double2) + 2 * sizeof(float2)));
      }
      __syncwarp();
      await_phase(shared_address(&tables.hands[tile]), n / kTiles % 2);
      Sum sum;
#pragma unroll
      for (int of = 0; of < kWindowCluster; of += kGroups) {
        const double2 words = tables.handed[tile][of + group][column];
        sum = sum + Sum{words.x, words.y};
      }
      sum = across_lanes(sum);
      if (l.clusters > 1) {
        double2* const slots = scratch + (static_cast<int64_t>(n) * kWindowCluster + rank) * count;
        if (group == 0) publish(slots + cluster * kOwned + column, sum);
        Sum parts[kPolled];
        bool there;
        do {
          there = true;
#pragma unroll
          for (int i = 0; i < kPolled; ++i) parts[i] = peek(slots + min(i * 32 + lane, count - 1));
#pragma unroll
          for (int i = 0; i < kPolled; ++i) there &= !is_unset(parts[i]);
        } while (!__all_sync(0xffffffffu, there));
#pragma unroll
        for (int i = 0; i < kPolled; ++i) {
          if (i * 32 + lane >= count) parts[i] = Sum{};
        }
#pragma unroll
        for (int apart = 1; apart < kPolled; apart *= 2) {
#pragma unroll
          for (int i = 0; i + apart < kPolled; i += 2 * apart) parts[i] = parts[i] + parts[i + apart];
        }
        sum = across_lanes(parts[0]);
      }
      const FloatDivisor m(sum, c.count, c.eps);
      // An infinite one stands for all that divide_by() is not for; zero and NaN make quotients NaN.
      float2 words = make_float2(m.hi, m.lo);
      if (m.is_special) words.y = 0.0f;
      if (!m.usable) words = make_float2(INFINITY, 0.0f);
      const int index = tile * kWindowColumns + rank * kOwned + column;
#pragma unroll
      for (int peer = group; peer < kWindowCluster; peer += kGroups) {
        const uint32_t known = mapped_to(shared_address(&tables.known[tile]), peer);
        send(mapped_to(shared_address(&tables.divisors[0][index]), peer), words, known);
        send(mapped_to(shared_address(&tables.divisors[1][(index - 1) & (kKnown - 1)]), peer), words, known);
        send(mapped_to(shared_address(&tables.totals[index]), peer), both_words(sum), known);
      }
      if (c.denominator != nullptr && group == 0 && cluster == n % l.clusters) {
        const int64_t at_column = int64_t{at.window} * kWindowColumns - l.shift + rank * kOwned + column;
        if (at_column >= 0 && at_column < l.columns) {
          const Walk& rows = c.geometry.rows;
          write_denominator<float>(c, plane.denominator + at_column * rows.stride[rows.dims - 1].denominator, sum);
        }
      }
      if (at.next(l) && n + 1 < l.windows) plane = plane_of(at);
    }
  }
};

#endif

}  // namespace column_ring_kernel
}  // namespace l1norm::cuda
