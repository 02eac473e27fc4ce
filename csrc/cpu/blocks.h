// Rows whose elements lie between those of others in blocks of memory, as of dims (0, 2) of four: a block's elements
// are columns of their own, until the sums of those that are of one row are added.
#pragma once

#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <cstdint>
#include <memory>

#include "layout.h"

namespace l1norm::cpu {

// Blocks of elements of `columns` rows each, which follow each other.
inline Blocks blocks_of(const Call& c) {
  constexpr int64_t kMostBytes = 8 << 10;  // of a block: longer ones are walked as they are
  constexpr int64_t kLeastLines = 10;  // that repay numbers for each column (of 8 gradients are slower, of 16 faster)
  const Walk &rows = c.geometry.rows, &row = c.geometry.row;
  const Inner k(rows), l(row);
  if (row.dims < 2 || rows.dims < 2 || c.input_dtype != c.dtype) return {};
  const int64_t block = l.size * k.size, blocks = rows.size[rows.dims - 2];
  const bool follow =
      is_of_each(c, k.stride, 1) && is_of_each(c, l.stride, k.size) && is_of_each(c, rows.stride[rows.dims - 2], block);
  const bool repay = block * element_size(c.dtype) <= kMostBytes && row.count >= kLeastLines * l.size;
  return follow && repay && k.size > 1 && blocks * block >= kShortRun ? Blocks{l.size, k.size} : Blocks{};
}

// The call for columns, whose denominators and their gradients lie in arrays of its own, one number a column.
class BlockCall {
 public:
  BlockCall(const Call& c, const Blocks& blocks) : of_(c), blocks_(blocks), columns_(c) {
    Walk &rows = columns_.geometry.rows, &row = columns_.geometry.row;
    row.count /= blocks.sharers;
    --row.dims;
    rows.count *= blocks.sharers;
    --rows.dims;
    rows.size[rows.dims - 1] *= blocks.sharers * blocks.columns;
    int64_t neighbours = 1;
    for (int d = rows.dims - 1; d >= 0; --d) {
      if (d == rows.dims - 1) rows.stride[d] = {1, 1, 1, 0};
      rows.stride[d].denominator = neighbours;
      neighbours *= rows.size[d];
    }
    columns_.denominator = array_of(c.denominator, denominators_);
    columns_.grad_denominator = array_of(c.grad_denominator, grads_);
  }

  const Call& columns() const { return columns_; }

  // Every column's number from its row's; and back.
  void give() {
    each_row([&](int64_t row, int64_t column) {
      for (int64_t i = 0; i < blocks_.sharers; ++i) {
        const int64_t to = column + i * blocks_.columns;
        copy(of_.denominator, row, columns_.denominator, to);
        if (of_.grad_denominator != nullptr) {
          copy(of_.grad_denominator, row, const_cast<void*>(columns_.grad_denominator), to);
        }
      }
    });
  }
  void take() {
    if (of_.denominator == nullptr) return;
    each_row([&](int64_t row, int64_t column) { copy(columns_.denominator, column, of_.denominator, row); });
  }

 private:
  // see(place of a row's numbers, its first column's), by threads.
  template <typename See>
  void each_row(const See& see) const {
    constexpr int64_t kGrain = 4096;
    const Walk& rows = of_.geometry.rows;
    const int64_t block = blocks_.sharers * blocks_.columns;
    torch::stable::parallel_for(0, rows.count, kGrain, [&](int64_t from, int64_t to) {
      Runs runs(rows, from);
      for (int64_t i = from; i < to; ++i) {
        see(runs.at().denominator, i / blocks_.columns * block + i % blocks_.columns);
        if (i + 1 < to) runs.advance(1);
      }
    });
  }

  void copy(const void* from, int64_t i, void* to, int64_t k) const {
    if (of_.dtype == DType::kDouble) {
      static_cast<double*>(to)[k] = static_cast<const double*>(from)[i];
    } else {
      static_cast<float*>(to)[k] = static_cast<const float*>(from)[i];
    }
  }

  // Room for doubles.
  template <typename Numbers>
  double* array_of(const Numbers* numbers, std::unique_ptr<double[]>& array) const {
    if (numbers != nullptr) array.reset(new double[static_cast<size_t>(columns_.geometry.rows.count)]);
    return array.get();
  }

  const Call& of_;
  const Blocks blocks_;
  std::unique_ptr<double[]> denominators_, grads_;
  Call columns_;
};

}  // namespace l1norm::cpu
