// Elements of tiles where they are, or in copies that are small.
#pragma once

#include <algorithm>
#include <atomic>
#include <memory>
#include <utility>

#include "direction.h"
#include "layout.h"
#include "pages.h"

namespace l1norm::cpu {

// Elements of a tile where they are, or copied so that the columns of a line are neighbours.
template <typename Direction>
class Tiles {
 public:
  Tiles(const Call& c, const Layout& layout)
      : call_(c),
        layout_(layout),
        kernels_(capability().of(c.dtype)),
        size_(element_size(c.dtype)),
        pages_(c),
        in_runs_(layout.direct[0] || (Direction::kGrad && layout.direct[1]) || layout.direct[2]),
        most_(layout.direct[0] && layout.direct[2] && (!Direction::kGrad || layout.direct[1]) ? c.geometry.row.count
                                                                                              : layout.chunk),
        start_(c.geometry.row, 0),
        first_piece_(std::min(most_, in_runs_ ? start_.left() : most_)),
        streaming_(pages_.bypass() || (pages_.fresh() && layout.reach * size_ > Pages::kMostBytes)) {
    const int64_t bytes = layout.rows * layout.chunk * size_;
    const bool own_output = !layout.direct[2] && layout.direct[0];
    const int64_t copies = !layout.direct[0] + (Direction::kGrad && !layout.direct[1]) + own_output;
    if (copies > 0) scratch_.reset(new char[static_cast<size_t>(copies * bytes)]);
    char* next = scratch_.get();
    for (int i : {0, 1, 2}) {
      if (layout.direct[i] || (i == 1 && !Direction::kGrad)) continue;
      // Results may take the place of what they are made of.
      copies_[i] = i == 2 && !own_output ? copies_[0] : next;
      if (copies_[i] == next) next += bytes;
    }
  }

  Tiles(const Tiles&) = delete;

  ~Tiles() {
    if (streaming_) std::atomic_thread_fence(std::memory_order_seq_cst);  // streaming stores are ordered by no less
  }

 protected:
  static constexpr int64_t kNothing = -1;

  void open(int64_t tile) {
    rows_ = layout_.rows_in(tile, call_.geometry);
    const int64_t row = layout_.first_row(tile);
    if (row == next_row_) {
      first_.advance(row - row_);
    } else {
      first_ = Runs(call_.geometry.rows, row);
    }
    row_ = row;
    next_row_ = row + rows_;
    held_[0] = held_[1] = kNothing;
  }

  // work(n, at) for each piece of the rows' elements from begin to end that can be worked on at once: n of them from at
  // on, in runs().
  template <typename Work>
  void each_piece(int64_t begin, int64_t end, const Work& work) {
    if (begin == 0 && end <= first_piece_) return work(start_, begin, end);
    Runs runs(call_.geometry.row, begin);
    for (int64_t at = begin; at < end;) {
      const int64_t n = std::min({end - at, in_runs_ ? runs.left() : end - at, most_});
      work(runs, at, n);
      at += n;
      if (at < end) runs.advance(n);
    }
  }

  // The first of n elements of every row; gathered where they are no neighbours.
  const char* read(int operand, const Runs& runs, int64_t at, int64_t n) {
    const void* const from = memory_of(operand);
    const DType dtype = operand == 0 ? call_.input_dtype : call_.dtype;
    if (layout_.direct[operand]) return address(from, size_, operand, first_.at(), runs.at());
    char* const copy = copies_[operand];
    if (held_[operand] == at) return copy;
    held_[operand] = at;
    const int64_t from_size = element_size(dtype);
    each_block(operand, dtype, runs, n, [&](const Offsets& k, const Offsets& l, int64_t at, const Block& b) {
      kernels_.copy_from[index_of(dtype)](address(from, from_size, operand, k, l), copy + at, b);
    });
    return copy;
  }

  // Where n results of every row go.
  char* place(const Runs& runs) {
    if (!layout_.direct[2]) return copies_[2];
    return const_cast<char*>(address(call_.output, size_, 2, first_.at(), runs.at()));
  }

  // Once they are there.
  void written(const Runs& runs, int64_t n) {
    if (layout_.direct[2]) return;
    if (layout_.direct[0] == false) held_[0] = kNothing;
    each_block(2, call_.dtype, runs, n, [&](const Offsets& k, const Offsets& l, int64_t at, Block b) {
      std::swap(b.from_row, b.to_row);
      std::swap(b.from_column, b.to_column);
      kernels_.copy_from[index_of(call_.dtype)](copies_[2] + at,
                                                const_cast<char*>(address(call_.output, size_, 2, k, l)), b);
    });
  }

  int64_t row_stride(int operand) const { return Inner(call_.geometry.row).stride.*kOperands[operand]; }
  int64_t rows_stride(int operand) const { return Inner(call_.geometry.rows).stride.*kOperands[operand]; }
  // From one of the runs of neighbouring rows to the next.
  int64_t runs_stride(int operand) const {
    const Walk& rows = call_.geometry.rows;
    return rows.stride[rows.dims - 2].*kOperands[operand];
  }

