// Rows of any strides and any input type: a tile of neighbouring rows is gathered into contiguous scratch in the
// result's type, worked on there by the row kernels, and scattered.
#pragma once

#include <algorithm>
#include <memory>

#include "../tensors.h"
#include "direction.h"
#include "half_types.h"

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

template <typename Direction>
class Tile {
 public:
  static constexpr int64_t kRows = 16;

  explicit Tile(const Call& c)
      : call_(c),
        kernels_(capability().of(c.dtype)),
        size_(element_size(c.dtype)),
        tile_bytes_(kRows * kColumns * size_),
        scratch_(new char[static_cast<size_t>((Direction::kGrad ? 2 : 1) * tile_bytes_)]),
        input_(c.geometry, &Offsets::input),
        grad_(c.geometry, &Offsets::grad),
        output_(c.geometry, &Offsets::output) {}

  void sum(int64_t row, int64_t rows, int64_t begin, int64_t end, Sum* sums) {
    for (int64_t k = 0; k < rows; ++k) sums[k] = Sum{};
    for (int64_t i = begin; i < end; i += kColumns) {
      const int64_t n = std::min(kColumns, end - i);
      gather(row, rows, i, n);
      for (int64_t k = 0; k < rows; ++k) {
        sums[k] = sums[k] + Direction::sum(call_, kernels_, denominators_[k], line(k), n);
      }
    }
  }

  void write(int64_t row, int64_t rows, int64_t begin, int64_t end, const typename Direction::Factor* factors) {
    for (int64_t i = begin; i < end; i += kColumns) {
      const int64_t n = std::min(kColumns, end - i);
      gather(row, rows, i, n);
      for (int64_t k = 0; k < rows; ++k) {
        Direction::write(kernels_, line(k), line_of_input(k), n, factors[k], false);
      }
      scatter(rows, n);
    }
    held_row_ = -1;
  }

 private:
  static constexpr int64_t kColumns = 512;

  // Where the tile's elements lie in an operand: starts + columns.
  struct Places {
    Places(const Geometry& g, int64_t Offsets::* operand) {
      const auto stride = [&](const Walk& w) { return w.dims == 0 ? INT64_MAX : w.stride[w.dims - 1].*operand; };
      rows_innermost = stride(g.rows) < stride(g.row);
    }

    int64_t starts[kRows];
    int64_t columns[kColumns];
    bool rows_innermost;
  };

  char* line_of_input(int64_t k) { return scratch_.get() + k * kColumns * size_; }

  Operands line(int64_t k) {
    char* const x = line_of_input(k);
    return {x, Direction::kGrad ? x + tile_bytes_ : nullptr};
  }

  void gather(int64_t row, int64_t rows, int64_t begin, int64_t n) {
    if (held_row_ == row && held_begin_ == begin) return;
    held_row_ = row;
    held_begin_ = begin;
    for (int64_t k = 0; k < rows; ++k) {
      const Offsets o = call_.geometry.rows.at(row + k);
      input_.starts[k] = o.input;
      grad_.starts[k] = o.grad;
      output_.starts[k] = o.output;
      denominators_[k] = o.denominator;
    }
    for (int64_t i = 0; i < n; ++i) {
      const Offsets o = call_.geometry.row.at(begin + i);
      input_.columns[i] = o.input;
      if constexpr (Direction::kGrad) grad_.columns[i] = o.grad;
      output_.columns[i] = o.output;
    }
    gather_one(call_.input, call_.input_dtype, input_, rows, n, scratch_.get());
    if constexpr (Direction::kGrad) gather_one(call_.grad, call_.dtype, grad_, rows, n, scratch_.get() + tile_bytes_);
  }

  void gather_one(const void* tensor, DType dtype, const Places& places, int64_t rows, int64_t n, char* tile) {
    with_type(dtype, [&](auto from) {
      with_type(call_.dtype, [&](auto to) {
        using From = decltype(from);
        using To = decltype(to);
        const From* x = static_cast<const From*>(tensor);
        To* lines = reinterpret_cast<To*>(tile);
        each(places, rows, n,
             [&](int64_t k, int64_t i, int64_t place) { lines[k * kColumns + i] = cast<To>(x[place]); });
      });
    });
  }

  void scatter(int64_t rows, int64_t n) {
    with_type(call_.dtype, [&](auto to) {
      using To = decltype(to);
      To* y = static_cast<To*>(call_.output);
      const To* lines = reinterpret_cast<const To*>(scratch_.get());
      each(output_, rows, n, [&](int64_t k, int64_t i, int64_t place) { y[place] = lines[k * kColumns + i]; });
    });
  }

  // Every element of the tile, neighbours in the operand's memory one after the other.
  template <typename Work>
  static void each(const Places& places, int64_t rows, int64_t n, const Work& work) {
    if (places.rows_innermost) {
      for (int64_t i = 0; i < n; ++i) {
        for (int64_t k = 0; k < rows; ++k) work(k, i, places.starts[k] + places.columns[i]);
      }
    } else {
      for (int64_t k = 0; k < rows; ++k) {
        for (int64_t i = 0; i < n; ++i) work(k, i, places.starts[k] + places.columns[i]);
      }
    }
  }

  const Call& call_;
  const RowKernels& kernels_;
  const int64_t size_;
  const int64_t tile_bytes_;
  std::unique_ptr<char[]> scratch_;
  Places input_, grad_, output_;
  int64_t denominators_[kRows];
  // What the scratch holds, so that a row that fits is read once; -1: nothing.
  int64_t held_row_ = -1;
  int64_t held_begin_ = -1;
};

}  // namespace l1norm::cpu
