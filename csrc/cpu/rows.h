// Rows for run_tiles(): sums and results of rows side by side, or row after row.
#pragma once

#include <algorithm>
#include <memory>

#include "tiles.h"

namespace l1norm::cpu {

struct alignas(64) CacheLine {  // vectors do not cross them
  double numbers[kColumnPadding];
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
        space_((layout.rows * layout.fold + kWrapped + 3 * kColumnPadding - 1) / kColumnPadding * kColumnPadding),
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
    if (layout_.blocks.sharers > 1) add_sharers();
    spread(sums_.hi);
    spread(sums_.lo);
    Direction::finish(call_, kernels_, width_ + wrapped(), sums_, numbers_);
    if (first) write_denominators();
    prepare();
    this->each_piece(begin, end, [&](const Runs& runs, int64_t at, int64_t n) {
      const LinesOf from = lines(runs, at, n);
      char* const y = this->place(runs);
      if (layout_.rows == 1 && layout_.direct[2]) this->pages_.prepare(y, n * size_);
      each_part(from, n, [&](const LinesOf& part, int64_t line, const Extent& extent) {
        Direction::write(line_kernels_, part, to(y, line, n), extent, sums_, numbers_, streams());
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
                Direction::at_once(call_, kernels_, from, to(y, line, layout_.chunk), extent, sums_, numbers_,
                                   streams());
              });
    this->written(this->start_, layout_.chunk);
    if (Direction::kGrad || call_.denominator == nullptr) return;
    Direction::finish(call_, kernels_, width_, sums_, numbers_);
    write_denominators();
  }

  Sums sums() { return sums_; }

 private:
  // Columns whose divisors are behind the last one's: the first of the line that follows.
  int64_t wrapped() const {
    return !Direction::kGrad && layout_.by_columns && (!layout_.groups || rows_ == layout_.line) ? kWrapped : 0;
  }

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

  // Gives all columns of a block that are of one row the sum of theirs.
  void add_sharers() {
    const auto [sharers, columns] = layout_.blocks;
    const int64_t block = sharers * columns;
    for (int64_t from = 0; from < rows_; from += block) {
      for (int64_t i = from; i < from + columns; ++i) {
        Sum sum;
        for (int64_t k = i; k < from + block; k += columns) sum = sum + Sum{sums_.hi[k], sums_.lo[k]};
        for (int64_t k = i; k < from + block; k += columns) sums_.hi[k] = sum.hi, sums_.lo[k] = sum.lo;
      }
    }
  }

  // Gives every column its row's number, which as many columns have as there are rows.
  void spread(double* numbers) const {
    if (layout_.part > 1) {
      for (int64_t k = rows_ / layout_.part; k-- > 0;) {
        std::fill_n(numbers + k * layout_.part, layout_.part, numbers[k]);
      }
    }
    for (int64_t i = rows_; i < width_ + wrapped() + kColumnPadding; ++i) numbers[i] = numbers[i - rows_];
  }

  LinesOf lines(const Runs& runs, int64_t at, int64_t n) {
    const auto of = [&](int operand) {
      return Lines{this->read(operand, runs, at, n), step_of(operand, n), groups_stride(operand, n), ahead(operand)};
    };
    return {of(0), Direction::kGrad ? of(1) : Lines{}};
  }

  // From an element to that of the next tile, where a tile is so small that the second cache holds two.
  int64_t ahead(int operand) const {
    constexpr int64_t kMostBytes = 256 << 10;
    const int64_t apart = rows_ * this->rows_stride(operand);
    const bool near = !layout_.by_columns && layout_.direct[operand] && apart * size_ <= kMostBytes;
    return near ? apart : 0;
  }

  // Results from a line on, of those that begin at y, n of every row.
  LinesTo to(char* y, int64_t line, int64_t n) const {
    const int64_t step = step_of(2, n);
    return {y + line * step * size_, step, groups_stride(2, n)};
  }

  bool streams() const { return this->streaming_ && layout_.direct[2]; }

  int64_t line_stride(int operand) const {
    return layout_.by_columns ? this->row_stride(operand) * layout_.fold : this->rows_stride(operand);
  }

  // From a line to the next one, of n elements of every row; of groups.
  int64_t step_of(int operand, int64_t n) const {
    if (layout_.direct[operand]) return line_stride(operand);
    return !layout_.by_columns ? n : layout_.groups ? layout_.line : width_;
  }
  int64_t groups_stride(int operand, int64_t n) const {
    if (!layout_.groups) return 0;
    return layout_.direct[operand] ? this->runs_stride(operand) : n * layout_.line;
  }

  // Whether groups follow each other without a gap.
  bool joins_groups(int64_t n) const {
    const auto joins = [&](int operand) { return groups_stride(operand, n) == layout_.line; };
    return layout_.groups && joins(0) && (!Direction::kGrad || joins(1)) && joins(2);
  }

  // Whole lines of n elements a row, and a line of what is left.
  template <typename Work>
  void each_part(const LinesOf& from, int64_t n, const Work& work) const {
    if (!layout_.by_columns) return work(from, 0, Extent{1, rows_, n});
    const int64_t count = n / layout_.fold, rest = n % layout_.fold;
    if (count > 0) {
      const int64_t columns = joins_groups(n) ? width_ : std::min(width_, layout_.line);
      work(from, 0, Extent{width_ / columns, count, columns, wrapped() > 0});
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
