// What warps of a column ring do that divide windows.
#pragma once

#include "unproven.cuh"
#include "windows.cuh"

namespace l1norm::cuda {
namespace column_ring_kernel {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

struct RingQuotients : Ring {
  // The divisors of the pair of columns of that index times 8.
  __device__ __forceinline__ float4 pair_of(int index) const {
    const char* const from = reinterpret_cast<const char*>(tables.divisors) + (index & (kKnown * 8 - 16)) +
                             (index & 8) * (static_cast<int>(sizeof tables.divisors[0]) / 8);
    return *reinterpret_cast<const float4*>(from);
  }

  // As Quotient<float>, without what is made once a divisor; constants in the place of two products: what is rounded of
  // the correction is 2^-24 of it. Zero where y is the quotient rounded once, if x is in range.
  static __device__ __forceinline__ uint32_t divide_by(float x, float hi, float lo, float& y) {
    const float inverse = approximate_reciprocal(hi), q = x * inverse;
    const float correction = fmaf(q, lo, fmaf(q, hi, -x)) * inverse;
    y = fmaf(correction, -(1.0f + 0x1p-18f), q);
    return __float_as_uint(y) ^ __float_as_uint(fmaf(correction, -(1.0f - 0x1p-18f), q));
  }

  // What elements must be above, twice their bits less one, so that quotients by a window's divisors are normal and
  // remainders lose nothing. All are not where one of the divisors is infinite.
  __device__ __forceinline__ uint32_t limit_of(int n) const {
    const int first = (n * kWindowColumns + l.shift - (kWindowColumns - 1)) & ~1;
    float most = 0.0f;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float4 pair = pair_of((first + 2 * (lane_of_warp() + 32 * i)) * 8);
      most = fmaxf(most, fmaxf(pair.x, pair.z));
    }
    const uint32_t bits = __reduce_max_sync(0xffffffffu, __float_as_uint(most));
    if (bits >= __float_as_uint(INFINITY)) return ~0u;
    return 2u * __float_as_uint(fmaxf(0x1p-101f, __uint_as_float(bits) * 0x1p-90f)) - 2u;
  }

  // Of a pair of neighbours. False where one is not proven.
  static __device__ __forceinline__ bool divide_pair(const float2& x, const float4& m, uint32_t limit, float2& y) {
    const uint32_t differ = divide_by(x.x, m.x, m.y, y.x) | divide_by(x.y, m.z, m.w, y.y);
    const uint32_t least = min(2u * __float_as_uint(x.x) - 1u, 2u * __float_as_uint(x.y) - 1u);
    return (differ == 0) & (least > limit);
  }