  const Call& call_;
  const Layout& layout_;
  const Kernels& kernels_;
  const int64_t size_;
  Pages pages_;
  const bool in_runs_;  // pieces do not cross the ends of runs
  const int64_t most_;  // elements of a piece
  const Runs start_;    // of a row
  const int64_t first_piece_;
  const bool streaming_;
  int64_t rows_ = 0;
  Runs first_;  // the tile's rows

 private:
  const void* memory_of(int operand) const {
    return operand == 0 ? call_.input : operand == 1 ? call_.grad : call_.output;
  }

  static const char* address(const void* p, int64_t size, int operand, const Offsets& k, const Offsets& l) {
    return static_cast<const char*>(p) + (k.*kOperands[operand] + l.*kOperands[operand]) * size;
  }

  // Neighbouring rows that are copied together: where they are so few, copies of them one run at a time would take
  // longer than all the rest (300000 x 13 x 2 float32 over its middle).
  int64_t unit_of(int operand, DType dtype) const {
    const int64_t run = Inner(call_.geometry.rows).size;
    return run <= kMostUnit && rows_stride(operand) == 1 && dtype == call_.dtype ? run : 1;
  }

  // Every block of the tile that two strides describe, or three of runs of `unit` rows, as copied from memory to a
  // copy, and where it is there. Of a tile of one row its own runs, where they are short, are a block's rows.
  template <typename Work>
  void each_block(int operand, DType dtype, const Runs& from, int64_t n, const Work& work) const {
    Runs along = from;
    const Walk& row = call_.geometry.row;
    if (layout_.turned) return each_turned(operand, element_size(dtype), n, work);
    if (layout_.groups) {  // runs of rows that take turns, one behind the other
      const int64_t elements = n * layout_.line;
      return work(first_.at(), from.at(), 0,
                  Block{rows_ / layout_.line, elements, runs_stride(operand), 1, elements, 1});
    }
    if (!layout_.by_columns && rows_ > 1) {  // whole rows, likewise
      return work(first_.at(), from.at(), 0, Block{rows_, n, rows_stride(operand), row_stride(operand), n, 1});
    }
    const int64_t unit = unit_of(operand, dtype), run = Inner(row).size, step = row_stride(operand);
    const bool own = rows_ == 1 && run < kShortRow;
    const int64_t own_unit = run <= kMostUnit && step == 1 && dtype == call_.dtype ? run : 1;
    for (int64_t line = 0; line < n;) {
      const int64_t own_runs = own ? std::min(along.whole_runs(), (n - line) / run) : 0;
      if (own_runs > 1) {
        const int64_t apart = row.stride[row.dims - 2].*kOperands[operand];
        work(first_.at(), along.at(), line * size_, Block{own_runs, run / own_unit, apart, step, run, 1, own_unit});
        line += own_runs * run;
        if (line < n) along.advance_runs(own_runs);
        continue;
      }
      const int64_t lines = std::min(along.left(), n - line);
      const auto side_by_side = [&](const Runs& across, int64_t column, int64_t rows, int64_t unit) {
        const int64_t apart = unit > 1 ? runs_stride(operand) : rows_stride(operand);
        work(across.at(), along.at(), (line * rows_ + column) * size_,
             Block{rows, lines, apart, step, unit, rows_, unit});
      };
      if (first_.left() >= rows_) {
        side_by_side(first_, 0, rows_, 1);
      } else {
        Runs across = first_;
        for (int64_t column = 0; column < rows_;) {
          const int64_t runs = unit > 1 ? std::min(across.whole_runs(), (rows_ - column) / unit) : 0;
          if (runs > 1) {
            side_by_side(across, column, runs, unit);
            column += runs * unit;
            if (column < rows_) across.advance_runs(runs);
            continue;
          }
          const int64_t columns = std::min(across.left(), rows_ - column);
          side_by_side(across, column, columns, 1);
          column += columns;
          if (column < rows_) across.advance(columns);
        }
      }
      line += lines;
      if (line < n) along.advance(lines);
    }
  }

  // Runs of few rows, some at a time, and the second cache is asked for as many of the next tile.
  template <typename Work>
  void each_turned(int operand, int64_t size, int64_t n, const Work& work) const {
    constexpr int64_t kSome = 32, kLine = 64;
    const Inner across(call_.geometry.rows);
    const int64_t elements = rows_ / across.size * n, apart = across.stride.*kOperands[operand];
    const int64_t ahead = across.size * apart * size;
    for (int64_t i = 0; i < across.size; i += kSome) {
      const int64_t runs = std::min(kSome, across.size - i);
      Offsets first = first_.at();
      first.*kOperands[operand] += i * apart;
      const char* const p = address(memory_of(operand), size, operand, first, {});
      const int64_t pieces = apart == elements ? 1 : runs, bytes = runs / pieces * elements * size;
      for (int64_t k = 0; k < pieces; ++k) {
        const char* const next = p + ahead + k * apart * size;
        for (int64_t at = 0; at < bytes; at += kLine) __builtin_prefetch(next + at, 0, 2);
      }
      work(first, Offsets{}, i * size_, Block{runs, elements, apart, 1, 1, across.size});
    }
  }

  int64_t row_ = 0;
  int64_t next_row_ = kNothing;
  std::unique_ptr<char[]> scratch_;
  char* copies_[3] = {};
  int64_t held_[2];  // where what a copy holds starts in the rows
};

}  // namespace l1norm::cpu
