// The gradients of whole columns.
#pragma once

#include "columns.cuh"
#include "gradient.cuh"

namespace l1norm::cuda {

// Lanes side by side, at the most, where slopes are shared of halves: what eight columns of a pack take is a sixth of
// all instructions else (on an H100 gradients of 33 to 64 bfloat16 are 1.05 times as fast so, but 0.95 times those of 9
// to 16, which two lanes share).
constexpr int kSlopeSharers = 8;

template <typename T, int kSteps, int kColumns, int kUnits, Sharing kSharing>
class ColumnGradients : Columns<T, true, kSteps, kColumns, kUnits, kSharing != Sharing::kNothing> {
  static constexpr bool kShared = kSharing != Sharing::kNothing;
  using Base = Columns<T, true, kSteps, kColumns, kUnits, kShared>;
  using Base::c;
  using Base::exists;
  using Base::g;
  using Base::kFew;
  using Base::kFews;
  using Base::load;
  using Base::store;
  using Base::t;
  using Base::tally;
  using Base::way;
  using Base::x;
  using typename Base::UnitPack;
  // Whether divisors are made from the columns anew, as reading them takes long where columns are this short (2
  // float32: a seventh of all bytes). Of other types, and one by one, there is no time for more arithmetic.
  static constexpr bool kMakesDivisors = sizeof(T) == 4 && kColumns > 1 && !kShared;

 public:
  using Base::Base;

  __device__ __forceinline__ void differentiate() {
    if constexpr (kSharing == Sharing::kSlopes) {
      differentiate_by_turns();
    } else {
      differentiate_alone();
    }
  }

  // Bytes of shared memory that a block takes whose warps have so many lanes side by side.
  static size_t shared_bytes(int lanes) {
    return kSharing == Sharing::kSlopes ? kStridedWarps * kColumns * lanes * sizeof(Slope<T>) : 0;
  }

 private:
  // Each lane makes the slopes of all columns that it has elements of.
  __device__ __forceinline__ void differentiate_alone() {
    Wide<T> m[kUnits][kColumns];
    Offsets o[kUnits];
    this->all_offsets(o);
#pragma unroll
    for (int j = 0; j < kUnits && !kMakesDivisors; ++j) {
      load_beside(static_cast<const Wide<T>*>(c.denominator) + o[j].denominator, t.denominator_step, t.packed, m[j]);
    }
#pragma unroll
    for (int j = 0; j < kUnits; ++j) load(j, o[j]);
#pragma unroll
    for (int j = 0; j < kUnits; ++j) {
      Slope<T> all[kMakesDivisors ? kColumns : 1];
      if constexpr (kMakesDivisors) find_slopes(j, o[j].denominator, all);
      const auto by = [&](int k) { return sizeof(T) == 8 ? dot_scale<Wide<T>>(m[j][k], c.count) : 1.0; };
      SharedDot<T> shared[kShared ? kColumns : 1];
      if constexpr (kShared) {
#pragma unroll
        for (int k = 0; k < kColumns; ++k) shared[k] = SharedDot<T>(dot(j, k, by(k)));
        this->each_other([&](const auto& other) {
#pragma unroll
          for (int k = 0; k < kColumns; ++k) shared[k].join(other);
        });
      }
#pragma unroll
      for (int f = 0; f < kFews; ++f) {
        Slope<T> slopes[kFew];
        const Slope<T>* at[kFew];
        Sum totals[kFew];
        bool plain = true;
#pragma unroll
        for (int k = 0; k < kFew; ++k) {
          const int column = f * kFew + k;
          at[k] = &slopes[k];
          if constexpr (kMakesDivisors) {
            slopes[k] = all[column];
          } else {
            Gradient gradient;
            totals[k] = kShared ? shared[kShared ? column : 0].sum() : dot(j, column, by(column));
            plain &= make_read_gradient<T>(totals[k], m[j][column], c, gradient);
            slopes[k] = Slope<T>(gradient);
          }
        }
        if (!kMakesDivisors && !plain && exists(j)) {
          // In a loop, as it is rare.
#pragma unroll 1
          for (int k = 0; k < kFew; ++k) {
            const RowDivisor<T> divisor(c, o[j].denominator + (f * kFew + k) * t.denominator_step);
            const Slope<T> slope(make_gradient<Wide<T>>(select(totals, k), divisor.scale(c)));
#pragma unroll
            for (int i = 0; i < kFew; ++i) slopes[i] = i == k ? slope : slopes[i];
          }
        }
        differentiate_beside<kSteps>(at, g[j], x[j], f);
      }
      store(j, o[j].output);
    }
  }