  // A warp holds a window of its steps in registers until divisors are known.
  __device__ __forceinline__ void divide(int warp) const {
    const int lane = lane_of_warp(), first = warp * l.held, quarter = quarter_of(warp);
    const int rows = min(max(steps - first, 0), l.held);
    const uint32_t stride = static_cast<uint32_t>(l.output_step);
#pragma unroll 1
    for (int n = 0; n < l.windows; ++n) {
      // What is made anew in each window leaves its registers to what is held.
      const Place at(n, l);
      const int filled = n / kWindowSlots, slot = n - filled * kWindowSlots;
      const char* const held = memory + first * kStepBytes + slot * kWindowBytes + lane * 8;
      const auto give_up = [&] {
        __syncwarp();
        if (lane == 0) arrive_at(shared_address(&tables.empty[slot][quarter]));
      };
      const auto await_tiles = [&] {
        const int last = min(n + l.lag, l.windows - 1);
        for (int tile = n == 0 ? 0 : last; tile <= last; ++tile) {
          await_phase(shared_address(&tables.known[tile % kTiles]), tile / kTiles % 2);
        }
      };
      // Offsets of steps from there, of all of the block's, fit 32 bits.
      const uintptr_t begin = reinterpret_cast<uintptr_t>(output_of(at, first_step));
      char* output = window_of(begin) + int64_t{at.window} * kWindowBytes + lane * 8;
      const uint32_t offset = static_cast<uint32_t>(past(begin)) + first * stride;
      const int index = (n * kWindowColumns + 2 * lane + l.shift) * 8;
      asm("" : "+l"(output));  // else they are made anew in each step
      const auto place_of = [&](uint32_t row) {
        return reinterpret_cast<float2*>(output + (row & ~uint32_t{kWindowBytes - 1}));
      };
      uint32_t unproven = 0;
      await_phase(shared_address(&tables.full[slot][quarter]), filled % 2);
      const bool edge = at.is_edge(l);
      if (!edge) {
        float2 x[kWindowHeld];
#pragma unroll
        for (int i = 0; i < kWindowHeld; ++i) {
          if (i < rows) x[i] = *reinterpret_cast<const float2*>(held + i * kStepBytes);
        }
        give_up();
        await_tiles();
        const uint32_t limit = limit_of(n);
        uint32_t row = offset;
        const auto divide_some = [&](int first, const auto&... values) {
          constexpr int kCount = sizeof...(values);
          const float2 some[] = {values...};
          uint32_t rows_of[kCount];
          float4 m[kCount];
#pragma unroll
          for (int k = 0; k < kCount; ++k) {
            rows_of[k] = row;
            m[k] = pair_of(index - 2 * past(row));
            row += stride;
          }
#pragma unroll
          for (int k = 0; k < kCount; ++k) {
            float2 y;
            const bool proven = divide_pair(some[k], m[k], limit, y);
            if (!proven) unproven |= 1u << (first + k);
            if (proven) {
              store_global(place_of(rows_of[k]), y);
            } else {
              store_global(place_of(rows_of[k]), some[k]);
            }
          }
        };
#pragma unroll
        for (int i = 0; i + 1 < kWindowHeld; i += 2) {
          if (i + 1 >= rows) break;
          divide_some(i, x[i], x[i + 1]);
        }
        if (rows % 2 != 0) {
          float2 last = x[0];
#pragma unroll
          for (int i = 2; i < kWindowHeld; i += 2) {
            if (i + 1 == rows) last = x[i];
          }
          divide_some(rows - 1, last);
        }
        if (rows > 0) await_writes(place_of(row - stride));
      } else {
        await_tiles();
        const uint32_t limit = limit_of(n);
#pragma unroll 1
        for (int i = 0; i < rows; ++i) {
          const uint32_t row = offset + i * stride;
          const float2 x = *reinterpret_cast<const float2*>(held + i * kStepBytes);
          float2 y;
          if (!divide_pair(x, pair_of(index - 2 * past(row)), limit, y)) {
            y = x;
            unproven |= 1u << i;
          }
          float* const to = reinterpret_cast<float*>(place_of(row));
          const int64_t bytes = bytes_from(at, past(row));
          if (is_column(bytes)) to[0] = y.x;
          if (is_column(bytes + 4)) to[1] = y.y;
        }
        give_up();
      }
#pragma unroll 1
      for (; unproven != 0; unproven &= unproven - 1) {
        const uint32_t row = offset + (__ffs(static_cast<int>(unproven)) - 1) * stride;
        divide_again(bytes_from(at, past(row)), reinterpret_cast<float*>(place_of(row)), index / 8 - past(row) / 4);
      }
      __syncwarp();
    }
  }

  // From a step's first column, which lies `past` bytes from a multiple, to the lane's.
  static __device__ __forceinline__ int64_t bytes_from(const Place& at, int past) {
    return int64_t{at.window} * kWindowBytes + lane_of_warp() * 8 - past;
  }
  // Two neighbours that stand where their quotients go, so many bytes from their step's first column.
  __device__ __forceinline__ void divide_again(int64_t bytes, float* to, int index) const {
#pragma unroll 1
    for (int k = 0; k < 2; ++k) {
      if (!is_column(bytes + 4 * k)) continue;
      const double2 words = tables.totals[(index + k) & (kKnown - 1)];
      to[k] = exact_quotient(to[k], exact_divisor<float>(Sum{words.x, words.y}, c));
    }
  }
};

#endif

}  // namespace column_ring_kernel
}  // namespace l1norm::cuda
