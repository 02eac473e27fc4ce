// Columns that come round in a dense run of memory that a team has, of lanes of a warp or of all of a block, or two
// teams. Lanes take packs that lie a multiple of what columns come round in apart, so that a lane's columns stay.
#pragma once

#include "plan_warp_columns.h"
#include "reduce.cuh"
#include "turns.cuh"

namespace l1norm::cuda {

struct WarpColumns {
  int64_t runs;
  int64_t beside;                 // from a column's denominator to the next
  int64_t span_input, span_grad;  // elements of an operand, from its first to behind its last
  int run;                        // elements
  Turns turns;                    // of its columns
  int team_bits;                  // logarithm of a team's lanes
  int lanes;                      // of those the ones that have packs
  int warps;                      // that share a run, each a team of its own
  Divider by_packs;               // by those that lie from one of a lane's to the next

  __host__ __device__ __forceinline__ int team() const { return 1 << team_bits; }
  __host__ __device__ __forceinline__ int apart() const { return lanes * warps; }
  __device__ __forceinline__ bool is_block() const { return team_bits > 5; }
};

// Until all lanes of a warp, or of a block, are there, and what they wrote.
__device__ __forceinline__ void await_team(const WarpColumns& s) {
  if (s.is_block()) {
    __syncthreads();
  } else {
    __syncwarp();
  }
}
__device__ __forceinline__ bool any_of_team(const WarpColumns& s, bool value) {
  return s.is_block() ? __syncthreads_or(value) != 0 : __any_sync(0xffffffffu, value);
}

// What lanes of a team hand in of their packs' elements, with a gap behind each pack, as lanes whose packs are
// neighbours would meet in the same banks.
template <typename V, typename T>
class TeamParts {
 public:
  static constexpr int kPack = kPackBytes / static_cast<int>(sizeof(T));
  static __host__ __device__ __forceinline__ int bytes(int lanes) {
    return lanes * (kPack + 1) * static_cast<int>(sizeof(V));
  }

  __device__ __forceinline__ explicit TeamParts(void* start) : start_(static_cast<V*>(start)) {}
  __device__ __forceinline__ V& operator[](int slot) const { return start_[slot + slot / kPack]; }

 private:
  V* start_;
};

// What a team has in shared memory: what its lanes hand in, its sums where warps share a run, and columns' sums and
// results, of which the first ones come again.
template <typename Result, typename T>
struct TeamDesk {
  static constexpr int kPack = kPackBytes / static_cast<int>(sizeof(T));
  unsigned char* parts;
  double2 *ranks, *sums;
  Result* results;

  static int bytes(const WarpColumns& s) {
    const int columns = s.turns.columns;
    return TeamParts<Sum, T>::bytes(s.lanes) + (2 * columns + kPack) * static_cast<int>(sizeof(double2)) +
           (columns + kPack) * static_cast<int>(sizeof(Result));
  }

  __device__ __forceinline__ TeamDesk(const WarpColumns& s, unsigned char* memory)
      : parts(memory),
        ranks(reinterpret_cast<double2*>(memory + TeamParts<Sum, T>::bytes(s.lanes))),
        sums(ranks + s.turns.columns),
        results(reinterpret_cast<Result*>(sums + s.turns.columns + kPack)) {}
};

// The team's sum of the column of which the lane has the number, if there is one, of what lanes handed in. Of a block
// no two lanes have one's.
template <typename V, typename T>
__device__ __forceinline__ V sum_of_column(const WarpColumns& s, const TeamParts<V, T>& parts) {
  const int lane = static_cast<int>(threadIdx.x) & (s.team() - 1), columns = s.turns.columns;
  int members = s.turns.turn_of(s.team());
  const int member = s.turns.turn_of(lane), step = members * columns;
  V sum{};
  if (member < members) {
    for (int at = lane; at < s.lanes * parts.kPack; at += step) sum = sum + parts[at];
  }
  const auto from_above = [&](double value, int lanes) {
    return __shfl_down_sync(0xffffffffu, value, static_cast<unsigned>(lanes), s.team());
  };
#pragma unroll 1
  while (members > 1) {
    const int half = (members + 1) / 2, from = half * columns;
    V other;
    if constexpr (std::is_same_v<V, Sum>) {
      other = {from_above(sum.hi, from), from_above(sum.lo, from)};
    } else {
      other = from_above(sum, from);
    }
    if (member < members - half) sum = sum + other;
    members = half;
  }
  return sum;
}

}  // namespace l1norm::cuda
