// The operators for the CPU.
#include <sys/mman.h>

#include <algorithm>
#include <vector>

#include "../tensors.h"
#include "tile.h"

namespace l1norm::cpu {
namespace {

constexpr int64_t kGrain = 32768;  // elements that repay a thread, ATen's GRAIN_SIZE
// Results that no cache will keep. They bypass it, unless their pages are new: then the system has just written zeros
// there, through the cache.
constexpr int64_t kLargeBytes = 32 << 20;

int64_t output_bytes(const Call& c) { return c.geometry.rows.count * c.geometry.row.count * element_size(c.dtype); }

// Maps a large new result's pages in one system call for many instead of a trap each, where the system can
// (Linux 5.14): they cost more than the arithmetic. What is written there already stays.
class PageMapper {
 public:
  explicit PageMapper(const Call& c)
      : mapped_(address(c.output)), end_(mapped_ + static_cast<uintptr_t>(output_bytes(c))) {}

  // Called before [p, p + bytes) is written, for rising p.
  void prepare(const void* p, int64_t bytes) {
#if defined(__linux__)
    constexpr uintptr_t kPage = 4096, kAhead = 256 << 10;
    constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE, which older headers lack
    const uintptr_t begin = address(p), end = begin + static_cast<uintptr_t>(bytes);
    if (end <= mapped_) return;
    const uintptr_t first = (std::max(mapped_, begin) + kPage - 1) / kPage * kPage;
    const uintptr_t last = std::min(std::max(end, begin + kAhead), end_) / kPage * kPage;
    if (first < last) madvise(reinterpret_cast<void*>(first), last - first, kPopulateWrite);
    mapped_ = std::max(last, end);
#else
    (void)p, (void)bytes;
#endif
  }

 private:
  static uintptr_t address(const void* p) { return reinterpret_cast<uintptr_t>(p); }

  uintptr_t mapped_;
  const uintptr_t end_;
};

// Rows whose elements are neighbours in memory, one at a time, without a copy.
template <typename Direction>
class ContiguousRows {
 public:
  static constexpr int64_t kRows = 1;

  explicit ContiguousRows(const Call& c)
      : call_(c),
        kernels_(capability().of(c.dtype)),
        size_(element_size(c.dtype)),
        pages_(c),
        large_(output_bytes(c) >= kLargeBytes),
        fresh_pages_(c.fresh_output && large_),
        streaming_(!c.fresh_output && large_ && c.output != c.input) {}

  void sum(int64_t row, int64_t, int64_t begin, int64_t end, Sum* sums) const {
    const Offsets o = call_.geometry.rows.at(row);
    *sums = Direction::sum(call_, kernels_, o.denominator, operands(o, begin), end - begin);
  }

  void write(int64_t row, int64_t, int64_t begin, int64_t end, const typename Direction::Factor* factors) {
    const Offsets o = call_.geometry.rows.at(row);
    char* y = static_cast<char*>(call_.output) + (o.output + begin) * size_;
    if (fresh_pages_) pages_.prepare(y, (end - begin) * size_);
    Direction::write(kernels_, operands(o, begin), y, end - begin, *factors, streaming_);
  }

 private:
  Operands operands(const Offsets& o, int64_t begin) const {
    const auto at = [&](const void* p, int64_t index) { return static_cast<const char*>(p) + index * size_; };
    return {at(call_.input, o.input + begin), Direction::kGrad ? at(call_.grad, o.grad + begin) : nullptr};
  }

