// Rows whose elements take turns in a dense run of memory, which the blocks of a cluster hold in shared memory. The
// columns of packs come again after a turn of packs: lanes take packs that lie a multiple of that apart.
#pragma once

#include "bulk.cuh"
#include "gradient.cuh"
#include "lattice.cuh"
#include "reduce.cuh"

namespace l1norm::cuda {

struct Slabs {
  int64_t run;    // elements of all rows that take turns
  int inner;      // such rows
  int turn;       // cells from one to the next of the same columns
  int packs;      // of a block: whole turns
  int lane_bits;  // logarithm of the lanes that have the same columns
  int chunk;      // turns that are loaded and stored by themselves: whole batches
  int copies;     // sums of a column that a pass over the turn's cells adds at once
  Divider by_inner;

  Slabs(const Lattice& l, bool backward, int64_t size, const SlabPlan& plan)
      : run(l.geometry.row.count * l.inner),
        inner(static_cast<int>(l.inner)),
        turn(plan.turn * slab_cells(backward, size)),
        packs(plan.packs),
        lane_bits(bits_of(static_cast<uint32_t>(plan.lanes)) - 1),
        chunk(static_cast<int>(ceil_div(plan.packs / plan.turn, int64_t{slab_batch(size)} * plan.lanes * plan.chunks)) *
              slab_batch(size) * plan.lanes),
        copies(slab_copies(inner, kPackBytes / size / slab_cells(backward, size), plan)),
        by_inner(static_cast<uint32_t>(inner)) {}

  __device__ __forceinline__ int round_of(int column) const {
    return static_cast<int>(by_inner.quotient(static_cast<uint32_t>(column)));
  }
  __device__ __forceinline__ int column_of(int column) const { return column - round_of(column) * inner; }
};

// Halves what lanes have of kCount sums each, and adds what their peers, `mask` lanes away, have of that half.
template <int kHalf, int kCount>
__device__ __forceinline__ void share_sums(Sum (&sums)[kCount], int mask, int& first) {
  const bool upper = (static_cast<int>(threadIdx.x) & mask) != 0;
#pragma unroll
  for (int k = 0; k < kHalf; ++k) {
    const Sum give = upper ? sums[k] : sums[k + kHalf], keep = upper ? sums[k + kHalf] : sums[k];
    sums[k] = keep + shuffled(give, mask);
  }
  if (upper) first += kHalf;
}

template <typename T, bool kBackward>
class Slab {
 public:
  static constexpr int kPack = kPackBytes / static_cast<int>(sizeof(T));
  // What a lane takes at a time: a pack or half of one, and so many of them together.
  static constexpr int kCells = slab_cells(kBackward, sizeof(T)), kCell = kPack / kCells;
  static constexpr int kBatch = slab_batch(sizeof(T));
  using Cell = Pack<T, kCell>;
  static constexpr int kUnits = Cell::kUnits, kUnit = kCell / kUnits;
  using Few = Pack<T, kUnit>;
  using Result = std::conditional_t<kBackward, Slope<T>, Quotient<T>>;
  static_assert(kCell <= 4);
  static_assert(!kBackward || sizeof(T) < 8);  // dot products of doubles would have to be scaled
  static_assert(sizeof(Result) + (kBackward ? sizeof(GradientScale) : sizeof(double2)) ==
                slab_result_bytes(kBackward, sizeof(T)));

  __device__ __forceinline__ Slab(const Call& c_, const Slabs& s_, unsigned number, const Cluster& cluster)
      : c(c_), s(s_) {
    offsets = offsets_of(c.geometry.rows, static_cast<int64_t>(number) * s.inner);
    shift = elements_past<T>(c.output, offsets.output, kPack);
    const int64_t begin = static_cast<int64_t>(cluster.rank) * s.packs;
    const int64_t left = (s.run + shift + kPack - 1) / kPack - begin;
    packs = static_cast<int>(max(min(left, static_cast<int64_t>(s.packs)), int64_t{0}));
    count = packs * kCells;
    at = begin * kPack - shift;
    head = static_cast<int>(max(-at, int64_t{0}));
    tail = static_cast<int>(min(s.run - at - static_cast<int64_t>(packs - 1) * kPack, static_cast<int64_t>(kPack)));
    first_whole = head > 0 && packs > 0 ? 1 : 0;
    end_whole = max(tail < kPack ? packs - 1 : packs, first_whole);
    // Copies are faster where they begin as far from a line in memory and in shared memory (256 x 1024 x 196 float32
    // over its middle 0.72, else 0.67).
    Cell* const places = reinterpret_cast<Cell*>(memory());
    const int room = slab_room(s.packs) * kCells;
    x = places + past_a_line(c.input, offsets.input);
    g = kBackward ? places + room + past_a_line(c.grad, offsets.grad) : nullptr;
    parts = reinterpret_cast<double2*>(places + room * (kBackward ? 2 : 1));
    ranks = parts + s.copies * s.inner;
    sums = ranks + (cluster.size > 1 ? cluster.size * s.inner : 0);
    results = reinterpret_cast<Result*>(sums + (kBackward ? 0 : s.inner + kPack));
    scales = reinterpret_cast<GradientScale*>(results + s.inner + kPack);
  }

