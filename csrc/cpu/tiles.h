// Tiles for run_tiles(): rows side by side, in tiles whose copies are small, or row after row.
#pragma once

#include <algorithm>
#include <atomic>
#include <memory>
#include <utility>

#include "direction.h"
#include "layout.h"
#include "pages.h"

namespace l1norm::cpu {

struct alignas(64) CacheLine {  // vectors do not cross them
  double numbers[kColumnPadding];
};

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
    const void* from = operand == 0 ? call_.input : call_.grad;
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

  int64_t row_ = 0;
  int64_t next_row_ = kNothing;
  std::unique_ptr<char[]> scratch_;
  char* copies_[3] = {};
  int64_t held_[2];  // where what a copy holds starts in the rows
};

// Rows side by side, vectors across them, or row after row. Of few rows side by side a line holds several elements
// each, so that column i is of row i % rows.
template <typename Direction>
class Rows : Tiles<Direction> {
  using Base = Tiles<Direction>;
  using Base::call_, Base::kernels_, Base::layout_, Base::rows_, Base::size_;

 public:
  Rows(const Call& c, const Layout& layout)
      : Base(c, layout),
        line_kernels_(layout.by_columns ? kernels_.columns : kernels_.rows),
        space_((layout.rows * layout.fold + 3 * kColumnPadding - 1) / kColumnPadding * kColumnPadding),
        arrays_(new CacheLine[static_cast<size_t>((2 + Direction::kNumbers) * space_ / kColumnPadding)]),
        offsets_(new int64_t[static_cast<size_t>(layout.rows)]),
        sums_{arrays_[0].numbers, arrays_[0].numbers + space_},
        numbers_{arrays_[0].numbers + 2 * space_, space_} {}

  void open(int64_t tile) {
    Base::open(tile);
    width_ = rows_ * layout_.fold;
    if (call_.denominator == nullptr) return;
    const int64_t stride = Inner(call_.geometry.rows).stride.denominator;
    denominators_ = {this->first_.at().denominator, nullptr};
    bool neighbours = stride == 1;
    const int64_t rows = each_of_denominators(
        [&](int64_t row, int64_t, int64_t at) { neighbours = neighbours && at == denominators_[row]; });
    if (!neighbours) {
      each_of_denominators([&](int64_t row, int64_t count, int64_t at) {
        for (int64_t i = 0; i < count; ++i) offsets_[row + i] = at + i * stride;
      });
      denominators_.at = offsets_.get();
    }
    of_value([&](auto value) {
      Direction::template open<decltype(value)>(call_, denominators_, rows, numbers_,
                                                [&](double* numbers) { spread(numbers); });
    });
  }

  void sum(int64_t begin, int64_t end) {
    std::fill(sums_.hi, sums_.hi + 2 * space_, 0.0);
    this->each_piece(begin, end, [&](const Runs& runs, int64_t at, int64_t n) {
      each_part(lines(runs, at, n), n, [&](const LinesOf& from, int64_t, const Extent& extent) {
        Direction::sum(line_kernels_, from, extent, numbers_, sums_);
      });
    });
    for (int64_t i = rows_; i < width_; ++i) {
      const Sum sum = Sum{sums_.hi[i % rows_], sums_.lo[i % rows_]} + Sum{sums_.hi[i], sums_.lo[i]};
      sums_.hi[i % rows_] = sum.hi;
      sums_.lo[i % rows_] = sum.lo;
    }
  }

  void write(int64_t begin, int64_t end, bool first) {
    if (layout_.part > 1) kernels_.add_parts(sums_, rows_ / layout_.part, layout_.part);
    spread(sums_.hi);
    spread(sums_.lo);
    Direction::finish(call_, kernels_, width_, sums_, numbers_);
    if (first) write_denominators();
    prepare();
    this->each_piece(begin, end, [&](const Runs& runs, int64_t at, int64_t n) {
      const LinesOf from = lines(runs, at, n);
      char* const y = this->place(runs);
      if (layout_.rows == 1 && layout_.direct[2]) this->pages_.prepare(y, n * size_);
      each_part(from, n, [&](const LinesOf& part, int64_t line, const Extent& extent) {
        Direction::write(line_kernels_, part, to(y, line), extent, sums_, numbers_, streams());
      });
      this->written(runs, n);
    });
  }

