// A block's ring of chunks in shared memory: how rows are cut into them, what waits for what, and what a warp does with
// one.
#pragma once

#include "bulk.cuh"
#include "gradient.cuh"
#include "reduce.cuh"

namespace l1norm::cuda {

struct Launch {
  RingPlan plan;
  unsigned rows;
  double2* sums;  // a row and block, and a row
};

#if L1NORM_BULK_COPY

// This block's place in the launch.
struct Ring {
  unsigned rows, groups, group, blocks, rank;
  int chunks, chunk_bytes, stages;
  double2* sums;

  __device__ __forceinline__ explicit Ring(const Launch& l)
      : rows(l.rows),
        groups(static_cast<unsigned>(l.plan.groups)),
        group(blockIdx.x / static_cast<unsigned>(l.plan.blocks_a_row)),
        blocks(static_cast<unsigned>(l.plan.blocks_a_row)),
        rank(blockIdx.x - group * blocks),
        chunks(l.plan.chunks),
        chunk_bytes(l.plan.chunk_bytes),
        stages(l.plan.stages),
        sums(l.sums) {}

  // What the row's blocks have summed, and behind it the row's sum.
  __device__ __forceinline__ double2* parts(unsigned row) const {
    return sums + static_cast<size_t>(row) * (blocks + 1);
  }
};

// Which stage a warp is at, and how often it was there before.
struct Turn {
  int stage, stages;
  unsigned round = 0;

  __device__ __forceinline__ Turn(const Ring& ring, int first) : stage(first), stages(ring.stages) {}
  __device__ __forceinline__ void next(int step) {
    stage += step;
    if (stage < stages) return;
    stage -= stages;
    ++round;
  }
};

struct Barriers {
  uint64_t full[kRingStages], empty[kRingStages];  // a stage
  uint64_t summed[kRingRows], total[kRingRows];    // a row
};

// What warps know of a row.
template <typename T, bool kBackward>
struct RowInRing {
  double2 sums[kRingWarps];
  int there;  // of these
  std::conditional_t<kBackward, Gradient, Sum> total;
};

// Whole packs of a row, in a chunk's bytes from `skipped` on.
struct Chunk {
  int64_t begin;  // byte of the row
  int skipped;
  int bytes;
};

template <typename T, bool kBackward>
struct Memory {
  Barriers barriers;
  RowInRing<T, kBackward> rows[kRingRows];
  int chunk_bytes;

  __device__ __forceinline__ void start(const Launch& l) {
    if (threadIdx.x == 0) {
      for (int s = 0; s < l.plan.stages; ++s) {
        start_barrier(shared_address(&barriers.full[s]), 1);
        start_barrier(shared_address(&barriers.empty[s]), 1);
      }
      for (int s = 0; s < kRingRows; ++s) {
        start_barrier(shared_address(&barriers.summed[s]), 1);
        start_barrier(shared_address(&barriers.total[s]), 1);
        rows[s].there = 0;
      }
      chunk_bytes = l.plan.chunk_bytes;
      show_barriers();
    }
    __syncthreads();
  }

  __device__ __forceinline__ unsigned char* input(int stage, const Chunk& chunk) const {
    extern __shared__ __align__(kSharedLine) unsigned char stages[];
    return stages + stage * (kBackward ? 2 : 1) * chunk_bytes + chunk.skipped;
  }
  __device__ __forceinline__ unsigned char* grad(int stage, const Chunk& chunk) const {
    return input(stage, chunk) + chunk_bytes;
  }
};

// A row, as this block sees it: in bytes from its start.
template <typename T, bool kBackward>
struct Row {
  static constexpr int kPack = kPackBytes / static_cast<int>(sizeof(T));
  using RowPack = Pack<T, kPack>;

  Offsets offsets;
  const unsigned char *x, *g;
  unsigned char* y;
  int64_t from, head, tail, end;  // of the block's part, of the first pack, behind the last one, of the row
  int chunk_bytes, last;          // chunk
  bool begins, ends;              // the row, here

  __device__ __forceinline__ Row(const Call& c, const Ring& ring, unsigned row)
      : offsets(c.geometry.rows.at(row)),
        x(place(c.input, offsets.input)),
        g(place(c.grad, offsets.grad)),
        y(const_cast<unsigned char*>(place(c.output, offsets.output))),
        end(c.geometry.row.count * static_cast<int64_t>(sizeof(T))),
        chunk_bytes(ring.chunk_bytes),
        last(ring.chunks - 1),
        begins(ring.rank == 0),
        ends(ring.rank == ring.blocks - 1) {
    const int past = static_cast<int>(reinterpret_cast<uintptr_t>(x)) & (kLineBytes - 1);
    from = static_cast<int64_t>(ring.rank) * ring.chunks * chunk_bytes - past;
    head = min(static_cast<int64_t>(-past & (kPackBytes - 1)), end);
    tail = max(end - ((past + end) & (kPackBytes - 1)), head);
  }

  __device__ __forceinline__ Chunk chunk(int k) const {
    const int64_t start = from + static_cast<int64_t>(k) * chunk_bytes;
    const int64_t begin = max(start, head), stop = min(start + chunk_bytes, tail);
    return {begin, static_cast<int>(begin - start), begin < stop ? static_cast<int>(stop - begin) : 0};
  }

  // The lane's element outside the packs that goes with the block's chunk k; negative for none.
  __device__ __forceinline__ int64_t edge(int k) const {
    const int lane = static_cast<int>(threadIdx.x) % 32, at = lane * static_cast<int>(sizeof(T));
    if (begins && k == 0 && at < head) return at;
    return ends && k == last && tail + at < end ? tail + at : -1;
  }