  // Barriers of chunks, for the copy engine, where there is one.
  __device__ __forceinline__ void start_barriers() const {
#if L1NORM_BULK_COPY
    if (thread() != 0) return;
    for (int chunk = 0; chunk < kSlabChunks; ++chunk) start_barrier(barrier(chunk), 1);
    show_barriers();
#endif
  }

  __device__ __forceinline__ void load() const {
    const T* const from = static_cast<const T*>(c.input) + offsets.input + at;
    const T* const from_grad = kBackward ? static_cast<const T*>(c.grad) + offsets.grad + at : nullptr;
#if L1NORM_BULK_COPY
    if (thread() == 0) {
      for (int chunk = 0; chunk < chunks(); ++chunk) {
        int begin, bytes;
        whole_of(chunk, begin, bytes);
        expect_bytes(barrier(chunk), bytes * (kBackward ? 2 : 1));
        if (bytes == 0) continue;
        if constexpr (kBackward) {
          copy_bulk<Access::kOnce>(g + begin * kCells, from_grad + begin * kPack, bytes, barrier(chunk));
        }
        copy_bulk<Access::kOnce>(x + begin * kCells, from + begin * kPack, bytes, barrier(chunk));
      }
    }
#endif
    // Where packs have neighbours of others, these are zeros.
    each_end([&](int k, bool is_own) {
      reinterpret_cast<T*>(x)[k] = is_own ? from[k] : T{};
      if constexpr (kBackward) reinterpret_cast<T*>(g)[k] = is_own ? from_grad[k] : T{};
    });
  }

  __device__ __forceinline__ void clear_parts() const {
    for (int k = thread(); k < s.copies * s.inner; k += threads()) parts[k] = make_double2(0.0, 0.0);
  }

  // Columns are numbered from the first pack's start.
  __device__ __forceinline__ int64_t denominator(int column) const {
    const Walk& units = c.geometry.rows;
    const int row = s.column_of(column + s.inner * kPack - shift);
    return offsets.denominator + row * units.stride[units.dims - 1].denominator;
  }

  // Adds what lanes have of each column to parts.
  __device__ __forceinline__ void add_up() {
    each_pass([&](int j, int group) {
      Sum mine[kCell];
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
          const int in_pass = group * kCell + first + k, column = s.column_of(j * kCell + first + k);
          double2& part = parts[s.round_of(in_pass) * s.inner + column];
          const Sum sum = Sum{part.x, part.y} + mine[k];
          part = make_double2(sum.hi, sum.lo);
        }
      }
      __syncthreads();
    });
  }

  // The block's sum of a column.
  __device__ __forceinline__ Sum sum_of_block(int column) const {
    Sum sum;
    for (int k = 0; k < s.copies; ++k) {
      const double2 part = parts[k * s.inner + column];
      sum = sum + Sum{part.x, part.y};
    }
    return sum;
  }

  __device__ __forceinline__ void set_result(int column, const Sum& total, const Result& result) const {
    for (int k = column; k < s.inner + kPack; k += s.inner) {
      if constexpr (!kBackward) sums[k] = make_double2(total.hi, total.lo);
      results[k] = result;
    }
  }

  // Puts results in the place of the input, and stores them. Shared memory may be given up then.
  __device__ __forceinline__ void finish() const {
    T* const to = static_cast<T*>(c.output) + offsets.output + at;
#pragma unroll 1
    for (int chunk = 0; chunk < chunks(); ++chunk) {
      each_pass([&](int j, int) {
        if (j < s.turn) finish_cells(j, chunk);
      });
#if L1NORM_BULK_COPY
      asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
      __syncthreads();
      int begin, bytes;
      whole_of(chunk, begin, bytes);
#if L1NORM_BULK_COPY
      if (thread() == 0 && bytes > 0) {
        asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to + begin * kPack),
                     "r"(shared_address(x + begin * kCells)), "r"(bytes)
                     : "memory");
        asm volatile("cp.async.bulk.commit_group;" ::: "memory");
      }
#endif
    }
    each_end([&](int k, bool is_own) {
      if (is_own) to[k] = reinterpret_cast<const T*>(x)[k];
    });
#if L1NORM_BULK_COPY
    if (thread() == 0) asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
#endif
  }

  Result* results;        // a column, and the first ones again
  GradientScale* scales;  // a column
  double2 *parts, *ranks;

 private:
  const Call& c;
  const Slabs& s;
  Offsets offsets;             // of the run
  int shift;                   // elements from a pack's start to the run's
  int64_t at;                  // the block's first element, counted from the run's
  int packs, count;            // its packs and cells
  int head, tail;              // elements of the first pack that are none, and of the last one that are some
  int first_whole, end_whole;  // packs
  Cell *x, *g;
  double2* sums;

  // Cells from a line's start to the block's first pack.
  __device__ __forceinline__ int past_a_line(const void* operand, int64_t offset) const {
    const T* const first = static_cast<const T*>(operand) + offset + at;
    return static_cast<int>(reinterpret_cast<uintptr_t>(first) / kPackBytes % kSlabLine) * kCells;
  }

  static __device__ __forceinline__ uint4* memory() {
    extern __shared__ __align__(kSharedLine) uint4 shared[];
    return shared;
  }
  static __device__ __forceinline__ int thread() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1200
    if constexpr (sizeof(T) == 4 && !kBackward) return thread_anew();  // kept in a register it makes others spill
