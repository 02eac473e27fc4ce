// A thread's share of a row that stays on chip from its read to its write.
#pragma once

#include "../call.h"
#include "access.cuh"
#include "losses.cuh"
#include "plan.h"
#include "shared.cuh"
#include "unproven.cuh"

namespace l1norm::cuda {

struct NoWait {
  __device__ __forceinline__ void operator()() const {}
};

// Which of a row's elements are a thread's: packs of the body, and kEdge elements each, at most, of the head up to the
// body's line and of the tail after its last pack. kStep: step, where it is known. kStart: bytes, of a multiple of
// which threads' packs begin together: where the body begins later, the first packs of some threads are ahead of it.
template <typename T, int kEdge, int kStep, int kStart = kPackBytes>
struct Share {
  static constexpr int kPack = kPackBytes / sizeof(T);

  int head;             // elements ahead of the body
  int packs;            // in the body
  int first;            // the thread's first pack; negative for one ahead of the body
  int step;             // from one of its packs to the next
  int edge[2 * kEdge];  // its elements of head and tail, from the row's start; -1 for none

  // The body starts at a multiple of `line` bytes and has `unit` packs, a power of two, any number of times. The thread
  // has elements head_index, head_index + step and so on of the head and likewise of the tail, if there are such. room:
  // packs that the row's threads have room for, where kStart matters. wait(): called once all that is worked out, ahead
  // of whatever is read.
  template <typename Wait = NoWait>
  __device__ __forceinline__ Share(const T* x, int length, int line, int first_, int step_, int head_index,
                                   int tail_index, int unit = 1, int room = 0, const Wait& wait = {})
      : first(first_), step(step_) {
    head = min(elements_to(x, line), length);
    packs = (length - head) / kPack & -unit;
    if constexpr (kStart > kPackBytes) {
      const int past = static_cast<int>(reinterpret_cast<uintptr_t>(x + head) / kPackBytes) & (kStart / kPackBytes - 1);
      if (packs + past <= room) first -= past;
    }
    const int tail = head + packs * kPack;
#pragma unroll
    for (int e = 0; e < kEdge; ++e) {
      const int h = head_index + e * step, t = tail_index + e * step;
      edge[2 * e] = h < head ? h : -1;
      edge[2 * e + 1] = t < length - tail ? tail + t : -1;
    }
    wait();
  }

  // The thread's elements outside the packs; zeros for those that it has not.
  __device__ __forceinline__ void load_edge(const T* row, Pack<T, 1> (&values)[2 * kEdge]) const {
#pragma unroll
    for (int e = 0; e < 2 * kEdge; ++e) values[e].units[0] = edge[e] >= 0 ? row[edge[e]] : T{};
  }

  // Whether the thread has a u-th pack.
  __device__ __forceinline__ bool has(int u) const {
    return u * step < packs - first && (kStart == kPackBytes || u > 0 || first >= 0);
  }

  // Whether no thread has a u-th pack: the same in all of a row's threads, or nearly.
  __device__ __forceinline__ bool ends(int u) const { return u * step >= packs + (kStart / kPackBytes - 1); }

  // The thread's pack after this one.
  template <typename P>
  __device__ __forceinline__ P* next(P* pack) const {
    return kStep > 0 ? pack + kStep : settled(pack + step);
  }
};

// What a thread keeps of a row. kAnyOutput: the output's alignment may differ from the input's; then packs are the
// output's where elements are halves, which are written one by one at a third of the speed that their words are read
// at, and the input's otherwise. kStep and kStart are Share's.
template <typename T, int kPacks, int kEdge = 1, bool kAnyOutput = true, int kStep = 0, Access kAccess = Access::kOnce,
          int kStart = kPackBytes>
struct Held : Share<T, kEdge, kStep, kStart> {
  using Base = Share<T, kEdge, kStep, kStart>;
  using Base::edge;
  using Base::first;
  using Base::head;
  using Base::kPack;
  using Base::next;
  using Base::packs;
  using Base::step;
  using Element = T;
  using RowPack = Pack<T, kPack>;
  static constexpr int kHeld = kPacks;
  static constexpr bool kByOutput = kAnyOutput && sizeof(T) == 2;
  static constexpr int kAnywhere = 4;  // packs whose words are on their way at once

