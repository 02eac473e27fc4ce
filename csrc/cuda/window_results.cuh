// What warps of a column ring do that make windows' results.
#pragma once

#include "window_gradients.cuh"
#include "window_quotients.cuh"

namespace l1norm::cuda {
namespace column_ring_kernel {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

template <class W>
using WindowResults =
    std::conditional_t<W::kHalves, std::conditional_t<W::kBackward, WindowHalfGradients<W>, WindowHalfQuotients<W>>,
                       std::conditional_t<W::kBackward, WindowGradients<W>, WindowQuotients<W>>>;

template <class W>
struct RingResults : WindowResults<W> {
  using Ring<W>::l;
  using Ring<W>::tables;
  using Ring<W>::memory;
  using Ring<W>::steps;
  using typename Ring<W>::Element;
  using typename Ring<W>::Few;
  using typename WindowResults<W>::Held;
  using Ring<W>::kAcross;

  // A warp holds a window of its steps in registers until divisors are known: half a warp a narrow one of every other
  // step.
  __device__ __forceinline__ void divide(int warp) const {
    constexpr int kAtOnce = W::kHeldAtOnce, kLanes = 32 / kAtOnce;
    const int teams = W::kMany ? l.teams : 1, part = W::part_of(warp);
    const int team = teams == 2 && warp >= kWindowDividers / 2, of_team = warp - team * (kWindowDividers / 2);
    const uint32_t step = static_cast<uint32_t>(l.output_step), stride = kAtOnce * step;
#pragma unroll 1
    for (int n = team; n < l.windows; n += teams) {
      // What is made anew in each window leaves its registers to what is held.
      int lane;
      asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
      const int beside = lane / kLanes, first = of_team * l.held + beside;
      lane %= kLanes;
      const int rows = min(max(steps - first + kAtOnce - 1, 0), l.held - beside + kAtOnce - 1) / kAtOnce;
      const Place at(n, l);
      const int filled = static_cast<int>(l.by_slots.quotient(n)), slot = n - filled * l.slots;
      const char* const held = memory + slot * l.slot_bytes + first * W::kStepBytes + lane * 8;
      const auto give_up = [&] {
        __syncwarp();
        if (lane_of_warp() == 0) arrive_at(shared_address(&tables.empty[slot][part]));
      };
      const auto await_tiles = [&] {
        const int last = min(n + (W::kWhole ? 0 : l.lag), l.windows - 1);
        for (int tile = teams == 1 && n > 0 ? last : n; tile <= last; ++tile) {
          await_phase(shared_address(&tables.known[tile % W::kTiles]), tile / W::kTiles % 2);
        }
      };
      // Offsets of steps from there, of all of the block's, fit 32 bits.
      const uintptr_t begin = reinterpret_cast<uintptr_t>(this->output_of(at, 0));
      char* output = this->window_of(begin) + int64_t{at.window} * W::kBytes + lane * 8;
      const auto row_of = [&](int i) {
        const int of = first + i * kAtOnce;
        const auto jumps = static_cast<uint32_t>(this->jumps_before(of) - this->jumps_before(0));
        return static_cast<uint32_t>(this->past(begin)) + of * step + jumps * static_cast<uint32_t>(l.output_jump);
      };
      const uint32_t offset = row_of(0);
      const int index = (n * W::kColumns + kAcross * lane + this->shift()) * 8;
      asm("" : "+l"(output));  // else they are made anew in each step
      const auto place_of = [&](uint32_t row) {
        return reinterpret_cast<Few*>(output + (W::kWhole ? row : row & ~uint32_t{W::kBytes - 1}));
      };
      uint32_t unproven = 0;
      await_phase(shared_address(&tables.full[slot][part]), filled % 2);
      if (!this->is_edge(at)) {
        Held x[W::kHeld];
#pragma unroll
        for (int i = 0; i < W::kHeld; ++i) {
          if (i < rows) x[i] = Held(held + i * kAtOnce * W::kStepBytes);
        }
        give_up();
        await_tiles();
        const uint32_t limit = this->limit_of(n);
        using Words = typename WindowResults<W>::Words;
        using Made = typename WindowResults<W>::Made;
        const Made made(this->words_at(index));
        uint32_t row = offset;
        int of_run = this->ahead_in_run(first);
        const auto divide_some = [&](int done, const auto&... values) {
          constexpr int kCount = sizeof...(values);
          const Held some[] = {values...};
          uint32_t rows_of[kCount];
          Words words[kCount];
#pragma unroll
          for (int k = 0; k < kCount; ++k) {
            rows_of[k] = row;
            if (!W::kWhole) words[k] = this->words_at(index - 2 * this->past(row));
            row += stride;
            if (W::kWhole && (of_run += kAtOnce) >= l.run) {
              of_run -= l.run;
              row += static_cast<uint32_t>(l.output_jump);
            }
          }
#pragma unroll
          for (int k = 0; k < kCount; ++k) {
            Few y;
            const bool proven = this->make(some[k], W::kWhole ? made : Made(words[k]), index, limit, y);
            if (!proven) unproven |= 1u << (done + k);
            if (proven) {
              store_global(place_of(rows_of[k]), bits_of(y));
            } else {
              store_global(place_of(rows_of[k]), bits_of(some[k].x));
            }
          }
        };
#pragma unroll
        for (int i = 0; i + 1 < W::kHeld; i += 2) {
          if (i + 1 >= rows) break;
          divide_some(i, x[i], x[i + 1]);
        }
        if (rows % 2 != 0) {
          Held last = x[0];
#pragma unroll
          for (int i = 2; i < W::kHeld; i += 2) {
            if (i + 1 == rows) last = x[i];
          }
          divide_some(rows - 1, last);
        }
        if (W::kAwaitsWrites && rows > 0) await_writes(place_of(row_of(rows - 1)));
      } else {
        await_tiles();
        const uint32_t limit = this->limit_of(n);
#pragma unroll 1
        for (int i = 0; i < rows; ++i) {
          const uint32_t row = row_of(i);
          const Held x(held + i * kAtOnce * W::kStepBytes);
          Few y;
          const typename WindowResults<W>::Made made(this->words_at(index - 2 * this->past(row)));
          if (!this->make(x, made, index, limit, y)) {
            y = x.x;
            unproven |= 1u << i;
          }
          Element* const to = reinterpret_cast<Element*>(place_of(row));
          const int64_t bytes = bytes_from(at, lane, this->past(row));
#pragma unroll
          for (int k = 0; k < kAcross; ++k) {
            if (this->is_column(bytes + k * int{sizeof(Element)})) to[k] = y[k];
          }
        }
        give_up();
      }
#pragma unroll 1
      for (; unproven != 0; unproven &= unproven - 1) {
        const uint32_t row = row_of(__ffs(static_cast<int>(unproven)) - 1);
        const int64_t bytes = bytes_from(at, lane, this->past(row));
        Element* const to = reinterpret_cast<Element*>(place_of(row));
#pragma unroll 1
        for (int k = 0; k < kAcross; ++k) {
          if (W::kWhole || this->is_column(bytes + k * int{sizeof(Element)})) {
            this->make_again(to + k, index / 8 - this->past(row) / int{sizeof(Element)} + k);
          }
        }
      }
      __syncwarp();
    }
  }

  static __device__ __forceinline__ uint2 bits_of(const Few& few) { return *reinterpret_cast<const uint2*>(&few); }

  // From a step's first column, which lies `past` bytes from a multiple, to the lane's.
  static __device__ __forceinline__ int64_t bytes_from(const Place& at, int lane, int past) {
    return int64_t{at.window} * W::kBytes + lane * 8 - past;
  }
};

#endif

}  // namespace column_ring_kernel
}  // namespace l1norm::cuda