  // Lanes that share columns add up and make the slopes of some each, for the others.
  __device__ __forceinline__ void differentiate_by_turns() {
    extern __shared__ __align__(kSharedLine) uint4 memory[];
    Slope<T>* const slopes =
        reinterpret_cast<Slope<T>*>(memory) + threadIdx.x / 32 * (kColumns * t.lanes) + (threadIdx.x & (t.lanes - 1));
    const Offsets o = this->offsets(0);
    constexpr int kMost = kColumns * kSlopeSharers / 32;
    const int count = kColumns / this->sharers(), first = first_of_fold();
    RowDivisor<T> divisors[kMost];
#pragma unroll
    for (int i = 0; i < kMost; ++i) {
      divisors[i] = i < count ? RowDivisor<T>(c, o.denominator + (first + i) * t.denominator_step) : RowDivisor<T>{};
    }
    load(0, o);
    double sums[kColumns];
#pragma unroll
    for (int k = 0; k < kColumns; ++k) sums[k] = dot(0, k, 1.0).hi;
    fold(sums);
#pragma unroll
    for (int i = 0; i < kMost; ++i) {
      if (i >= count) break;
      slopes[(first + i) * t.lanes] = Slope<T>(read_gradient<T>(Sum{sums[i]}, divisors[i], c));
    }
    __syncwarp();
#pragma unroll
    for (int f = 0; f < kFews; ++f) {
      const Slope<T>* at[kFew];
#pragma unroll
      for (int k = 0; k < kFew; ++k) at[k] = slopes + (f * kFew + k) * t.lanes;
      differentiate_beside<kSteps>(at, g[0], x[0], f);
    }
    store(0, o.output);
  }

  // Adds up a column's sums over its lanes. Each lane goes on with a half of the columns, so that it is left with the
  // first ones of `sums`, from the column first_of_fold() on.
  __device__ __forceinline__ void fold(double (&sums)[kColumns]) const {
    int bit = t.lanes;
#pragma unroll
    for (int half = kColumns / 2; half > 0; half /= 2) {
      if (bit >= 32) break;
      const bool upper = (threadIdx.x & bit) != 0;
#pragma unroll
      for (int k = 0; k < half; ++k) {
        const double mine = upper ? sums[k + half] : sums[k], other = upper ? sums[k] : sums[k + half];
        sums[k] = mine + __shfl_xor_sync(0xffffffffu, other, bit);
      }
      bit *= 2;
    }
  }
  __device__ __forceinline__ int first_of_fold() const {
    int first = 0;
    for (int bit = t.lanes, half = kColumns / 2; bit < 32; bit *= 2, half /= 2) {
      if ((threadIdx.x & bit) != 0) first += half;
    }
    return first;
  }

  // Adds the products of a column's elements and their results' gradients to a tally.
  template <typename Products>
  __device__ __forceinline__ void multiply(int j, int k, double by, Products& tally) const {
    Pack<T, 1> elements[kSteps], grads[kSteps];
#pragma unroll
    for (int u = 0; u < kSteps; ++u) {
      elements[u].units[0] = x[j][u][k];
      grads[u].units[0] = g[j][u][k];
    }
    tally.template set<kSteps>(grads, elements, by);
  }

  __device__ __forceinline__ Sum dot(int j, int k, double by) const {
    return dot_of<T>([&](auto& tally) { multiply(j, k, by, tally); });
  }

  // A unit's, with divisors made anew. Where one is not plain, or has a gradient of its own, they are read.
  __device__ __forceinline__ void find_slopes(int j, int64_t denominator, Slope<T> (&slopes)[kColumns]) const {
    Least<T> least;
    note_each<kSteps>(least, x[j]);
    bool plain = c.grad_denominator == nullptr;
#pragma unroll
    for (int k = 0; k < kColumns; ++k) {
      const auto tallied = tally(j, k);
      DotTally<T> products;
      multiply(j, k, 1.0, products);
      double m;
      plain &= rounded_divisor(tallied.sum(), c.count, c.eps, m) & tallied.is_exact(least);
      const Gradient d = make_plain_gradient(products.finite_sum(), m, near_reciprocal(m), c.count, c.eps);
      plain &= is_finite(d.through);
      slopes[k] = Slope<T>(d);
    }
    if (plain || !exists(j)) return;
#pragma unroll
    for (int k = 0; k < kColumns; ++k) {
      const RowDivisor<T> divisor(c, denominator + k * t.denominator_step);
      slopes[k] = Slope<T>(make_gradient<Wide<T>>(dot(j, k, 1.0), divisor.scale(c)));
    }
  }
};

}  // namespace l1norm::cuda
