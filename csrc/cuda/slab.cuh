// Rows whose elements take turns in a dense run of memory, which the blocks of a cluster hold in shared memory. The
// columns of packs come again after a turn of packs: lanes take packs that lie a multiple of that apart.
#pragma once

#include "gradient.cuh"
#include "proof.cuh"
#include "slab_part.cuh"

namespace l1norm::cuda {

template <typename T, bool kBackward>
class Slab : public SlabPart<T, kBackward> {
  using Part = SlabPart<T, kBackward>;
  using Part::c, Part::s, Part::count, Part::x, Part::g, Part::thread, Part::threads, Part::chunks;
  using Part::kPack, Part::kCell;
  using typename Part::Cell;
  static constexpr int kBatch = slab_batch(sizeof(T));  // cells of a lane that are worked on together
  static constexpr int kUnits = Cell::kUnits, kUnit = kCell / kUnits;
  static constexpr int kTogether = proven_together<T>(kBatch);  // cells whose quotients are proven together
  using Few = Pack<T, kUnit>;
  using Result = std::conditional_t<kBackward, Slope<T>, Quotient<T>>;
  using TotalOf = Total<T, kBackward>;
  static_assert(kCell <= 4);
  static_assert(!kBackward || sizeof(T) < 8);  // dot products of doubles would have to be scaled
  static_assert(sizeof(Result) + (kBackward ? 0 : sizeof(double2)) == slab_result_bytes(kBackward, sizeof(T)));
  static_assert(!kBackward || sizeof(RowDivisor<T>) == kSlabDivisorBytes);

 public:
  __device__ __forceinline__ Slab(const Call& call, const Slabs& slabs, unsigned number, const Cluster& cluster)
      : Part(call, slabs, number, cluster) {
    parts = static_cast<double2*>(this->behind);
    ranks = parts + s.copies * s.columns.columns;
    sums = ranks + (cluster.size > 1 ? cluster.size * s.rows.columns : 0);
    results = reinterpret_cast<Result*>(sums + (kBackward ? 0 : s.columns.columns + kPack));
    divisors = reinterpret_cast<RowDivisor<T>*>(results + s.columns.columns + kPack);
  }

  __device__ __forceinline__ void clear_parts() const {
    for (int k = thread(); k < s.copies * s.columns.columns; k += threads()) parts[k] = make_double2(0.0, 0.0);
  }

  // Adds what lanes have of each column to parts.
  __device__ __forceinline__ void add_up() {
    each_pass([&](int j, int group) {
      TotalOf mine[kCell];
      sum_columns(j, mine);
      int first = 0, kept = kCell;
      const int groups = 32 >> s.lane_bits;
      int bit = 0;
      if constexpr (kCell >= 4) {
        if (bit < s.lane_bits) {
          share_sums<2>(mine, groups << bit++, first);
          kept = 2;
        }
      }
      if (bit < s.lane_bits) {
        share_sums<1>(mine, groups << bit++, first);
        kept = 1;
      }
      const bool hands_in = first_turn() >> bit == 0;
#pragma unroll 1
      for (; bit < s.lane_bits; ++bit) mine[0] = mine[0] + shuffled(mine[0], groups << bit);
      if (j < s.turn && hands_in) {
#pragma unroll
        for (int k = 0; k < kCell; ++k) {
          if (k >= kept) break;
          const int in_pass = group * kCell + first + k, column = s.columns.column_of(j * kCell + first + k);
          double2& part = parts[s.columns.turn_of(in_pass) * s.columns.columns + column];
          part = both_words(as_total<TotalOf>({part.x, part.y}) + mine[k]);
        }
      }
      __syncthreads();
    });
  }

  // Calls use(row, member) in all threads, neighbours of which are a row's members; behind the last row is none.
  template <typename Use>
  __device__ __forceinline__ void each_row(const Use& use) const {
    const int beside = threads() >> s.row_bits, member = thread() & ((1 << s.row_bits) - 1);
#pragma unroll 1
    for (int base = 0; base < s.rows.columns; base += beside) use(base + (thread() >> s.row_bits), member);
  }

  // The block's sum of a row, which all its members are told.
  __device__ __forceinline__ Sum sum_of_block(int row, int member) const {
    TotalOf sum{};
    if (row < s.rows.columns) {
      each_column(row, member, [&](int column) {
        for (int k = 0; k < s.copies; ++k) {
          const double2 part = parts[k * s.columns.columns + column];
          sum = sum + as_total<TotalOf>({part.x, part.y});
        }
      });
    }
#pragma unroll 1
    for (int bit = 0; bit < s.row_bits; ++bit) sum = sum + shuffled(sum, 1 << bit);
    return Sum{sum};
  }

