// Geometry -> how threads' work is cut, from numbers alone.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>

#include "../call.h"
#include "kernels.h"

namespace l1norm::cpu {

// The innermost loop, or one of a single step.
struct Inner {
  int64_t size = 1;
  Offsets stride{};

  explicit Inner(const Walk& w) {
    if (w.dims == 0) return;
    size = w.size[w.dims - 1];
    stride = w.stride[w.dims - 1];
  }
};

// A walk from an index on, run by run of the innermost loop, without a division a step.
class Runs {
 public:
  Runs() = default;

  Runs(const Walk& walk, int64_t index) : walk_(&walk), at_(walk.at(index)), left_(1) {
    if (walk.dims == 0) return;
    for (int d = walk.dims - 1; d > 0; --d) {
      index_[d] = index % walk.size[d];
      index /= walk.size[d];
    }
    index_[0] = index;
    left_ = walk.size[walk.dims - 1] - index_[walk.dims - 1];
  }

  const Offsets& at() const { return at_; }
  int64_t left() const { return left_; }  // elements of this run from at() on

  // Whole runs from here on that lie one stride apart.
  int64_t whole_runs() const {
    const int last = walk_->dims - 1;
    return last > 0 && index_[last] == 0 ? walk_->size[last - 1] - index_[last - 1] : 0;
  }

  // No more of them than those; may lead to the walk's end.
  void advance_runs(int64_t n) {
    step(walk_->dims - 2, n);
    carry(walk_->dims - 2);
  }

  // May lead to the walk's end.
  void advance(int64_t n) {
    while (n >= left_ && walk_->dims > 1) {
      n -= left_;
      next_run();
      left_ = walk_->size[walk_->dims - 1];
    }
    left_ -= n;
    if (walk_->dims > 0) step(walk_->dims - 1, n);
  }

 private:
  void step(int d, int64_t n) {
    const Offsets& s = walk_->stride[d];
    index_[d] += n;
    at_.input += n * s.input;
    at_.grad += n * s.grad;
    at_.output += n * s.output;
    at_.denominator += n * s.denominator;
  }

  void next_run() {
    step(walk_->dims - 1, left_);
    carry(walk_->dims - 1);
  }

  void carry(int d) {
    for (; d > 0 && index_[d] == walk_->size[d]; --d) {
      step(d, -index_[d]);
      step(d - 1, 1);
    }
  }

  const Walk* walk_ = nullptr;
  Offsets at_{};
  int64_t left_ = 0;
  int64_t index_[kMaxDims];
};

constexpr int64_t Offsets::* kOperands[] = {&Offsets::input, &Offsets::grad, &Offsets::output};

// Blocks of neighbouring columns, of each of which so many share a row's sum, the next one so many columns on.
struct Blocks {
  int64_t sharers = 1, columns = 1;

  int64_t size() const { return sharers * columns; }
};

// Rows in tiles: neighbouring rows side by side, or row after row where their own elements are the neighbours in
// memory.
struct Layout {
  static constexpr int64_t kMostRows = 1024;
  static constexpr int64_t kFewLines = 16;  // that repay a column's numbers being made anew, and are near each other

  bool by_columns;  // vectors lie across rows, not along them
  int64_t part;     // neighbours of a row that are rows of their own until their sums are added
  Blocks blocks;    // whose sums are added likewise
  int64_t rows;     // of a tile, at most
  int64_t fold;     // elements of a row that a line of a tile holds, of every row
  bool groups;      // of lines, one for each run of neighbouring rows, of which a tile has several
  int64_t line;     // columns of a line
  bool turned;      // rows of runs that a copy has column by column
  bool at_once;     // whole rows, by normalize() or normalize_backward()
  int64_t tiles;
  int64_t run;          // rows that tiles do not reach beyond
  int64_t tiles_a_run;  // 0: tiles pay no heed to runs
  int64_t chunk;        // elements of a row that are copied together
  int64_t reach;        // elements of the output from a tile's first to its last
  bool direct[3];       // input, grad, output: worked on where they are, without a copy

  int64_t first_row(int64_t tile) const {
    if (tiles_a_run == 0) return tile * rows;
    return tile / tiles_a_run * run + tile % tiles_a_run * rows;
  }

