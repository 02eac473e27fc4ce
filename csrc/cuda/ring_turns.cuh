// What a warp does with its chunk of a run in which a few rows take turns.
#pragma once

#include "column_tally.cuh"
#include "proof.cuh"
#include "ring.cuh"

namespace l1norm::cuda {

#if L1NORM_BULK_COPY

// Orders what a lane has of columns, from its `first` one on and the last one's neighbour being the first, by their
// numbers.
template <int kColumns, typename Value>
__device__ __forceinline__ void turn(Value (&values)[kColumns], int first) {
#pragma unroll
  for (int bit = 1; bit < kColumns; bit *= 2) {
    Value turned[kColumns];
#pragma unroll
    for (int k = 0; k < kColumns; ++k) turned[(k + bit) % kColumns] = values[k];
#pragma unroll
    for (int k = 0; k < kColumns; ++k) values[k] = (first & bit) != 0 ? turned[k] : values[k];
  }
}

// Elements k of a lane's packs are its column k % kColumns, counted from that of its first pack, of whichever chunk.
template <typename T, bool kBackward, int kColumns>
class TurnsChunk {
  static constexpr int kPack = kPackBytes / static_cast<int>(sizeof(T));
  // Packs that are worked on together: of a sum as many as leave a column some elements, which enter it as one term.
  static constexpr int kBatch = kColumns == 3 ? 3 : kBackward ? 2 : 4;
  static constexpr bool kTwo = kBackward ? kColumns != 3 : kColumns > 2 && sizeof(T) == 4;
  static constexpr int kSummed = kBatch * (kTwo ? 2 : 1);
  using RowPack = Pack<T, kPack>;
  static constexpr int kUnits = RowPack::kUnits, kUnit = kPack / kUnits;
  using Few = Pack<T, kUnit>;
  // From a pack of the lane to the next, and from a batch to the next.
  static constexpr int kStep = 32 * kPack % kColumns;
  static constexpr int kEach = kSummed * kPack / kColumns;
  static_assert(kBatch * kStep % kColumns == 0 && kSummed * kPack % kColumns == 0 && kEach <= 16);

 public:
  using Result = RowResult<T, kBackward, kColumns>;
  using Own = std::conditional_t<kBackward, Slope<T>, Quotient<T>>;
  using First = std::conditional_t<kBackward, DotTally<T>, ColumnTally<T>>;

  // The k-th of the block's in a run. stage: the place of its memory.
  __device__ __forceinline__ TurnsChunk(const Call& c, const Ring& ring, unsigned row, int k, const Chunk& chunk,
                                        int stage)
      : edge_(c, ring, row, k, chunk) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    first_column_ = (chunk.column + lane * kPack) % kColumns;
    first_ = lane - (chunk.place - stage) / kPackBytes;
    count_ = chunk.packs;
    x_ = reinterpret_cast<RowPack*>(staged(chunk.place));
    g_ = reinterpret_cast<const RowPack*>(staged(chunk.place + ring.chunk_bytes));
    y_ = reinterpret_cast<RowPack*>(static_cast<unsigned char*>(c.output) + chunk.to);
  }

  // The lane's first column, which is that of all its chunks of a run.
  __device__ __forceinline__ int first_column() const { return first_column_; }

  // The results from the lane's first column on.
  __device__ __forceinline__ void own_results(const Result* results, Own (&own)[kColumns]) const {
#pragma unroll
    for (int k = 0; k < kColumns; ++k) {
      const Result& result = results[(first_column_ + k) % kColumns];
      if constexpr (kBackward) {
        own[k] = result;
      } else {
        own[k] = result.quotient;
      }
    }
  }

  template <typename Tallies>
  __device__ __forceinline__ void add(Tallies& tallies, Least<T>& least) const {
    constexpr bool kNotes = !kBackward && std::is_same_v<Tallies, First[kColumns]>;
    if (edge_.to != nullptr) {
      const int mine = own_column(static_cast<int>(edge_.place % kColumns));
#pragma unroll
      for (int k = 0; k < kColumns; ++k) {
        const Pack<T, 1> x{{k == mine ? edge_.x.units[0] : T{}}}, g{{k == mine ? edge_.g.units[0] : T{}}};
        add_column<1>(tallies[k], &g, &x);
      }
      if constexpr (kNotes) least.note(edge_.x);
    }
    for (int i = first_; i < count_; i += kSummed * 32) {
      RowPack g[kBackward ? kSummed : 1], x[kSummed];
      get(x_, i, x);
      if constexpr (kBackward) get(g_, i, g);
#pragma unroll
      for (int u = 0; kNotes && u < kSummed; ++u) least.note(x[u]);
#pragma unroll
      for (int k = 0; k < kColumns; ++k) {
        Pack<T, 1> elements[kEach], grads[kEach];
        column(x, k, elements);
        if constexpr (kBackward) column(g, k, grads);
        add_column<kEach>(tallies[k], grads, elements);
      }
    }
  }