  // Of the row's columns that are the member's.
  __device__ __forceinline__ void set_result(int row, int member, const Sum& total, const Result& result) const {
    each_column(row, member, [&](int column) {
      for (int k = column; k < s.columns.columns + kPack; k += s.columns.columns) {
        if constexpr (!kBackward) sums[k] = both_words(total);
        results[k] = result;
      }
    });
  }

  // Puts results in the place of the input, and stores them. Shared memory may be given up then.
  __device__ __forceinline__ void finish() const {
    T* const to = this->output();
#pragma unroll 1
    for (int chunk = 0; chunk < chunks(); ++chunk) {
      each_pass([&](int j, int) {
        if (j < s.turn) finish_cells(j, chunk);
      });
      this->store(to, chunk);
    }
    this->store_ends(to);
  }

  Result* results;          // a column, and the first ones again
  RowDivisor<T>* divisors;  // a row
  double2 *parts, *ranks;

 private:
  double2* sums;
  std::conditional_t<kBackward, Empty, Least<T>> least;

  // Calls use(the turn's cell, its number in the pass) once in all threads for each pass over the turn's cells.
  template <typename Use>
  __device__ __forceinline__ void each_pass(const Use& use) const {
    const int in_warp = 32 >> s.lane_bits, groups = threads() >> s.lane_bits;
    const int group = thread() / 32 * in_warp + (thread() & (in_warp - 1));
#pragma unroll 1
    for (int base = 0; base < s.turn; base += groups) use(base + group, group);
  }

  // Calls use(column) for a member's columns, which are numbered from the first pack's start.
  template <typename Use>
  __device__ __forceinline__ void each_column(int row, int member, const Use& use) const {
    const int apart = s.folds.apart.columns, first = s.folds.first_column(s.folds.row(row)) + this->shift;
#pragma unroll 1
    for (int at = member * apart; at < s.folds.columns.columns; at += apart << s.row_bits) {
      use(s.columns.column_of(first + at));
    }
  }

  // The lane's first turn, and the cells from one of its turns to the next.
  __device__ __forceinline__ int first_turn() const { return thread() % 32 >> (5 - s.lane_bits); }
  __device__ __forceinline__ int step() const { return s.turn << s.lane_bits; }

  __device__ __forceinline__ void load_batch(const Cell* from, int place, Cell (&to)[kBatch]) const {
#pragma unroll
    for (int u = 0; u < kBatch; ++u) to[u] = place + u * step() < count ? from[place + u * step()] : Cell{};
  }

  // Calls add(grads, values), of kBatch cells each, for the lane's cells of a place in the turn.
  template <typename Add>
  __device__ __forceinline__ void each_batch(int j, const Add& add) const {
    if (j >= s.turn) return;
    int place = j + first_turn() * s.turn;
#pragma unroll 1
    for (int chunk = 0; chunk < chunks(); ++chunk) {
      this->await_chunk(chunk);
#pragma unroll 1
      for (int k = 0; k < s.chunk && place < count; k += kBatch << s.lane_bits, place += kBatch * step()) {
        Cell values[kBatch], grads[kBackward ? kBatch : 1];
        load_batch(x, place, values);
        if constexpr (kBackward) load_batch(g, place, grads);
        add(grads, values);
      }
    }
  }

  // The same of a chunk, with results in their place.
  __device__ __forceinline__ void finish_cells(int j, int chunk) const {
    const int result = s.columns.column_of(j * kCell);
    int place = j + (first_turn() + chunk * s.chunk) * s.turn;
#pragma unroll 1
    for (int k = 0; k < s.chunk && place < count; k += kBatch << s.lane_bits, place += kBatch * step()) {
      Cell values[kBatch];
      uint32_t unproven = 0;
      load_batch(x, place, values);
      if constexpr (kBackward) {
        Cell grads[kBatch];
        load_batch(g, place, grads);
        differentiate(grads, values, results + result);
      } else {
        unproven = divide(values, result);
      }
#pragma unroll
      for (int u = 0; u < kBatch; ++u) {
        if (place + u * step() < count) x[place + u * step()] = values[u];
      }
      if constexpr (!kBackward) divide_rest(unproven, place, result);
    }
  }

  template <int N>
  static __device__ __forceinline__ void column_of_cells(const Cell (&cells)[N], int k, Pack<T, 1> (&column)[N]) {
#pragma unroll
    for (int u = 0; u < N; ++u) column[u] = element_of(cells[u], k);
  }