  const T* x;
  T* y;
  RowPack held[kPacks];
  Pack<T, 1> edge_value[2 * kEdge];

  // The row at o, as far as its packs are concerned: parts that it is cut into begin where they do.
  static __device__ __forceinline__ const T* packs_of(const Call& c, const Offsets& o) {
    return kByOutput ? static_cast<const T*>(c.output) + o.output : static_cast<const T*>(c.input) + o.input;
  }

  // The `length` elements of the row at o from its element `begin` on; the others as Share's.
  template <typename Wait = NoWait>
  __device__ __forceinline__ Held(const Call& c, const Offsets& o, int64_t begin, int length, int line, int first_,
                                  int step_, int head_index, int tail_index, int unit = 1, const Wait& wait = {})
      : Held(static_cast<const T*>(c.input) + o.input + begin, static_cast<T*>(c.output) + o.output + begin, length,
             line, first_, step_, head_index, tail_index, unit, wait) {}

  __device__ __forceinline__ Sum sum(const Call&) const {
    Least<T> least;
    return sum_of<Tally<T>>(least, [&](auto& tally) { add(tally, least); });
  }

  template <typename Sums>
  __device__ __forceinline__ void add(Sums& tally, Least<T>& least) const {
    note_first<2 * kEdge>(tally, least, edge_value);
    tally.template add<2 * kEdge>(edge_value);
    constexpr int kGroup = kGroupOf<kPacks, kPack>;
    static_assert(kPacks % kGroup == 0);
#pragma unroll
    for (int u = 0; u < kPacks; u += kGroup) {
      if (this->ends(u)) break;
      note_first<kGroup>(tally, least, held + u);
      tally.template add<kGroup>(held + u);
    }
  }

  __device__ __forceinline__ void note(Least<T>& least) const {
    note_each<2 * kEdge>(least, edge_value);
    note_each<kPacks>(least, held);
  }

  // total: the row's; least: of the thread's elements, or of more. Without it, each pack's is found.
  template <typename... Bound>
  __device__ __forceinline__ void finish(const Sum& total, const Call& c, const Bound&... least) const {
    finish_near(total, [&](bool) { return total; }, c, least...);
  }

  // The same of a sum that is near the row's. exact_sum(wanted), which all threads call, gives the row's to those that
  // want it.
  template <typename ExactSum, typename... Bound>
  __device__ __forceinline__ void finish_near(const Sum& total, const ExactSum& exact_sum, const Call& c,
                                              const Bound&... least) const {
    const Quotient<T> quotient(total, c.count, c.eps);
    // What is not proven, by bits: packs, then edges.
    static_assert(kPacks + 2 * kEdge <= 32);
    unsigned unproven = 0;
#pragma unroll
    for (int e = 0; e < 2 * kEdge; ++e) {
      Pack<T, 1> one;
      if (!quotient.divide(edge_value[e], one, least...)) {
        unproven |= 1u << (kPacks + e);
      } else if (edge[e] >= 0) {
        y[edge[e]] = one[0];
      }
    }
    if (!kAnyOutput || kByOutput || reinterpret_cast<uintptr_t>(y + head) % sizeof(RowPack) == 0) {
      divide_packs<true>(quotient, unproven, least...);
    } else {
      divide_packs<false>(quotient, unproven, least...);
    }
    const Sum exact = exact_sum(unproven != 0);
    if (unproven == 0) return;
    // With 16 packs a kernel of float16 would spill.
    const Exactly<T, sizeof(T) == 2 && kPacks != 16> exactly(exact, c);
    while (unproven != 0) {
      const int u = __ffs(static_cast<int>(unproven)) - 1;
      const int i = first + u * step;
      unproven &= unproven - 1;
      if (u >= kPacks) {
        const Pack<T, 1> value = select(edge_value, u - kPacks);
        int at = edge[0];
#pragma unroll
        for (int e = 1; e < 2 * kEdge; ++e) at = u - kPacks == e ? edge[e] : at;
        if (at >= 0) y[at] = divide_again(value[0], quotient, exactly);
      } else if (this->has(u)) {
        // Read again where that is so rare that registers are dearer: in place too, what is not proven is still there.
        const RowPack pack = kReadAgain<T> ? reinterpret_cast<const RowPack*>(x + head)[i] : select(held, u);
        divide_each_again(pack, y + head + i * kPack, quotient, exactly);
      }
    }
  }

