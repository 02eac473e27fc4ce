// A block's ring of chunks in shared memory: how rows are cut into them, what waits for what, and what a warp does with
// one.
#pragma once

#include "bulk.cuh"
#include "gradient.cuh"
#include "reduce.cuh"

namespace l1norm::cuda {

struct Launch {
  RingPlan plan;
  unsigned rows;   // or runs of a few rows that take turns
  int64_t beside;  // from the denominator of one of those to the next
  double2* sums;   // a row and block, and a row
};

#if L1NORM_BULK_COPY

// This block's place in the launch.
struct Ring {
  unsigned rows, groups, group, blocks, rank;
  int chunks, chunk_bytes, stages;
  int on_way;  // of a loader
  int64_t beside;
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
        on_way(l.plan.on_way / kRingLoaders),
        beside(l.beside),
        sums(l.sums) {}

  // Of a stage, in their memory.
  template <bool kBackward>
  __device__ __forceinline__ int place(int stage) const {
    return stage * chunk_bytes * (kBackward ? 2 : 1);
  }

  // What blocks have summed of a row, which may be one of kColumns, and behind it the row's sum.
  template <int kColumns>
  __device__ __forceinline__ double2* parts(unsigned row, int column) const {
    return sums + (static_cast<size_t>(row) * kColumns + static_cast<size_t>(column)) * (blocks + 1);
  }
  __device__ __forceinline__ int64_t denominator(const Call& c, unsigned row, int column) const {
    return c.geometry.rows.at(row).denominator + column * beside;
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

// What divides a row's elements.
template <typename T>
struct RowQuotient {
  Sum total;
  Quotient<T> quotient;

  RowQuotient() = default;
  __device__ __forceinline__ RowQuotient(const Call& c, const Sum& sum) : total(sum), quotient(sum, c.count, c.eps) {}
};

// What warps finish a row with; of several, what its sum comes to for all of them.
template <typename T, bool kBackward, int kColumns>
using RowResult = std::conditional_t<kColumns == 1, std::conditional_t<kBackward, Gradient, Sum>,
                                     std::conditional_t<kBackward, Slope<T>, RowQuotient<T>>>;

// What warps know of a row, or of kColumns that take turns.
template <typename T, bool kBackward, int kColumns>
struct RowInRing {
  double2 sums[kRingWarps * kColumns];
  int there;  // of the warps
  RowResult<T, kBackward, kColumns> results[kColumns];
};

// Whole packs of a row in a chunk: what the warp that loads them tells the others.
struct alignas(16) Chunk {
  int64_t to;  // where the first one's result goes, from the output on
  int place;   // of the first one, in the memory of stages
  int16_t packs;
  bool edge;       // whether elements of the row outside the packs go with it
  uint8_t column;  // of those that take turns the one that the stage begins with
};
static_assert(sizeof(Chunk) == 16);

// The addresses of stages' barriers, and of what is told of their chunks, which warps ask for at every chunk.
class StageAddresses {
 public:
  __device__ __forceinline__ StageAddresses(const Barriers& barriers, const Chunk* chunks)
      : full_(kept_shared_address(barriers.full)),
        empty_(kept_shared_address(barriers.empty)),
        chunks_(kept_shared_address(chunks)) {}

  __device__ __forceinline__ uint32_t full(int stage) const { return full_ + stage * kBarrierBytes; }
  __device__ __forceinline__ uint32_t empty(int stage) const { return empty_ + stage * kBarrierBytes; }

  // In one write, and in one read.
  __device__ __forceinline__ void set_chunk(int stage, const Chunk& chunk) const {
    uint4 bits;
    memcpy(&bits, &chunk, sizeof bits);
    store_shared(chunks_ + stage * kChunkBytes, bits);
  }
  __device__ __forceinline__ Chunk chunk(int stage) const {
    const uint4 bits = load_shared(chunks_ + stage * kChunkBytes);
    Chunk chunk;
    memcpy(&chunk, &bits, sizeof chunk);
    return chunk;
  }

 private:
  static constexpr int kBarrierBytes = sizeof(uint64_t), kChunkBytes = sizeof(Chunk);
  uint32_t full_, empty_, chunks_;
};

template <typename T, bool kBackward, int kColumns>
struct Memory {
  static constexpr int kRows = ring_rows(kColumns);

  Barriers barriers;
  Chunk chunks[kRingStages];
  RowInRing<T, kBackward, kColumns> rows[kRows];

  __device__ __forceinline__ void start(const Launch& l) {
    if (threadIdx.x == 0) {
      for (int s = 0; s < l.plan.stages; ++s) {
        start_barrier(shared_address(&barriers.full[s]), 1);
        start_barrier(shared_address(&barriers.empty[s]), 1);
      }
      for (int s = 0; s < kRows; ++s) {
        start_barrier(shared_address(&barriers.summed[s]), 1);
        start_barrier(shared_address(&barriers.total[s]), 1);
        rows[s].there = 0;
      }
      show_barriers();
    }
    __syncthreads();
  }

  __device__ __forceinline__ StageAddresses addresses() const { return {barriers, chunks}; }
};

// What is at that place of the memory of stages.
__device__ __forceinline__ unsigned char* staged(int place) {
  extern __shared__ __align__(kSharedLine) unsigned char stages[];
  return stages + place;
}

// A row, as this block sees it: in bytes from its start.
template <typename T>
struct Row {
  const unsigned char *x, *g;
  int64_t y;                      // from the output on
  int64_t from, head, tail, end;  // of the block's part, of the first pack, behind the last one, of the row
  int chunk_bytes, last;          // chunk
  int first_pack, behind_packs;   // of the block's part, in bytes from its start
  bool begins, ends;              // the row, here
  int first_edge, last_edge;      // the chunks that elements outside the packs go with; negative for none

  __device__ __forceinline__ Row(const Call& c, const Ring& ring, unsigned row)
      : Row(c, ring, c.geometry.rows.at(row)) {}

  // stage: the place of its memory.
  __device__ __forceinline__ Chunk chunk(int k, int stage, int column) const {
    const int start = k * chunk_bytes;
    const auto in_part = [&](int at) { return min(max(at, first_pack), behind_packs); };
    const int begin = in_part(start), bytes = in_part(start + chunk_bytes) - begin;
    return {y + from + begin, stage + begin - start, static_cast<int16_t>(bytes / kPackBytes),
            k == first_edge || k == last_edge, static_cast<uint8_t>(column)};
  }

  // Of kColumns that take turns the one that the block's part begins with.
  template <int kColumns>
  __device__ __forceinline__ int first_column() const {
    const int column = static_cast<int>(from / static_cast<int64_t>(sizeof(T)) % kColumns);
    return column < 0 ? column + kColumns : column;
  }

  // The lane's element outside the packs that goes with the block's chunk k; negative for none.
  __device__ __forceinline__ int64_t edge(int k) const {
    const int lane = static_cast<int>(threadIdx.x) % 32, at = lane * static_cast<int>(sizeof(T));
    if (begins && k == 0 && at < head) return at;
    return ends && k == last && tail + at < end ? tail + at : -1;
  }

 private:
  __device__ __forceinline__ Row(const Call& c, const Ring& ring, const Offsets& offsets)
      : x(place(c.input, offsets.input)),
        g(place(c.grad, offsets.grad)),
        y(offsets.output * static_cast<int64_t>(sizeof(T))),
        end(c.geometry.row.count * static_cast<int64_t>(sizeof(T))),
        chunk_bytes(ring.chunk_bytes),
        last(ring.chunks - 1),
        begins(ring.rank == 0),
        ends(ring.rank == ring.blocks - 1) {
    const int past = static_cast<int>(reinterpret_cast<uintptr_t>(x)) & (kLineBytes - 1);
    from = static_cast<int64_t>(ring.rank) * ring.chunks * chunk_bytes - past;
    head = min(static_cast<int64_t>(-past & (kPackBytes - 1)), end);
    tail = max(end - ((past + end) & (kPackBytes - 1)), head);
    const int64_t part = int64_t{ring.chunks} * chunk_bytes;
    const auto in_part = [&](int64_t at) { return static_cast<int>(min(max(at - from, int64_t{0}), part)); };
    first_pack = in_part(head);
    behind_packs = in_part(tail);
    first_edge = begins && head > 0 ? 0 : -1;
    last_edge = ends && tail < end ? last : -1;
  }

  static __device__ __forceinline__ const unsigned char* place(const void* start, int64_t offset) {
    return static_cast<const unsigned char*>(start) + offset * static_cast<int64_t>(sizeof(T));
  }
};

// The lane's element of a row outside the packs of a chunk.
template <typename T, bool kBackward>
struct Edge {
  Pack<T, 1> x{}, g{};
  Pack<T, 1>* to = nullptr;  // where its result goes, if there is one
  int64_t place = 0;         // in the row

  __device__ __forceinline__ Edge(const Call& c, const Ring& ring, unsigned row, int k, const Chunk& chunk) {
    if (!chunk.edge) return;
    const Row<T> at(c, ring, row);
    const int64_t edge = at.edge(k);
    if (edge < 0) return;
    place = edge / static_cast<int64_t>(sizeof(T));
    x = {{*reinterpret_cast<const T*>(at.x + edge)}};
    if constexpr (kBackward) g = {{*reinterpret_cast<const T*>(at.g + edge)}};
    to = reinterpret_cast<Pack<T, 1>*>(static_cast<unsigned char*>(c.output) + at.y + edge);
  }
};

// A warp's chunk of a row that is alone, once it is there.
template <typename T, bool kBackward>
class WarpChunk;

template <typename T>
class WarpChunk<T, false> {
 public:
  template <typename Then>
  static __device__ __forceinline__ void with_total(const Call& c, const Sum& total, const Then& then) {
    then(RowQuotient<T>(c, total));
  }

  // The k-th of the block's in a row.
  __device__ __forceinline__ WarpChunk(const Call& c, const Ring& ring, unsigned row, int k, const Chunk& chunk)
      : edge_(c, ring, row, k, chunk) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    packs_ = {nullptr, reinterpret_cast<RowPack*>(static_cast<unsigned char*>(c.output) + chunk.to) + lane,
              reinterpret_cast<RowPack*>(staged(chunk.place)) + lane, 32, chunk.packs - lane};
  }

  template <typename Sums>
  __device__ __forceinline__ void add(Sums& tally, Least<T>& least, double) const {
    if (edge_.to != nullptr) {
      note_first<1>(tally, least, &edge_.x);
      tally.template add<1>(&edge_.x);
    }
    packs_.add(tally, least);
  }

  __device__ __forceinline__ void write(const RowQuotient<T>& finish, const Call& c) const {
    if (edge_.to != nullptr) {
      Pack<T, 1> result;
      if (!finish.quotient.divide(edge_.x, result)) {
        result.units[0] = exact_quotient(edge_.x[0], exact_divisor<T>(finish.total, c));
      }
      *edge_.to = result;
    }
    packs_.divide(finish.quotient, finish.total, c);
  }

 private:
  using RowPack = typename HeldInShared<T>::RowPack;

  Edge<T, false> edge_;
  HeldInShared<T> packs_;
};

template <typename T>
class WarpChunk<T, true> {
 public:
  template <typename Then>
  static __device__ __forceinline__ void with_total(const Call&, const Gradient& total, const Then& then) {
    with_gradient<T>(total, then);
  }

  // The k-th of the block's in a row.
  __device__ __forceinline__ WarpChunk(const Call& c, const Ring& ring, unsigned row, int k, const Chunk& chunk)
      : edge_(c, ring, row, k, chunk) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    x_ = reinterpret_cast<const RowPack*>(staged(chunk.place)) + lane;
    g_ = reinterpret_cast<const RowPack*>(staged(chunk.place + ring.chunk_bytes)) + lane;
    y_ = reinterpret_cast<RowPack*>(static_cast<unsigned char*>(c.output) + chunk.to) + lane;
    end_ = chunk.packs - lane;
  }

  // by: what the dot product is scaled by.
  template <typename Sums>
  __device__ __forceinline__ void add(Sums& tally, Least<T>&, double by) const {
    if (edge_.to != nullptr) tally.template add<1>(&edge_.g, &edge_.x, by);
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
    if (edge_.to != nullptr) *edge_.to = input_gradients(edge_.g, edge_.x, finish);
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
  static constexpr int kPack = kPackBytes / static_cast<int>(sizeof(T)), kBatch = 2;
  using RowPack = Pack<T, kPack>;

  Edge<T, true> edge_;
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
