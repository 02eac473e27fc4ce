// Runs of memory in which few rows take turns, too short for vectors of their own: elements of a run as lines across
// many runs, so that vectors lie across runs.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "layout.h"

namespace l1norm::cpu {

// How many runs a tile has where they are so short; else 0.
inline int64_t short_runs_of_tile(const Call& c) {
  constexpr int64_t kMostElements = 128, kMostColumns = 7;  // of a run
  constexpr int64_t kLeast = 16;                            // runs, a multiple of what vectors hold
  constexpr int64_t kTileBytes = 8 << 10;
  const Walk &rows = c.geometry.rows, &row = c.geometry.row;
  if (rows.dims < 2 || rows.dims == kMaxDims || row.dims != 1) return 0;
  const int64_t columns = rows.size[rows.dims - 1], runs = rows.size[rows.dims - 2], elements = columns * row.size[0];
  const auto packed = [&](int64_t Offsets::* o) {
    return row.stride[0].*o == columns && rows.stride[rows.dims - 1].*o == 1;
  };
  const bool all = packed(&Offsets::input) && packed(&Offsets::output) && (c.grad == nullptr || packed(&Offsets::grad));
  if (!all || columns == 1 || columns > kMostColumns || elements > kMostElements || runs < kLeast) return 0;
  const int64_t fit = std::min(kTileBytes / (elements * element_size(c.dtype)), Layout::kMostRows / columns);
  return std::min(std::max(fit, kLeast), runs) / kLeast * kLeast;
}

// The call with a tile's runs as its innermost loop: of whole tiles, or of what is left behind them.
inline Call turn_runs(Call c, int64_t runs_of_tile, bool rest) {
  Walk& rows = c.geometry.rows;
  const int outer = rows.dims - 2;
  const int64_t runs = rows.size[outer], tiles = runs / runs_of_tile;
  const Offsets run = rows.stride[outer];
  const int64_t n = rest ? runs - tiles * runs_of_tile : runs_of_tile;
  rows.size[outer] = rest ? 1 : tiles;
  rows.size[rows.dims] = n;
  rows.stride[outer] = {};
  rows.stride[outer].add(runs_of_tile, run);
  rows.stride[rows.dims] = run;
  ++rows.dims;
  rows.count = rows.count / runs * n * rows.size[outer];
  if (!rest) return c;
  const int64_t first = tiles * runs_of_tile, size = element_size(c.dtype);
  const int64_t number = c.dtype == DType::kDouble ? sizeof(double) : sizeof(float);
  const auto move = [&](auto& p, int64_t elements, int64_t bytes) {
    using P = std::remove_reference_t<decltype(p)>;
    if (p != nullptr) p = static_cast<P>(const_cast<char*>(static_cast<const char*>(p)) + elements * bytes);
  };
  move(c.input, first * run.input, element_size(c.input_dtype));
  move(c.grad, first * run.grad, size);
  move(c.output, first * run.output, size);
  move(c.denominator, first * run.denominator, number);
  move(c.grad_denominator, first * run.denominator, number);
  return c;
}

// A tile for all of a row's elements, of rows that turn_runs() has turned.
inline Layout make_layout_of_short_runs(const Call& c) {
  const Walk& rows = c.geometry.rows;
  Layout t{};
  t.by_columns = true;
  t.part = t.fold = 1;
  t.run = t.rows = t.line = rows.size[rows.dims - 1] * rows.size[rows.dims - 2];
  t.turned = true;
  t.at_once = c.geometry.row.count <= Layout::kFewLines;
  t.tiles = rows.count / t.rows;
  t.tiles_a_run = 1;
  t.chunk = c.geometry.row.count;
  t.reach = rows.size[rows.dims - 1] * std::max(rows.stride[rows.dims - 1].output, int64_t{0});
  return t;
}

}  // namespace l1norm::cpu