  int64_t rows_in(int64_t tile, const Geometry& g) const {
    if (tiles_a_run == 0) return std::min(rows, g.rows.count - tile * rows);
    return std::min(rows, run - tile % tiles_a_run * rows);
  }
};

// Elements of rows that vectors hold side by side, whatever their strides.
constexpr int64_t kShortRow = 32;
// Rows, neighbours in memory, that repay a tile of their own.
constexpr int64_t kShortRun = 32;

// Whether a stride is that of every operand.
inline bool is_of_each(const Call& c, const Offsets& stride, int64_t wanted) {
  return stride.input == wanted && stride.output == wanted && (c.grad == nullptr || stride.grad == wanted);
}

// How many neighbours in memory make a part of a row, where rows consist of many such parts; else 1.
inline int64_t part_of(const Call& c) {
  constexpr int64_t kLeast = 8, kMost = 512;
  constexpr int64_t kMany = 4;
  const Walk &rows = c.geometry.rows, &row = c.geometry.row;
  const Inner k(rows), l(row);
  if (!is_of_each(c, l.stride, 1) || c.input_dtype != c.dtype || row.dims < 2 || l.size > kMost) return 1;
  if (rows.dims < 1 || rows.dims == kMaxDims) return 1;
  // Parts of neighbouring rows that follow each other make long lines, however short they are, and few of them do where
  // rows are not worth a walk part by part (8412 x 141 x 2 float32 over dims 0 and 2: 0.36 ns an element, in copies 18;
  // 3 x 10000 x 20 0.65 and 1.65, but 2 x 10000 x 40 0.70, part by part 0.42).
  const bool follow = is_of_each(c, k.stride, l.size), fit = follow || (l.size >= kLeast && k.size >= kMany);
  return fit && row.count >= (follow && l.size < kShortRow ? kShortRow : kMany * l.size) ? l.size : 1;
}

// Every element of a part as a row of its own, until sums are added: vectors across parts need no addition of lanes.
inline Call make_rows_of_parts(Call c, int64_t part) {
  Walk &rows = c.geometry.rows, &row = c.geometry.row;
  row.count /= part;
  --row.dims;
  rows.count *= part;
  rows.size[rows.dims] = part;
  rows.stride[rows.dims] = {1, 1, 1, 0};
  ++rows.dims;
  return c;
}

// Elements of rows that vectors hold side by side though a row's are neighbours. Longer ones are taken one by one, and
// their lanes added up for a vector of them together. In ns an element of 48 MiB in two threads, one by one and side by
// side, with AVX-512: float32 of 11 1.46 and 1.32, gradients of 9 1.84 and 1.75, of 12 1.54 and 1.69, of 16 1.31 and
// 1.68; float16 of 16 0.78 and 0.75, of 24 0.72 and 0.87; bfloat16 of 31 0.86 and 0.75; gradients of halves of 9 1.23
// and 1.20, of 15 0.89 and 1.04. Float64, of each thread: of 7 4.31 and 4.09, of 8 3.81 and 4.17.
constexpr int64_t short_line(DType dtype, bool backward) {
  if (dtype == DType::kDouble) return 7;
  if (backward || dtype == DType::kFloat) return 11;
  return dtype == DType::kHalf ? 17 : 31;
}

// Bytes of a processor's own second cache and of each thread's part of the last one; 0 where nobody tells.
struct Caches {
  int64_t second, last;
};

inline Layout make_layout(const Call& c, int64_t part, const Blocks& blocks, int64_t threads, const Caches& caches) {
  constexpr int64_t kLineBytes = 64;            // of the cache
  constexpr int64_t kTileOfColumns = 2 << 20;   // where most of a tile is still in the caches when it is read again
  constexpr int64_t kMostCached = 4 << 20;      // where enough of it is
  constexpr int64_t kLargeCache = 1 << 20;      // a second one; what others share cannot be relied on
  constexpr int64_t kLongLine = 512;            // that memory delivers as fast as longer ones
  constexpr int64_t kScratchBytes = 256 << 10;  // a row is copied once where a tile's copy fits
  constexpr int64_t kChunkBytes = 64 << 10;
  constexpr int64_t kLongRun = 512;          // elements of a row, neighbours in memory, that repay a call of their own
  constexpr int64_t kTileBytes = 128 << 10;  // of rows that follow each other
  constexpr int64_t kMostLines = 256;        // such rows of a tile
  constexpr int64_t kLeastGroup = 8;         // columns of a line where a tile has groups of them
  constexpr int64_t kParts = 8;              // the least of them where their parts lie side by side
  constexpr int64_t kLeastRows = 128;        // lines of fewer waste what memory and its prefetching deliver
  constexpr int64_t kWideRows = 512, kWideBytes = 2 << 10;  // of lines as fast as longer ones, whichever is more
  constexpr int64_t kPage = 4 << 10;                        // of a line whose prefetching ends where it does
  constexpr int64_t kPagedCache = 2 << 20;                  // a second one of processors on which such are the fastest
  constexpr int64_t kLeastWidest = 2048, kWidest = 8192;    // of tiles that are read from memory twice
  constexpr int64_t kFolded = 192, kLeastFolded = 16;       // columns in a line of narrow tiles, about
  constexpr int64_t kFoldedLines = 32;                      // of a tile, or more
  constexpr int64_t kMostFolded = 2048, kManyFolded = 128;  // columns in a line of others, of a tile of so many
  constexpr int64_t kGroupedBytes = 64 << 10;               // of a run; larger ones repay a tile of their own
  constexpr int64_t kWindowsBytes = 8 << 10;                // of one whose steps begin within lines of the cache, too
  constexpr int64_t kTurnsBytes = 256 << 10;                // of a run that stays in the second cache, or nearly so

  const Geometry& g = c.geometry;
  const Inner k(g.rows), l(g.row);
  const int64_t rows = g.rows.count, length = g.row.count, size = element_size(c.dtype);
  const bool backward = c.grad != nullptr, casts = c.input_dtype != c.dtype;
  const bool used[] = {true, backward, true};

  Layout t{};
  t.part = part;
  t.blocks = blocks;
  t.run = k.size;
  const auto across = [&](int64_t Offsets::* o) {
    return length == 1 || (rows > 1 && k.stride.*o != 0 && k.stride.*o < l.stride.*o);
  };
  const auto reach = [&] {
    int64_t last = t.groups ? t.rows / k.size * g.rows.stride[g.rows.dims - 2].output : t.rows * k.stride.output;
    for (int d = 0; d < g.row.dims; ++d) last += (g.row.size[d] - 1) * g.row.stride[d].output;
    return std::max(t.rows * length, last);
  };
  const bool neighbours =
      g.row.dims <= 1 && l.stride.input == 1 && l.stride.output == 1 && (!backward || l.stride.grad == 1);
  const int64_t most_side_by_side = neighbours ? short_line(c.dtype, backward) : kShortRow;
  t.by_columns = rows > 0 && length > 0 &&
                 (part > 1 || across(&Offsets::output) || across(&Offsets::input) ||
                  (length <= most_side_by_side && rows >= kShortRun));
  t.fold = 1;
  if (!t.by_columns) {
    const auto unit = [&](int i) { return !(casts && i == 0) && l.stride.*kOperands[i] == 1; };
    const bool in_place = (g.row.dims <= 1 || l.size >= kShortRow) && unit(0) && (!used[1] || unit(1)) && unit(2);
    // Of rows that follow each other, so that none waits for what becomes of the one before.
    const int64_t fit = kTileBytes / std::max<int64_t>(length * size * (backward ? 2 : 1), 1);
    const int64_t most = std::min(std::max<int64_t>(fit, g.row.dims > 1 ? kParts : 1), kMostLines);
    // So are rows that are cast (bfloat16 of 64 to float32: 148 ns a row one by one, 37 by tiles).
    t.rows = in_place || neighbours ? std::clamp<int64_t>(rows / (4 * threads), 1, std::min(k.size, most)) : 1;
    t.tiles_a_run = (k.size + t.rows - 1) / t.rows;
    t.tiles = rows / k.size * t.tiles_a_run;
    t.reach = t.rows > 1 ? reach() : length;
    t.chunk = std::min<int64_t>(length, kChunkBytes / size);
    for (int i = 0; i < 3; ++i) t.direct[i] = in_place || (unit(i) && (g.row.dims <= 1 || l.size >= kLongRun));
    return t;
  }

  const auto each_used = [&](const auto& is) { return is(0) && (!used[1] || is(1)) && is(2); };
  const auto unit = [&](int i) { return !(casts && i == 0) && k.stride.*kOperands[i] == 1; };
  // What is cast is copied as it lies where columns take turns in a dense run.
  const bool cast_as_is = casts && k.stride.input == 1 && l.stride.input == k.size;
  const auto laid = [&](int i) { return unit(i) || (i == 0 && cast_as_is); };
  const auto packed = [&](int i) { return laid(i) && l.stride.*kOperands[i] == k.size; };
  const bool dense = each_used(packed);  // steps follow each other without a gap
  const void* const operands[] = {c.input, c.grad, c.output};
  const auto in_lines = [&](int i) {
    return unit(i) && l.stride.*kOperands[i] * size % kLineBytes == 0 &&
           reinterpret_cast<uintptr_t>(operands[i]) % kLineBytes == 0;
  };
  const bool narrow = k.size < kShortRun;
  // Each column of a line has numbers of its own, which few lines do not repay (8740 x 133 x 2 float32 over dim 1: 0.6
  // ns an element in lines of 16 columns, 1.0 in lines of 66). Lines of 8 columns or more do without where they are a
  // tile with others' (2400 x 20 x 20 bfloat16: 0.38, in lines of 40 columns 0.58).
  const int64_t run = l.size * k.size, folded = std::clamp(run / kFoldedLines, kLeastFolded, kFolded);
  const bool groups_repay = k.size >= kLeastGroup && (length <= Layout::kFewLines || run < 4 * kFolded);
  // So many steps that follow each other begin and end with lines of the cache. Lines of a tile that hold as many are
  // read and written by whole ones (two threads of a Xeon, of copy_()'s speed: float32 of 4096 steps of 20 columns
  // 0.82, so 1.15; of 10000 of 100 0.69, 0.93), but numbers of so many columns do not repay few lines, of halves twice
  // as many (bfloat16 of 1024 of 25 in 32 lines 0.60, else 0.68); gradients gain nothing.
  const int64_t filling = kLineBytes / std::gcd(kLineBytes, k.size * size);
  const auto repays_lines = [&](int64_t fold, int64_t lines) {
    return !backward && length >= lines * fold * std::max<int64_t>(4 / size, 1);
  };
  const bool fills_lines = !narrow && filling > 1 && filling * k.size <= kMostFolded && run * size >= kWindowsBytes &&
                           repays_lines(filling, kManyFolded) && rows >= 4 * threads * k.size;
  const bool folds = dense && (narrow ? run >= 6 * kLeastFolded && !groups_repay : fills_lines);
  const int64_t row_bytes = std::max<int64_t>(length * size * (backward ? 2 : 1), 1);
  // A tile that does not stay in the cache is read from memory twice, and fastest in long lines. Lines that follow each
  // other make a long one. Short ones repay that tiles stay where no two tiles write to a line of the cache (4096 x
  // 16384 float32: 0.89 of a copy's speed in lines of 128, 0.58 in lines of 1024; 16385 columns: 0.57, 0.60), but not
  // where the second cache is small (512 KB: 0.25 in lines of 128, 0.44 of 1024, 0.53 of 8192).
  // In the second cache of a Xeon they do not stay either (of steps some pages apart 512 bytes each share an eighth of
  // it), and its last one is far: lines of a page are fastest where that one holds their tiles (two threads, 2 MB and
  // 300 MB: 4096 x 16384 float32 0.46 in lines of 128, 0.70 in lines of 1024; 8192 x 8192 0.50, 0.71; 2048 x 32768 0.71
  // in lines of 512, 0.78; gradients 0.81, 0.87; 0.85, 0.90; 0.83, 0.86).
  const bool begin_lines = each_used(in_lines);
  const int64_t page = kPage / size;
  const bool in_pages = caches.second >= kPagedCache && page * row_bytes <= caches.last / 4 && begin_lines;
  const int64_t wide_rows = in_pages ? std::min(page, Layout::kMostRows) : std::max(kWideRows, kWideBytes / size);
  const int64_t wide = dense ? std::min(k.size, wide_rows) : wide_rows;
  const bool large = caches.second >= kLargeCache;
  const bool stays = wide * row_bytes <= (large ? kMostCached : kMostCached / 2);
  int64_t most = Layout::kMostRows;
  // Short lines do not repay where a tile of all columns is one run of memory, nor for gradients, whose tiles are twice
  // as large (two threads of an EPYC with 1 MB of L2 cache, all columns and 128: 32 x 4096 x 512 float32 over its
  // middle 78 ms and 110, with out= 23 and 28, its gradient 116 and 155; 4096 x 1024 1.7 and 3.1; gradients of 4096 x
  // 16384 in lines of 1024 102 and 126).
  const bool is_run = dense && k.size <= Layout::kMostRows;
  const bool cuts_repay = !backward && !is_run && large && !in_pages;
  if (stays || (cuts_repay && kLeastRows * row_bytes <= kTileOfColumns && begin_lines)) {
    most = std::clamp(kTileOfColumns / row_bytes / kLeastRows * kLeastRows, stays ? wide : kLeastRows, most);
    most = std::min(most, std::max((rows / (4 * threads) + kLeastRows - 1) / kLeastRows, int64_t{1}) * kLeastRows);
  } else if (cuts_repay && caches.last >= 2 * kMostCached && kLongLine * row_bytes <= kMostCached * size &&
             begin_lines && rows * size >= 8 * threads * kLongLine) {
    // 8192 x 8192 float32: 16 ms, in lines of all columns 21; 5000 x 13312: 15.5, 21.
    most = kLongLine / size;
  } else if (in_pages && rows / k.size * ((k.size + page - 1) / page) >= 4 * threads) {
    most = page;
  } else if (each_used(unit)) {
    // Of the longest lines, as many as threads share evenly.
    const int64_t share = threads / std::gcd(rows / k.size, threads);
    const int64_t widest = in_pages ? page : kWidest, least = (k.size + widest - 1) / widest;
    const int64_t cuts = (least + share - 1) / share * share;
    most = std::clamp((k.size + cuts - 1) / cuts, std::min(kLeastWidest, widest / 2), widest);
  }
  // Runs of the two innermost loops, of tiles that hold several. One that lies in one piece repays a tile of its own if
  // it is long, which is streamed in windows wherever its steps begin (40 steps of 100 float32 columns 0.70, so 0.96);
  // one that does not goes together with what lies between.
  const int64_t long_run = !backward && filling > 1 ? kWindowsBytes : kGroupedBytes;
  const bool alone = dense && g.row.dims == 1 && k.size * row_bytes >= long_run;
  const bool grouped = part > 1 || (!folds && g.rows.dims >= 2 && k.size >= kLeastGroup && 2 * k.size <= most &&
                                    !alone && each_used(laid));
  const bool whole_rows = part == 1 && blocks.sharers == 1;
  const bool turns = whole_rows && g.row.dims == 1 && g.rows.dims >= 2 && repay_turns(k.size, length) && dense &&
                     run * size <= kTurnsBytes && rows >= threads * k.size;
  if (grouped || turns) {
    const int64_t all = g.rows.size[g.rows.dims - 2];
    const int64_t fit = turns ? std::min(kTurnsBytes / 2 / (k.size * row_bytes), all / (4 * threads)) : most / k.size;
    const int64_t runs = std::clamp<int64_t>(fit, 1, turns ? Layout::kMostRows / k.size : all);
    t.groups = true;
    t.rows = runs * k.size;
    t.run = all * k.size;
    t.tiles_a_run = (all + runs - 1) / runs;
    t.tiles = rows / t.run * t.tiles_a_run;
    for (int i = 0; i < 3; ++i) t.direct[i] = unit(i);
  } else if (folds || (!narrow && (unit(0) || unit(1) || unit(2)))) {
    const int64_t cuts = folds ? 1 : (k.size + most - 1) / most;
    const int64_t multiple = blocks.sharers > 1 ? blocks.size() : 16;
    t.rows = std::min(k.size, ((k.size + cuts - 1) / cuts + multiple - 1) / multiple * multiple);
    t.tiles_a_run = (k.size + t.rows - 1) / t.rows;
    t.tiles = rows / k.size * t.tiles_a_run;
    for (int i = 0; i < 3; ++i) t.direct[i] = unit(i);
    if (folds) {
      t.fold = narrow ? (folded + t.rows - 1) / t.rows : filling;
      const int64_t whole = (t.fold + filling - 1) / filling * filling;
      if (repays_lines(whole, kFoldedLines)) t.fold = whole;
    }
  } else {
    // Copies of runs of few rows each repay tiles of many runs, as far as these stay in the caches (gradients of 750 x
    // 591 x 3 x 4 float32 over dims 0 and 2: a run a tile 5.2 ns an element, 29 of them 2.3).
    const int64_t fit = std::min(kTileOfColumns / row_bytes, rows / (4 * threads)) / k.size * k.size;
    t.rows = std::min({rows, std::max(most, fit), Layout::kMostRows});
    t.tiles = (rows + t.rows - 1) / t.rows;
    if (t.rows < kShortRun) t.fold = std::min(kFolded / t.rows, length);
  }
  t.line = t.groups ? k.size : t.rows * t.fold;
  t.reach = reach();
  t.at_once = turns || (whole_rows && t.fold == 1 && length <= Layout::kFewLines && g.row.dims <= 1);
  const bool whole = t.at_once || length * t.rows * size <= kScratchBytes;
  t.chunk = whole ? length : std::max(kChunkBytes / (t.rows * size) / t.fold * t.fold, t.fold);
  return t;
}

}  // namespace l1norm::cpu