  // sum() and write() of whole rows, where the layout says so.
  void at_once() {
    prepare();
    char* const y = this->place(this->start_);
    each_part(lines(this->start_, 0, layout_.chunk), layout_.chunk,
              [&](const LinesOf& from, int64_t line, const Extent& extent) {
                Direction::at_once(call_, kernels_, from, to(y, line), extent, sums_, numbers_, streams());
              });
    this->written(this->start_, layout_.chunk);
    if (Direction::kGrad || call_.denominator == nullptr) return;
    Direction::finish(call_, kernels_, width_, sums_, numbers_);
    write_denominators();
  }

  Sums sums() { return sums_; }

 private:
  // Maps the pages that a tile's rows reach over, where it has several.
  void prepare() {
    if (layout_.rows == 1 || layout_.reach * size_ > Pages::kMostBytes) return;
    this->pages_.prepare(static_cast<char*>(call_.output) + this->first_.at().output * size_, layout_.reach * size_);
  }

  void write_denominators() const {
    of_value([&](auto value) {
      Direction::template write_denominators<decltype(value)>(call_, kernels_, denominators_, rows_, layout_.part,
                                                              sums_, numbers_);
    });
  }

  // Calls see(row, count, at) for so many rows from that one on, whose denominators lie a stride apart, the first one
  // at `at`; returns how many rows there are.
  template <typename See>
  int64_t each_of_denominators(const See& see) const {
    Runs runs = this->first_;
    int64_t row = 0;
    for (int64_t k = 0; k < rows_;) {
      const int64_t n = layout_.part > 1 ? layout_.part : std::min(runs.left(), rows_ - k);
      see(row, n / layout_.part, runs.at().denominator);
      row += n / layout_.part;
      k += n;
      if (k < rows_) runs.advance(n);
    }
    return row;
  }

  template <typename Work>
  void of_value(const Work& work) const {
    call_.dtype == DType::kDouble ? work(double{}) : work(float{});
  }

  // Gives every column its row's number, which as many columns have as there are rows.
  void spread(double* numbers) const {
    if (layout_.part > 1) {
      for (int64_t k = rows_ / layout_.part; k-- > 0;) {
        std::fill_n(numbers + k * layout_.part, layout_.part, numbers[k]);
      }
    }
    for (int64_t i = rows_; i < width_ + kColumnPadding; ++i) numbers[i] = numbers[i - rows_];
  }

  LinesOf lines(const Runs& runs, int64_t at, int64_t n) {
    const auto of = [&](int operand) {
      const int64_t step = layout_.direct[operand] ? line_stride(operand) : width_;
      return Lines{this->read(operand, runs, at, n), step, groups_stride(operand)};
    };
    return {of(0), Direction::kGrad ? of(1) : Lines{}};
  }

  // Results from a line on, of those that begin at y.
  LinesTo to(char* y, int64_t line) const {
    const int64_t step = layout_.direct[2] ? line_stride(2) : width_;
    return {y + line * step * size_, step, groups_stride(2)};
  }

  bool streams() const { return this->streaming_ && layout_.direct[2]; }

  int64_t line_stride(int operand) const {
    return layout_.by_columns ? this->row_stride(operand) * layout_.fold : this->rows_stride(operand);
  }

  int64_t groups_stride(int operand) const { return layout_.groups ? this->runs_stride(operand) : 0; }

  // Whether groups follow each other without a gap.
  bool joins_groups() const {
    const auto joins = [&](int operand) { return groups_stride(operand) == layout_.line; };
    return layout_.groups && joins(0) && (!Direction::kGrad || joins(1)) && joins(2);
  }

  // Whole lines of n elements a row, and a line of what is left.
  template <typename Work>
  void each_part(const LinesOf& from, int64_t n, const Work& work) const {
    if (!layout_.by_columns) return work(from, 0, Extent{1, rows_, n});
    const int64_t count = n / layout_.fold, rest = n % layout_.fold;
    if (count > 0) {
      const int64_t columns = joins_groups() ? width_ : std::min(width_, layout_.line);
      work(from, 0, Extent{width_ / columns, count, columns});
    }
    const auto last = [&](const Lines& x) {
      return Lines{static_cast<const char*>(x.p) + count * x.step * size_, x.step, 0};
    };
    if (rest > 0) work({last(from.input), last(from.grad)}, count, Extent{1, 1, rest * rows_});
  }

  const LineKernels& line_kernels_;
  const int64_t space_;
  std::unique_ptr<CacheLine[]> arrays_;
  std::unique_ptr<int64_t[]> offsets_;  // of denominators that are no neighbours
  Denominators denominators_{};
  const Sums sums_;
  const Numbers numbers_;
  int64_t width_ = 0;
};

}  // namespace l1norm::cpu