  __device__ __forceinline__ void sum_columns(int j, TotalOf (&mine)[kCell]) {
    using First = std::conditional_t<kBackward, DotTally<T>, Tally<T>>;
    using Careful = typename First::Careful;
    Losses<First> losses;
    add_columns<First>(j, mine, [&](const First& tally) { losses.note(tally, least); });
    if constexpr (!std::is_same_v<First, Careful>) {
      const bool lost = losses.any([&](auto& seer) {
        each_batch(j, [&](const Cell(&grads)[kBatch], const Cell(&values)[kBatch]) {
          seer.template add<kBatch>(grads, values, 0.0);
        });
      });
      if (lost) add_columns<Careful>(j, mine, [](const Careful&) {});
    }
  }

  template <typename Sums, typename See>
  __device__ __forceinline__ void add_columns(int j, TotalOf (&mine)[kCell], const See& see) {
    constexpr bool kFirst = std::is_same_v<Sums, std::conditional_t<kBackward, DotTally<T>, Tally<T>>>;
    Sums tallies[kCell];
    each_batch(j, [&](const auto& grads, const Cell(&values)[kBatch]) {
      if constexpr (!kBackward && kFirst) note_each<kBatch>(least, values);
#pragma unroll
      for (int k = 0; k < kCell; ++k) {
        Pack<T, 1> elements[kBatch];
        column_of_cells(values, k, elements);
        if constexpr (kBackward) {
          Pack<T, 1> others[kBatch];
          column_of_cells(grads, k, others);
          tallies[k].template add<kBatch>(others, elements, 0.0);
        } else {
          tallies[k].template add<kBatch>(elements);
        }
      }
    });
#pragma unroll
    for (int k = 0; k < kCell; ++k) {
      see(tallies[k]);
      mine[k] = as_total<TotalOf>(tallies[k].sum());
    }
  }

  __device__ __forceinline__ void differentiate(const Cell (&grads)[kBatch], Cell (&values)[kBatch],
                                                const Result* at) const {
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit) {
      const Slope<T>* slopes[kUnit];
#pragma unroll
      for (int k = 0; k < kUnit; ++k) slopes[k] = at + unit * kUnit + k;
      differentiate_beside<kBatch>(slopes, grads, values, unit);
    }
  }

  // What is not proven, of which it returns a bit each, stays as it is.
  __device__ __forceinline__ uint32_t divide(Cell (&values)[kBatch], int result) const {
    uint32_t unproven = 0;
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit) {
      Quotient<T> quotients[kUnit];
#pragma unroll
      for (int k = 0; k < kUnit; ++k) quotients[k] = results[result + unit * kUnit + k];
#pragma unroll
      for (int first = 0; first < kBatch; first += kTogether) {
        Few few[kTogether];
        Proof<T> proof;
#pragma unroll
        for (int u = 0; u < kTogether; ++u) {
          proof.divide(quotients, Few{{values[first + u].units[unit]}}, few[u], least);
        }
        if (kTogether > 1 && !proof.holds()) {
#pragma unroll
          for (int u = 0; u < kTogether; ++u) {
            Proof<T> own;
            own.divide(quotients, Few{{values[first + u].units[unit]}}, few[u], least);
            if (own.holds()) continue;
            few[u].units[0] = values[first + u].units[unit];
            unproven |= 1u << (unit * kBatch + first + u);
          }
        }
        if (kTogether == 1 && !proof.holds()) {
          unproven |= 1u << (unit * kBatch + first);
          continue;
        }
#pragma unroll
        for (int u = 0; u < kTogether; ++u) values[first + u].units[unit] = few[u].units[0];
      }
    }
    return unproven;
  }

  __device__ __forceinline__ void divide_rest(uint32_t unproven, int place, int result) const {
#pragma unroll 1
    for (; unproven != 0; unproven &= unproven - 1) {
      const int bit = __ffs(static_cast<int>(unproven)) - 1, unit = bit / kBatch, u = bit % kBatch;
      if (place + u * step() >= count) continue;
      T* const elements = reinterpret_cast<T*>(x + place + u * step()) + unit * kUnit;
#pragma unroll 1
      for (int k = 0; k < kUnit; ++k) {
        const int column = result + unit * kUnit + k;
        const double2 sum = sums[column];
        elements[k] = divide_again(elements[k], results[column], Exactly<T>({sum.x, sum.y}, c));
      }
    }
  }
};

}  // namespace l1norm::cuda