  // results: by the number of the column; own: from the lane's first one on.
  __device__ __forceinline__ void write(const Result* results, const Own (&own)[kColumns], const Call& c) const {
    if (edge_.to != nullptr) {
      const Result& result = results[edge_.place % kColumns];
      if constexpr (kBackward) {
        edge_.to->units[0] = result.gradient(edge_.g[0], edge_.x[0]);
      } else {
        edge_.to->units[0] = divide_again(edge_.x[0], result.quotient, Exactly<T>(result.total, c));
      }
    }
    for (int i = first_; i < count_; i += kBatch * 32) {
      RowPack x[kBatch];
      get(x_, i, x);
      if constexpr (kBackward) {
        RowPack g[kBatch];
        get(g_, i, g);
        differentiate(own, g, x);
        put(i, x);
      } else {
        RowPack y[kBatch];
        const uint32_t packs = divide(own, x, y);
        put(i, y);
        if (packs == 0) continue;
        // One by one, so that lanes of a warp, each with another one, do the same.
#pragma unroll 1
        for (uint32_t left = unproven_elements(own, x, packs); left != 0; left &= left - 1) {
          const int element = __ffs(static_cast<int>(left)) - 1;
          divide_element_again(results, i, element / kPack, element % kPack, c);
        }
      }
    }
  }

 private:
  Edge<T, kBackward> edge_;
  const RowPack *x_, *g_;
  RowPack* y_;
  int first_column_;
  int first_, count_;  // the lane's first pack, which may lie ahead of the chunk's, and the chunk's packs

  __device__ __forceinline__ int own_column(int column) const {
    return column >= first_column_ ? column - first_column_ : column - first_column_ + kColumns;
  }
  __device__ __forceinline__ bool has(int i) const { return static_cast<unsigned>(i) < static_cast<unsigned>(count_); }
  template <int N>
  __device__ __forceinline__ void get(const RowPack* from, int i, RowPack (&packs)[N]) const {
#pragma unroll
    for (int u = 0; u < N; ++u) packs[u] = has(i + u * 32) ? from[i + u * 32] : RowPack{};
  }
  __device__ __forceinline__ void put(int i, const RowPack (&packs)[kBatch]) const {
#pragma unroll
    for (int u = 0; u < kBatch; ++u) {
      if (has(i + u * 32)) y_[i + u * 32] = packs[u];
    }
  }

  // Of element e of the u-th pack of a batch.
  static constexpr __device__ __forceinline__ int own_column(int u, int e) { return (u * kStep + e) % kColumns; }

  static __device__ __forceinline__ void column(const RowPack (&packs)[kSummed], int k, Pack<T, 1> (&elements)[kEach]) {
    int n = 0;
#pragma unroll
    for (int u = 0; u < kSummed; ++u) {
#pragma unroll
      for (int e = 0; e < kPack; ++e) {
        if (own_column(u, e) == k) elements[n++] = element_of(packs[u], e);
      }
    }
  }

  template <int N, typename Sums>
  static __device__ __forceinline__ void add_column(Sums& tally, const Pack<T, 1>* g, const Pack<T, 1>* x) {
    if constexpr (kBackward) {
      tally.template add<N>(g, x, 1.0);
    } else {
      tally.template add<N>(x);
    }
  }

  static __device__ __forceinline__ void differentiate(const Own (&own)[kColumns], const RowPack (&g)[kBatch],
                                                       RowPack (&x)[kBatch]) {
    // Packs of the same columns.
    constexpr int kAlike = kStep == 0 ? kBatch : 1;
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit) {
#pragma unroll
      for (int u = 0; u < kBatch; u += kAlike) {
        const Slope<T>* slopes[kUnit];
#pragma unroll
        for (int k = 0; k < kUnit; ++k) slopes[k] = &own[own_column(u, unit * kUnit + k)];
        differentiate_beside<kAlike>(slopes, g + u, x + u, unit);
      }
    }
  }

  // A bit for each pack that is not proven.
  static __device__ __forceinline__ uint32_t divide(const Own (&own)[kColumns], const RowPack (&x)[kBatch],
                                                    RowPack (&y)[kBatch]) {
    uint32_t unproven = 0;
#pragma unroll
    for (int u = 0; u < kBatch; ++u) {
      Least<T> least;
      least.note(x[u]);
      Proof<T> proof;
#pragma unroll
      for (int unit = 0; unit < kUnits; ++unit) {
        Quotient<T> quotients[kUnit];
#pragma unroll
        for (int k = 0; k < kUnit; ++k) quotients[k] = own[own_column(u, unit * kUnit + k)];
        Few few;
        proof.divide(quotients, Few{{x[u].units[unit]}}, few, least);
        y[u].units[unit] = few.units[0];
      }
      unproven |= proof.holds() ? 0u : 1u << u;
    }
    return unproven;
  }

  // A bit for each element of those packs that may not be proven.
  static __device__ __forceinline__ uint32_t unproven_elements(const Own (&own)[kColumns], const RowPack (&x)[kBatch],
                                                               uint32_t packs) {
    static_assert(kBatch * kPack <= 32);
    uint32_t elements = 0;
#pragma unroll
    for (int u = 0; u < kBatch; ++u) {
      uint32_t bits = (1u << kPack) - 1;
      if constexpr (RowPack::kPairs) {
        RowPack quotients;
        bits = unproven_halves(x[u], [&](int e) -> const Quotient<T>& { return own[own_column(u, e)]; }, quotients);
      }
      if ((packs >> u & 1) != 0) elements |= bits << (u * kPack);
    }
    return elements;
  }

  // Of the u-th pack of a batch.
  __device__ __forceinline__ void divide_element_again(const Result* results, int i, int u, int element,
                                                       const Call& c) const {
    if (!has(i + u * 32)) return;
    const Result& result = results[(first_column_ + u * kStep + element) % kColumns];
    const T x = reinterpret_cast<const T*>(x_ + i + u * 32)[element];
    reinterpret_cast<T*>(y_ + i + u * 32)[element] = divide_again(x, result.quotient, Exactly<T>(result.total, c));
  }
};

#endif

}  // namespace l1norm::cuda