  const Call& call_;
  const RowKernels& kernels_;
  const int64_t size_;
  PageMapper pages_;
  const bool large_;
  const bool fresh_pages_;
  const bool streaming_;
};

template <typename Direction>
typename Direction::Factor finish_row(const Call& c, int64_t row, Sum sum) {
  return c.dtype == DType::kDouble ? Direction::template finish_row<double>(c, row, sum)
                                   : Direction::template finish_row<float>(c, row, sum);
}

// Source reads and writes groups of Source::kRows rows. Each thread takes whole groups where there are enough of
// them; otherwise rows are cut into segments, whose sums are added in order.
template <typename Direction, typename Source>
void run_rows(const Call& c) {
  using Factor = typename Direction::Factor;
  const int64_t rows = c.geometry.rows.count, length = c.geometry.row.count;
  const int64_t groups = (rows + Source::kRows - 1) / Source::kRows;
  const int64_t threads = torch::stable::get_num_threads();
  const auto rows_in = [&](int64_t group) { return std::min(Source::kRows, rows - group * Source::kRows); };

  if (groups >= threads || rows * length < 2 * kGrain) {
    const int64_t group_elements = std::max<int64_t>(Source::kRows * length, 1);
    torch::stable::parallel_for(0, groups, std::max<int64_t>(kGrain / group_elements, 1),
                                [&](int64_t from, int64_t to) {
                                  Source source(c);
                                  Sum sums[Source::kRows];
                                  Factor factors[Source::kRows];
                                  for (int64_t g = from; g < to; ++g) {
                                    const int64_t row = g * Source::kRows, n = rows_in(g);
                                    source.sum(row, n, 0, length, sums);
                                    for (int64_t k = 0; k < n; ++k) {
                                      factors[k] = finish_row<Direction>(c, row + k, sums[k]);
                                    }
                                    source.write(row, n, 0, length, factors);
                                  }
                                });
    return;
  }

  const int64_t segments = std::min((4 * threads + groups - 1) / groups, (length + kGrain - 1) / kGrain);
  const int64_t segment = ((length + segments - 1) / segments + 63) / 64 * 64;
  std::vector<Sum> partial(static_cast<size_t>(rows * segments));
  std::vector<Factor> factors(static_cast<size_t>(rows));
  const auto each_segment = [&](const auto& work) {
    torch::stable::parallel_for(0, groups * segments, 1, [&](int64_t from, int64_t to) {
      Source source(c);
      for (int64_t i = from; i < to; ++i) {
        const int64_t g = i / segments, s = i % segments;
        const int64_t begin = std::min(s * segment, length), end = std::min(begin + segment, length);
        work(source, g, s, begin, end);
      }
    });
  };
  each_segment([&](Source& source, int64_t g, int64_t s, int64_t begin, int64_t end) {
    Sum sums[Source::kRows];
    source.sum(g * Source::kRows, rows_in(g), begin, end, sums);
    for (int64_t k = 0; k < rows_in(g); ++k) {
      partial[static_cast<size_t>((g * Source::kRows + k) * segments + s)] = sums[k];
    }
  });
  for (int64_t row = 0; row < rows; ++row) {
    Sum sum;
    for (int64_t s = 0; s < segments; ++s) sum = sum + partial[static_cast<size_t>(row * segments + s)];
    factors[static_cast<size_t>(row)] = finish_row<Direction>(c, row, sum);
  }
  each_segment([&](Source& source, int64_t g, int64_t, int64_t begin, int64_t end) {
    source.write(g * Source::kRows, rows_in(g), begin, end, &factors[static_cast<size_t>(g * Source::kRows)]);
  });
}

template <typename Direction>
void run(const Call& c) {
  if (c.geometry.unit_stride() && c.input_dtype == c.dtype) {
    run_rows<Direction, ContiguousRows<Direction>>(c);
  } else {
    run_rows<Direction, Tile<Direction>>(c);
  }
}

}  // namespace
}  // namespace l1norm::cpu

STABLE_TORCH_LIBRARY_IMPL(l1norm, CPU, m) {
  l1norm::Operators<l1norm::cpu::run<l1norm::cpu::Forward>>::register_in(m);
  l1norm::BackwardOperators<l1norm::cpu::run<l1norm::cpu::Backward>>::register_in(m);
}