 private:
  template <typename Wait>
  __device__ __forceinline__ Held(const T* x_, T* y_, int length, int line, int first_, int step_, int head_index,
                                  int tail_index, int unit, const Wait& wait)
      : Base(kByOutput ? y_ : x_, length, line, first_, step_, head_index, tail_index, unit, kStep * kPacks, wait),
        x(x_),
        y(y_) {
    const auto load = [&](const auto& load_one) {
      const RowPack* body = reinterpret_cast<const RowPack*>(x + head) + first;
#pragma unroll
      for (int u = 0; u < kPacks; ++u) {
        held[u] = load_one(body, this->has(u));
        body = next(body);
      }
    };
    const auto load_whole = [](const RowPack* from, bool there) { return load_pack<kAccess>(from, there); };
    if constexpr (kByOutput) {
      if (reinterpret_cast<uintptr_t>(x + head) % sizeof(RowPack) == 0) {
        load(load_whole);
      } else {
        int u = 0;
        load([&](const RowPack* from, bool there) {
          RowPack pack = load_anywhere<kAccess, kPack>(reinterpret_cast<const T*>(from), there);
          // Words of few packs at a time, which take more registers than the packs.
          if (++u % kAnywhere == 0) settle(pack);
          return pack;
        });
      }
    } else {
      load(load_whole);
    }
    this->load_edge(x, edge_value);
  }

  // Sets the bits of what is not proven. It is stored all the same where it is not read again.
  template <bool kAligned, typename... Bound>
  __device__ __forceinline__ void divide_packs(const Quotient<T>& quotient, unsigned& unproven,
                                               const Bound&... least) const {
    RowPack* to = reinterpret_cast<RowPack*>(y + head) + first;
#pragma unroll
    for (int u = 0; u < kPacks; ++u) {
      if (this->ends(u)) break;
      RowPack pack;
      const bool proven = quotient.divide(held[u], pack, least...);
      unproven |= proven ? 0u : 1u << u;
      if (this->has(u) && (!kReadAgain<T> || proven)) {
        if constexpr (kAligned) {
          store_pack<kAccess>(to, pack);
        } else {
#pragma unroll
          for (int k = 0; k < kPack; ++k) reinterpret_cast<T*>(to)[k] = pack[k];
        }
      }
      to = next(to);
    }
  }
};

// A thread's share of a row that stays in shared memory, in places of its own: no barrier is needed.
template <typename T>
struct HeldInShared {
  static constexpr int kPack = kPackBytes / sizeof(T);
  static constexpr int kBatch = 4;
  using RowPack = Pack<T, kPack>;

  const RowPack* x;  // its first pack
  RowPack* y;
  RowPack* places;
  int step;  // from one of its packs to the next
  int end;   // of those that there are, from x

  __device__ __forceinline__ void load() const {
    const RowPack* from = x;
    for (int i = 0; i < end; i += step, from += step) copy_async<Access::kOnce>(places + i, from);
  }

  template <typename Sums>
  __device__ __forceinline__ void add(Sums& tally, Least<T>& least) const {
    wait_for_copies();
    for (int i = 0; i < end; i += kBatch * step) {
      RowPack packs[kBatch];
      get(i, packs);
      note_first<kBatch>(tally, least, packs);
      add_packs(tally, packs);
    }
  }

  // least: as Held::finish() takes it.
  template <typename... Bound>
  __device__ __forceinline__ void divide(const Quotient<T>& quotient, const Sum& total, const Call& c,
                                         const Bound&... least) const {
    RowPack* to = y;
    for (int i = 0; i < end; i += kBatch * step) {
      RowPack packs[kBatch];
      get(i, packs);
      unsigned unproven = 0;
#pragma unroll
      for (int u = 0; u < kBatch; ++u) {
        RowPack pack;
        const bool proven = quotient.divide(packs[u], pack, least...);
        unproven |= proven ? 0u : 1u << u;
        if (i + u * step < end) *to = pack;
        to = settled(to + step);
      }
      if (unproven == 0) continue;
      const Exactly<T> exactly(total, c);
      for (; unproven != 0; unproven &= unproven - 1) {
        const int at = i + (__ffs(static_cast<int>(unproven)) - 1) * step;
        if (at >= end) break;
        divide_each_again(places[at], reinterpret_cast<T*>(y + at), quotient, exactly);
      }
    }
  }