#endif
    return static_cast<int>(threadIdx.x);
  }
  static __device__ __forceinline__ int threads() { return static_cast<int>(blockDim.x); }

#if L1NORM_BULK_COPY
  static __device__ __forceinline__ uint32_t barrier(int chunk) {
    __shared__ uint64_t barriers[kSlabChunks];
    return shared_address(barriers + chunk);
  }
#endif

  // Of every thread, ahead of its reads of a chunk.
  static __device__ __forceinline__ void await_chunk(int chunk) {
#if L1NORM_BULK_COPY
    await_phase(barrier(chunk), 0);
#else
    (void)chunk;
#endif
  }

  __device__ __forceinline__ int chunk_packs() const { return s.turn / kCells * s.chunk; }
  __device__ __forceinline__ int chunks() const { return (packs + chunk_packs() - 1) / chunk_packs(); }

  // A chunk's packs that are whole.
  __device__ __forceinline__ void whole_of(int chunk, int& begin, int& bytes) const {
    begin = max(chunk * chunk_packs(), first_whole);
    bytes = max(min((chunk + 1) * chunk_packs(), end_whole) - begin, 0) * kPackBytes;
  }

  // Calls see(element, whether it is the run's) for elements of packs that are not whole, a thread each.
  template <typename See>
  __device__ __forceinline__ void each_end(const See& see) const {
    if (packs == 0 || thread() >= 2 * kPack) return;
    const int k = thread() % kPack;
    const bool last = thread() >= kPack;
    if (last ? end_whole < packs && (packs > 1 || head == 0) : head > 0) {
      const int pack = last ? packs - 1 : 0;
      see(pack * kPack + k, (pack > 0 || k >= head) && (pack + 1 < packs || k < tail));
    }
  }

  // Calls use(the turn's cell, its number in the pass) once in all threads for each pass over the turn's cells.
  template <typename Use>
  __device__ __forceinline__ void each_pass(const Use& use) const {
    const int in_warp = 32 >> s.lane_bits, groups = threads() >> s.lane_bits;
    const int group = thread() / 32 * in_warp + (thread() & (in_warp - 1));
#pragma unroll 1
    for (int base = 0; base < s.turn; base += groups) use(base + group, group);
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
      await_chunk(chunk);
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
    const int result = s.column_of(j * kCell);
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

  __device__ __forceinline__ void sum_columns(int j, Sum (&mine)[kCell]) {
    using First = std::conditional_t<kBackward, DotTally<T>, Tally<T>>;
    using Careful = typename First::Careful;
    bool exact = true;
    add_columns<First>(j, mine, [&](const First& tally) { exact &= tally.is_exact(least); });
    if constexpr (!std::is_same_v<First, Careful>) {
      if (exact) return;
      if constexpr (kBackward) {
        if (are_zero_dots([&](auto& zeros) {
              each_batch(j, [&](const Cell(&grads)[kBatch], const Cell(&values)[kBatch]) {
                zeros.template add<kBatch>(grads, values, 0.0);
              });
            })) {
          return;
        }
      }
      add_columns<Careful>(j, mine, [](const Careful&) {});
    }
  }

  template <typename Sums, typename See>
  __device__ __forceinline__ void add_columns(int j, Sum (&mine)[kCell], const See& see) {
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
      mine[k] = tallies[k].sum();
    }
  }

  __device__ __forceinline__ void differentiate(const Cell (&grads)[kBatch], Cell (&values)[kBatch],
                                                const Result* at) const {
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit) {
      const Slope<T>* slopes[kUnit];
#pragma unroll
      for (int k = 0; k < kUnit; ++k) slopes[k] = at + unit * kUnit + k;
#pragma unroll
      for (int u = 0; u < kBatch; ++u) {
        values[u].units[unit] =
            gradients_beside(Few{{grads[u].units[unit]}}, Few{{values[u].units[unit]}}, slopes).units[0];
      }
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
      for (int u = 0; u < kBatch; ++u) {
        Few few;
        if (divide_beside(quotients, Few{{values[u].units[unit]}}, few, least)) {
          values[u].units[unit] = few.units[0];
        } else {
          unproven |= 1u << (unit * kBatch + u);
        }
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
        elements[k] = divide_again(elements[k], results[column], exact_divisor<T>({sum.x, sum.y}, c));
      }
    }
  }

  std::conditional_t<kBackward, Empty, Least<T>> least;
};

}  // namespace l1norm::cuda
