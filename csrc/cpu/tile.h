// Rows of any strides and any input type: a tile of neighbouring rows is gathered into contiguous scratch in the
// result's type, worked on there by the row kernels, and scattered.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "../tensors.h"
#include "half_types.h"
#include "kernels.h"

namespace l1norm::cpu {

inline float widened(Half x) { return to_float(x); }
inline float widened(BFloat16 x) { return to_float(x); }
inline float widened(float x) { return x; }
inline double widened(double x) { return x; }

// A cast as Tensor.to() casts: to a half type by way of float.
template <typename To, typename From>
To cast(From x) {
  if constexpr (std::is_same_v<To, From>) {
    return x;
  } else if constexpr (std::is_same_v<To, Half>) {
    return to_half(static_cast<float>(widened(x)));
  } else if constexpr (std::is_same_v<To, BFloat16>) {
    return to_bfloat16(static_cast<float>(widened(x)));
  } else {
    return static_cast<To>(widened(x));
  }
}

template <typename Work>
void with_type(DType t, const Work& work) {
  switch (t) {
    case DType::kHalf:
      return work(Half{});
    case DType::kBFloat16:
      return work(BFloat16{});
    case DType::kFloat:
      return work(float{});
    case DType::kDouble:
      return work(double{});
  }
}

class Tile {
 public:
  static constexpr int64_t kRows = 16;

  explicit Tile(const Call& c)
      : call_(c),
        kernels_(capability().of(c.dtype)),
        size_(element_size(c.dtype)),
        scratch_(new char[static_cast<size_t>(kRows * kColumns * size_)]),
        offsets_(static_cast<size_t>(kColumns)),
        rows_innermost_(stride_of(c.geometry.rows) < stride_of(c.geometry.row)) {}

  void sum(int64_t row, int64_t rows, int64_t begin, int64_t end, Sum* sums) {
    for (int64_t k = 0; k < rows; ++k) sums[k] = Sum{};
    for (int64_t i = begin; i < end; i += kColumns) {
      const int64_t n = std::min(kColumns, end - i);
      gather(row, rows, i, n);
      for (int64_t k = 0; k < rows; ++k) sums[k] = sums[k] + kernels_.sum(line(k), n);
    }
  }

  void divide(int64_t row, int64_t rows, int64_t begin, int64_t end, const Divisor* divisors) {
    for (int64_t i = begin; i < end; i += kColumns) {
      const int64_t n = std::min(kColumns, end - i);
      gather(row, rows, i, n);
      for (int64_t k = 0; k < rows; ++k) kernels_.divide(line(k), line(k), n, divisors[k], false);
      scatter(rows, n);
    }
    held_row_ = -1;
  }

 private:
  static constexpr int64_t kColumns = 512;

  static int64_t stride_of(const Walk& w) { return w.dims == 0 ? INT64_MAX : w.stride[w.dims - 1].input; }

  char* line(int64_t k) { return scratch_.get() + k * kColumns * size_; }

  void gather(int64_t row, int64_t rows, int64_t begin, int64_t n) {
    if (held_row_ == row && held_begin_ == begin) return;
    held_row_ = row;
    held_begin_ = begin;
    for (int64_t k = 0; k < rows; ++k) starts_[k] = call_.geometry.rows.at(row + k);
    for (int64_t i = 0; i < n; ++i) offsets_[static_cast<size_t>(i)] = call_.geometry.row.at(begin + i);
    with_type(call_.input_dtype, [&](auto from) {
      with_type(call_.dtype, [&](auto to) {
        using From = decltype(from);
        using To = decltype(to);
        const From* x = static_cast<const From*>(call_.input);
        To* lines = reinterpret_cast<To*>(scratch_.get());
        each(rows, n, [&](int64_t k, int64_t i) {
          lines[k * kColumns + i] = cast<To>(x[starts_[k].input + offsets_[static_cast<size_t>(i)].input]);
        });
      });
    });
  }

  void scatter(int64_t rows, int64_t n) {
    with_type(call_.dtype, [&](auto to) {
      using To = decltype(to);
      To* y = static_cast<To*>(call_.output);
      const To* lines = reinterpret_cast<const To*>(scratch_.get());
      each(rows, n, [&](int64_t k, int64_t i) {
        y[starts_[k].output + offsets_[static_cast<size_t>(i)].output] = lines[k * kColumns + i];
      });
    });
  }

  // Every element of the tile, neighbours in memory one after the other.
  template <typename Work>
  void each(int64_t rows, int64_t n, const Work& work) const {
    if (rows_innermost_) {
      for (int64_t i = 0; i < n; ++i) {
        for (int64_t k = 0; k < rows; ++k) work(k, i);
      }
    } else {
      for (int64_t k = 0; k < rows; ++k) {
        for (int64_t i = 0; i < n; ++i) work(k, i);
      }
    }
  }

  const Call& call_;
  const RowKernels& kernels_;
  const int64_t size_;
  std::unique_ptr<char[]> scratch_;
  std::vector<Offsets> offsets_;
  Offsets starts_[kRows];
  const bool rows_innermost_;
  // What the scratch holds, so that a row that fits is read once; -1: nothing.
  int64_t held_row_ = -1;
  int64_t held_begin_ = -1;
};

}  // namespace l1norm::cpu