 private:
  static __device__ __forceinline__ const unsigned char* place(const void* start, int64_t offset) {
    return static_cast<const unsigned char*>(start) + offset * static_cast<int64_t>(sizeof(T));
  }
};

template <typename T>
__device__ __forceinline__ Pack<T, 1> element_at(const unsigned char* row, int64_t at) {
  return {{*reinterpret_cast<const T*>(row + at)}};
}

// A warp's chunk.
template <typename T, bool kBackward>
class WarpChunk;

template <typename T>
class WarpChunk<T, false> {
 public:
  // What divides a row's elements.
  struct Finish {
    Sum total;
    Quotient<T> quotient;
  };
  template <typename Then>
  static __device__ __forceinline__ void with_total(const Call& c, const Sum& total, const Then& then) {
    then(Finish{total, Quotient<T>(total, c.count, c.eps)});
  }

  __device__ __forceinline__ WarpChunk(const Row<T, false>& row, const Memory<T, false>& memory, int stage, int k)
      : row_(&row), edge_(row.edge(k)) {
    if (edge_ >= 0) element_ = element_at<T>(row.x, edge_);
    using RowPack = typename HeldInShared<T>::RowPack;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const Chunk chunk = row.chunk(k);
    packs_ = {nullptr, reinterpret_cast<RowPack*>(row.y + chunk.begin) + lane,
              reinterpret_cast<RowPack*>(memory.input(stage, chunk)) + lane, 32, chunk.bytes / kPackBytes - lane};
  }

  template <typename Sums>
  __device__ __forceinline__ void add(Sums& tally, Least<T>& least, double) const {
    if (edge_ >= 0) {
      note_first<1>(tally, least, &element_);
      tally.template add<1>(&element_);
    }
    packs_.add(tally, least);
  }

  __device__ __forceinline__ void write(const Finish& finish, const Call& c) const {
    if (edge_ >= 0) {
      Pack<T, 1> result;
      if (!finish.quotient.divide(element_, result)) {
        result.units[0] = exact_quotient(element_[0], exact_divisor<T>(finish.total, c));
      }
      *reinterpret_cast<Pack<T, 1>*>(row_->y + edge_) = result;
    }
    packs_.divide(finish.quotient, finish.total, c);
  }

 private:
  const Row<T, false>* row_;
  int64_t edge_;
  Pack<T, 1> element_{};
  HeldInShared<T> packs_;
};

template <typename T>
class WarpChunk<T, true> {
 public:
  template <typename Then>
  static __device__ __forceinline__ void with_total(const Call&, const Gradient& total, const Then& then) {
    with_gradient<T>(total, then);
  }

  __device__ __forceinline__ WarpChunk(const Row<T, true>& row, const Memory<T, true>& memory, int stage, int k)
      : row_(&row), edge_(row.edge(k)) {
    if (edge_ >= 0) {
      element_x_ = element_at<T>(row.x, edge_);
      element_g_ = element_at<T>(row.g, edge_);
    }
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const Chunk chunk = row.chunk(k);
    x_ = reinterpret_cast<const RowPack*>(memory.input(stage, chunk)) + lane;
    g_ = reinterpret_cast<const RowPack*>(memory.grad(stage, chunk)) + lane;
    y_ = reinterpret_cast<RowPack*>(row.y + chunk.begin) + lane;
    end_ = chunk.bytes / kPackBytes - lane;
  }

  // by: what the dot product is scaled by.
  template <typename Sums>
  __device__ __forceinline__ void add(Sums& tally, Least<T>&, double by) const {
    if (edge_ >= 0) tally.template add<1>(&element_g_, &element_x_, by);
    constexpr int kGroup = kGroupOf<kBatch, kPack>;
    for (int i = 0; i < end_; i += kBatch * 32) {
      RowPack g[kBatch], x[kBatch];
      get(i, g, x);
#pragma unroll
      for (int u = 0; u < kBatch; u += kGroup) tally.template add<kGroup>(g + u, x + u, by);
    }
  }

  template <typename Finish>
  __device__ __forceinline__ void write(const Finish& finish, const Call&) const {
    if (edge_ >= 0) {
      *reinterpret_cast<Pack<T, 1>*>(row_->y + edge_) = input_gradients(element_g_, element_x_, finish);
    }
    for (int i = 0; i < end_; i += kBatch * 32) {
      RowPack g[kBatch], x[kBatch];
      get(i, g, x);
#pragma unroll
      for (int u = 0; u < kBatch; ++u) {
        const RowPack result = input_gradients(g[u], x[u], finish);
        if (i + u * 32 < end_) y_[i + u * 32] = result;
      }
    }
  }

 private:
  static constexpr int kPack = Row<T, true>::kPack, kBatch = 2;
  using RowPack = typename Row<T, true>::RowPack;

  const Row<T, true>* row_;
  int64_t edge_;
  Pack<T, 1> element_x_{}, element_g_{};
  const RowPack *x_, *g_;
  RowPack* y_;
  int end_;

  __device__ __forceinline__ void get(int i, RowPack (&g)[kBatch], RowPack (&x)[kBatch]) const {
#pragma unroll
    for (int u = 0; u < kBatch; ++u) {
      const bool there = i + u * 32 < end_;
      g[u] = there ? g_[i + u * 32] : RowPack{};
      x[u] = there ? x_[i + u * 32] : RowPack{};
    }
  }
};

#endif

}  // namespace l1norm::cuda
