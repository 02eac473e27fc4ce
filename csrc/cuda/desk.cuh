// What a tile of a lattice has of shared memory, and how its columns' sums come together there.
#pragma once

#include "gradient.cuh"
#include "lattice.cuh"
#include "reduce.cuh"

namespace l1norm::cuda {

// A tile's memory: a block's, or a warp's that has a tile of its own.
template <typename T, bool kBackward>
struct Desk {
  // All that the elements of a column need to be finished.
  using Result = std::conditional_t<kBackward, Slope<T>, Quotient<T>>;

  double2* parts;   // a warp and column; the first warp's become the columns' sums
  double2* ranks;   // a block of the cluster and column
  Result* results;  // a column
  GradientScale* scales;

  // Whole lines.
  static __host__ __device__ __forceinline__ size_t bytes(int columns, int warps, int cluster) {
    const size_t sums = static_cast<size_t>(warps) + (cluster > 1 ? static_cast<size_t>(cluster) : 0);
    const size_t a_column = sums * sizeof(double2) + sizeof(Result) + (kBackward ? sizeof(GradientScale) : 0);
    return (static_cast<size_t>(columns) * a_column + kSharedLine - 1) / kSharedLine * kSharedLine;
  }

  __device__ __forceinline__ Desk(const Place& place, const Tiling& t, int cluster) {
    extern __shared__ __align__(kSharedLine) uint4 memory[];
    const int columns = t.count();
    parts = reinterpret_cast<double2*>(reinterpret_cast<unsigned char*>(memory) + place.tile * bytes(columns, 1, 1));
    ranks = parts + t.warps * columns;
    results = reinterpret_cast<Result*>(ranks + (cluster > 1 ? cluster * columns : 0));
    scales = reinterpret_cast<GradientScale*>(results + columns);
  }
};

// For the threads that share a tile.
__device__ __forceinline__ void sync_tile(const Tiling& t) {
  if (t.tile_a_warp()) {
    __syncwarp();
  } else {
    __syncthreads();
  }
}

// Adds what the tile's warps handed in; done(column, sum) is called for each column, once a block.
template <typename T, bool kBackward, typename Done>
__device__ __forceinline__ void add_up(const Tiling& t, const Place& place, const Desk<T, kBackward>& desk,
                                       const Cluster& cluster, const Done& done) {
  const int columns = t.count();
  // As many threads a column as share its parts evenly, neighbours in a warp.
  const int bits = min(log2_of(t.warps), 4), group = 1 << bits;
  const int threads = t.tile_threads(), lane = place.thread % 32;
  const double2* from = desk.parts;
  int sources = t.warps;
  sync_tile(t);
  // First the block's warps, then the cluster's blocks, where there is more than this one.
#pragma unroll 1
  for (bool last = cluster.size == 1;; last = true) {
    if (!last) cluster.wait();
#pragma unroll 1
    for (int base = place.thread - lane; base < columns * group; base += threads) {
      const int column = (base + lane) >> bits, member = (base + lane) & (group - 1);
      Total<T, kBackward> total{};
      if (column < columns) {
#pragma unroll 1
        for (int k = member; k < sources; k += group) {
          const double2 part = from[k * columns + column];
          total = total + as_total<Total<T, kBackward>>({part.x, part.y});
        }
      }
#pragma unroll 1
      for (int bit = group / 2; bit > 0; bit /= 2) total = total + shuffled(total, bit);
      if (column >= columns) continue;
      if (!last) {
        for (int k = member; k < cluster.size; k += group) {
          cluster.store(&desk.ranks[cluster.rank * columns + column], k, both_words(total));
        }
      } else if (member == 0) {
        done(column, Sum{total});
      }
    }
    if (last) break;
    cluster.await_sums();
    from = desk.ranks;
    sources = cluster.size;
  }
  sync_tile(t);
}

}  // namespace l1norm::cuda
