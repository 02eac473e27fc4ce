// The operators for the CPU.
#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "../operators.h"
#include "../repeated.h"
#include "blocks.h"
#include "rows.h"
#include "short_runs.h"

#if __has_include(<unistd.h>)
#include <unistd.h>
#endif

namespace l1norm::cpu {
namespace {

constexpr int64_t kGrain = 32768;  // elements that repay a thread, ATen's GRAIN_SIZE

// Each thread takes whole tiles where there are enough of them; otherwise rows are cut into segments, whose sums are
// added in order.
template <typename Direction>
void run_tiles(const Call& c, const Layout& layout, int64_t threads) {
  using Source = Rows<Direction>;
  const int64_t rows = c.geometry.rows.count, length = c.geometry.row.count;

  if (layout.at_once || layout.tiles >= threads || rows * length < 2 * kGrain) {
    const int64_t elements = std::max<int64_t>(layout.rows * length, 1);
    torch::stable::parallel_for(0, layout.tiles, std::max<int64_t>(kGrain / elements, 1),
                                [&](int64_t from, int64_t to) {
                                  Source source(c, layout);
                                  for (int64_t tile = from; tile < to; ++tile) {
                                    source.open(tile);
                                    if (layout.at_once) {
                                      source.at_once();
                                    } else {
                                      source.sum(0, length);
                                      source.write(0, length, true);
                                    }
                                  }
                                });
    return;
  }

  const int64_t segments =
      std::min((4 * threads + layout.tiles - 1) / layout.tiles, (layout.rows * length + kGrain - 1) / kGrain);
  const int64_t segment = ((length + segments - 1) / segments + 63) / 64 * 64;
  std::vector<Sum> partial(static_cast<size_t>(layout.tiles * layout.rows * segments));
  const auto partials = [&](int64_t tile, int64_t s) { return partial.data() + (tile * segments + s) * layout.rows; };
  const auto each_segment = [&](const auto& work) {
    torch::stable::parallel_for(0, layout.tiles * segments, 1, [&](int64_t from, int64_t to) {
      Source source(c, layout);
      for (int64_t i = from; i < to; ++i) {
        const int64_t tile = i / segments, s = i % segments;
        const int64_t begin = std::min(s * segment, length), end = std::min(begin + segment, length);
        source.open(tile);
        work(source, tile, s, begin, end);
      }
    });
  };
  each_segment([&](Source& source, int64_t tile, int64_t s, int64_t begin, int64_t end) {
    source.sum(begin, end);
    for (int64_t k = 0; k < layout.rows_in(tile, c.geometry); ++k) {
      partials(tile, s)[k] = {source.sums().hi[k], source.sums().lo[k]};
    }
  });
  torch::stable::parallel_for(0, layout.tiles * layout.rows, std::max<int64_t>(kGrain / segments, 1),
                              [&](int64_t from, int64_t to) {
                                for (int64_t i = from; i < to; ++i) {
                                  Sum* const first = partials(i / layout.rows, 0) + i % layout.rows;
                                  Sum sum;
                                  for (int64_t s = 0; s < segments; ++s) sum = sum + first[s * layout.rows];
                                  *first = sum;
                                }
                              });
  each_segment([&](Source& source, int64_t tile, int64_t s, int64_t begin, int64_t end) {
    for (int64_t k = 0; k < layout.rows_in(tile, c.geometry); ++k) {
      const Sum sum = partials(tile, 0)[k];
      source.sums().hi[k] = sum.hi;
      source.sums().lo[k] = sum.lo;
    }
    source.write(begin, end, s == 0);
  });
}

// Maps a result's pages before anything is written there, where each tile would reach over most of them.
void prepare_pages(const Call& c, const Layout& layout) {
  constexpr int64_t kPiece = 2 << 20;
  if (!Pages(c).fresh() || layout.rows == 1 || layout.reach * element_size(c.dtype) <= Pages::kMostBytes) return;
  const int64_t bytes = output_bytes(c);
  torch::stable::parallel_for(0, (bytes + kPiece - 1) / kPiece, 1, [&](int64_t from, int64_t to) {
    Pages pages(c);
    for (int64_t i = from; i < to; ++i) {
      pages.prepare(static_cast<char*>(c.output) + i * kPiece, std::min(kPiece, bytes - i * kPiece));
    }
  });
}

Caches caches(int64_t threads) {
#if defined(_SC_LEVEL2_CACHE_SIZE) && defined(_SC_LEVEL3_CACHE_SIZE)
  static const int64_t second = std::max<int64_t>(sysconf(_SC_LEVEL2_CACHE_SIZE), 0);
  static const int64_t last = std::max<int64_t>(sysconf(_SC_LEVEL3_CACHE_SIZE), 0);
  return {second, last / threads};
#else
  return {0, 0};
#endif
}

template <typename Direction>
void run_layout(const Call& c, const Layout& layout, int64_t threads) {
  prepare_pages(c, layout);
  run_tiles<Direction>(c, layout, threads);
}

template <typename Direction>
void run_parts(const Call& c, int64_t part, const Blocks& blocks = {}) {
  const int64_t threads = torch::stable::get_num_threads();
  run_layout<Direction>(c, make_layout(c, part, blocks, threads, caches(threads)), threads);
}

template <typename Direction>
void run_blocks(const Call& c, const Blocks& blocks) {
  BlockCall call(c, blocks);
  if (Direction::kGrad) call.give();
  run_parts<Direction>(call.columns(), 1, blocks);
  if (!Direction::kGrad) call.take();
}

template <typename Direction>
void run_short_runs(const Call& c, int64_t runs_of_tile) {
  const Walk& rows = c.geometry.rows;
  for (const bool rest : {false, true}) {
    if (rest && rows.size[rows.dims - 2] % runs_of_tile == 0) continue;
    const Call turned = turn_runs(c, runs_of_tile, rest);
    run_layout<Direction>(turned, make_layout_of_short_runs(turned), torch::stable::get_num_threads());
  }
}

// What repeats itself in a gradient, in a copy that rows read where it lies, as others'. Longer ones are copied chunk
// by chunk.
std::unique_ptr<CacheLine[]> copy_repeated(Call& c) {
  constexpr int64_t kMostBytes = 64 << 10;
  const int64_t size = element_size(c.dtype);
  const Repeated repeated = take_repeated(c.geometry, kMostBytes / size);
  if (repeated.copies(0) == 0) return nullptr;
  constexpr auto kLine = static_cast<int64_t>(sizeof(CacheLine));
  std::unique_ptr<CacheLine[]> copy(new CacheLine[static_cast<size_t>((repeated.elements * size + kLine - 1) / kLine)]);
  char* const to = reinterpret_cast<char*>(copy.get());
  const char* const from = static_cast<const char*>(c.grad);
  for (int64_t i = 0; i < repeated.elements; ++i) {
    std::memcpy(to + i * size, from + i * repeated.step * size, static_cast<size_t>(size));
  }
  c.grad = to;
  return copy;
}

template <typename Direction>
void run(Call& c) {
  if constexpr (!Direction::kGrad) {
    if (c.count.lone && c.eps == 0.0 && c.denominator == nullptr) return run_parts<ForwardOfOne>(c, 1);
  }
  const bool copied = Direction::kGrad && c.input_dtype == c.dtype;
  const auto copy = copied ? copy_repeated(c) : nullptr;
  const int64_t runs = short_runs_of_tile(c);
  if (runs > 0) return run_short_runs<Direction>(c, runs);
  const Blocks blocks = blocks_of(c);
  if (blocks.sharers > 1) return run_blocks<Direction>(c, blocks);
  const int64_t part = part_of(c);
  part == 1 ? run_parts<Direction>(c, 1) : run_parts<Direction>(make_rows_of_parts(c, part), part);
}

}  // namespace
}  // namespace l1norm::cpu

STABLE_TORCH_LIBRARY_IMPL(l1norm, CPU, m) {
  l1norm::Operators<l1norm::cpu::run<l1norm::cpu::Forward>>::register_in(m);
  l1norm::BackwardOperators<l1norm::cpu::run<l1norm::cpu::Backward>>::register_in(m);
}