 private:
  __device__ __forceinline__ void get(int i, RowPack (&packs)[kBatch]) const {
#pragma unroll
    for (int u = 0; u < kBatch; ++u) packs[u] = i + u * step < end ? places[i + u * step] : RowPack{};
  }
};

// A part of a row, [begin, end): but for the first, parts start on a line.
struct Part {
  int64_t begin, end;
};

// The row's parts have `packs` packs each, whole lines.
template <typename T>
__device__ __forceinline__ Part part_of_row(const T* row, int64_t length, int64_t packs, unsigned part,
                                            unsigned parts) {
  const int64_t elements = packs * (kPackBytes / static_cast<int>(sizeof(T)));
  const auto start = [&](unsigned p) { return p == 0 ? 0 : min(elements_to(row, kLineBytes) + p * elements, length); };
  return {start(part), part + 1 == parts ? length : start(part + 1)};
}

// The divisor of a row of floats or halves as forward rounds it, from the row's sum, which must be exact. False where
// it is not plain, or not clearly on one side of eps.
__device__ __forceinline__ bool rounded_divisor(const Sum& sum, const Count& count, double eps, double& m) {
  const double q = sum.hi * count.reciprocal;
  const uint64_t bits = static_cast<uint64_t>(__double_as_longlong(q)), last = uint64_t{1} << 29;
  const auto as_double = [](uint64_t b) { return __longlong_as_double(static_cast<long long>(b)); };
  // The float below, and the middle between it and the next: on which side the divisor lies, the remainder tells.
  const uint64_t below = bits & ~(last - 1);
  const double left = fma(-as_double(below | last / 2), count.value, sum.hi) + sum.lo;
  m = as_double(left > 0.0 || (left == 0.0 && (below & last) != 0) ? below + last : below);
  const bool clamped = q < eps;
  if (clamped) m = static_cast<double>(static_cast<float>(eps));
  const uint32_t upper = upper_word(m);
  return (upper >= (1023u - 100u) << 20) & (upper < (1023u + 100u) << 20) & (fabs(q - eps) > 0x1p-40 * q);
}

// The row's divisor, for those who ask for it; one thread a row calls it.
template <typename T>
__device__ __forceinline__ void write_denominator(const Call& c, int64_t offset, const Sum& total) {
  static_cast<Wide<T>*>(c.denominator)[offset] = rounded(exact_divisor<T>(total, c), Wide<T>{});
}

// Divides what a block holds of a row: `row`, and with kShared shared_packs packs a thread more, in `places`.
// total_of() makes the row's sum of the thread's; denominator is where it goes, negative where another block or nobody
// writes it.
template <typename T, int kPacks, bool kShared, typename TotalOf>
__device__ __forceinline__ void normalize_held(const Call& c, const Held<T, kPacks, 1, !kShared>& row, int shared_packs,
                                               uint4* places, int64_t denominator, const TotalOf& total_of) {
  using Rest = HeldInShared<T>;
  Rest rest;
  if constexpr (kShared) {
    const int threads = row.step, thread = static_cast<int>(threadIdx.x), first = row.first + kPacks * threads;
    rest = {reinterpret_cast<const typename Rest::RowPack*>(row.x + row.head) + first,
            reinterpret_cast<typename Rest::RowPack*>(row.y + row.head) + first,
            reinterpret_cast<typename Rest::RowPack*>(places) + thread, threads,
            min(row.packs - first, shared_packs * threads - thread)};
    rest.load();
  }
  Least<T> least;
  const Sum total = total_of(sum_of<QuickTally<T>>(least, [&](auto& tally) {
    row.add(tally, least);
    if constexpr (kShared) rest.add(tally, least);
  }));
  if (denominator >= 0 && threadIdx.x == 0) write_denominator<T>(c, denominator, total);
  if constexpr (kShared) rest.divide(Quotient<T>(total, c.count, c.eps), total, c, least);
  row.finish(total, c, least);
}

}  // namespace l1norm::cuda
