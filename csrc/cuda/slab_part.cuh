// A block's part of a dense run of rows that take turns, in shared memory: where it lies, and its way there and back.
#pragma once

#include "bulk.cuh"
#include "lattice.cuh"
#include "reduce.cuh"
#include "turns.cuh"

namespace l1norm::cuda {

struct Slabs {
  int64_t run;    // elements of all rows that take turns
  Turns columns;  // which come round in it
  Turns rows;     // as many as columns, or fewer, which have several each
  Folds folds;
  int turn;       // cells from one to the next of the same columns
  int packs;      // of a block: whole turns
  int lane_bits;  // logarithm of the lanes that have the same columns
  int chunk;      // turns that are loaded and stored by themselves: whole batches
  int copies;     // sums of a column that a pass over the turn's cells adds at once
  int row_bits;   // logarithm of the threads that add up a row's columns, and finish them

  Slabs(const Rounds& slab, bool backward, int64_t size, const SlabPlan& plan)
      : run(slab.elements()),
        columns(static_cast<int>(slab.period)),
        rows(static_cast<int>(slab.columns())),
        folds(slab),
        turn(plan.turn * slab_cells(backward, size)),
        packs(plan.packs),
        lane_bits(bits_of(static_cast<uint32_t>(plan.lanes)) - 1),
        chunk(static_cast<int>(ceil_div(plan.packs / plan.turn, int64_t{slab_batch(size)} * plan.lanes * plan.chunks)) *
              slab_batch(size) * plan.lanes),
        copies(slab_copies(slab.period, kPackBytes / size / slab_cells(backward, size), plan)),
        row_bits(slab_row_bits(slab.fold)) {}
};

template <typename T, bool kBackward>
class SlabPart {
 public:
  static constexpr int kPack = kPackBytes / static_cast<int>(sizeof(T));
  // What a lane takes at a time: a pack or half of one.
  static constexpr int kCells = slab_cells(kBackward, sizeof(T)), kCell = kPack / kCells;
  using Cell = Pack<T, kCell>;

  __device__ __forceinline__ SlabPart(const Call& c_, const Slabs& s_, unsigned number, const Cluster& cluster)
      : c(c_), s(s_) {
    offsets = offsets_of(c.geometry.rows, static_cast<int64_t>(number) * s.rows.columns);
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
    behind = places + room * (kBackward ? 2 : 1);
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
          copy_bulk<Access::kOnce>(shared_address(g + begin * kCells), from_grad + begin * kPack, bytes,
                                   barrier(chunk));
        }
        copy_bulk<Access::kOnce>(shared_address(x + begin * kCells), from + begin * kPack, bytes, barrier(chunk));
      }
    }
#endif
    // Where packs have neighbours of others, these are zeros.
    each_end([&](int k, bool is_own) {
      reinterpret_cast<T*>(x)[k] = is_own ? from[k] : T{};
      if constexpr (kBackward) reinterpret_cast<T*>(g)[k] = is_own ? from_grad[k] : T{};
    });
  }

  __device__ __forceinline__ int64_t denominator(int row) const {
    return offsets.denominator + s.folds.denominator(c.geometry.rows, s.folds.row(row));
  }

 protected:
  const Call& c;
  const Slabs& s;
  int shift;  // elements from a pack's start to the run's
  int count;  // the block's cells
  Cell *x, *g;
  void* behind;  // them

  static __device__ __forceinline__ int thread() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1200
    if constexpr (sizeof(T) == 4 && !kBackward) return thread_anew();  // kept in a register it makes others spill
#endif
    return static_cast<int>(threadIdx.x);
  }
  static __device__ __forceinline__ int threads() { return static_cast<int>(blockDim.x); }

  // Of every thread, ahead of its reads of a chunk.
  static __device__ __forceinline__ void await_chunk(int chunk) {
#if L1NORM_BULK_COPY
    await_phase(barrier(chunk), 0);
#else
    (void)chunk;
#endif
  }

  __device__ __forceinline__ int chunks() const { return (packs + chunk_packs() - 1) / chunk_packs(); }

  // Of the block's first element.
  __device__ __forceinline__ T* output() const { return static_cast<T*>(c.output) + offsets.output + at; }

  // A chunk of results that are in the input's place, once all threads have written theirs.
  __device__ __forceinline__ void store(T* to, int chunk) const {
#if L1NORM_BULK_COPY
    show_to_copies();
#endif
    __syncthreads();
#if L1NORM_BULK_COPY
    int begin, bytes;
    whole_of(chunk, begin, bytes);
    if (thread() == 0 && bytes > 0) store_bulk(to + begin * kPack, x + begin * kCells, bytes);
#else
    (void)to;
    (void)chunk;
#endif
  }

  // What no chunk has. Shared memory may be given up then.
  __device__ __forceinline__ void store_ends(T* to) const {
    each_end([&](int k, bool is_own) {
      if (is_own) to[k] = reinterpret_cast<const T*>(x)[k];
    });
#if L1NORM_BULK_COPY
    if (thread() == 0) await_stored_reads();
#endif
  }

 private:
  Offsets offsets;             // of the run
  int64_t at;                  // the block's first element, counted from the run's
  int packs;                   // the block's
  int head, tail;              // elements of the first pack that are none, and of the last one that are some
  int first_whole, end_whole;  // packs

  // Cells from a line's start to the block's first pack.
  __device__ __forceinline__ int past_a_line(const void* operand, int64_t offset) const {
    const T* const first = static_cast<const T*>(operand) + offset + at;
    return static_cast<int>(reinterpret_cast<uintptr_t>(first) / kPackBytes % kSlabLine) * kCells;
  }

  static __device__ __forceinline__ uint4* memory() {
    extern __shared__ __align__(kSharedLine) uint4 shared[];
    return shared;
  }
#if L1NORM_BULK_COPY
  static __device__ __forceinline__ uint32_t barrier(int chunk) {
    __shared__ uint64_t barriers[kSlabChunks];
    return shared_address(barriers + chunk);
  }
#endif

  __device__ __forceinline__ int chunk_packs() const { return s.turn / kCells * s.chunk; }

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
};

}  // namespace l1norm::cuda
