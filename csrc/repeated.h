// Gradients of results that repeat themselves: the same for all rows, as those of sum() and mean() are. Kernels read
// packs of them from a copy of what lies side by side, which is next to nothing. Pure and host-only.
#pragma once

#include <cstdint>
#include <numeric>

#include "geometry.h"

namespace l1norm {

// What is copied: so many elements, `step` from each other in the gradient.
struct Repeated {
  int64_t elements = 0;  // 0: none
  int64_t step = 0;
  // Rows of input and output follow each other without a gap, and these are what each row has: a kernel that takes
  // tiles of rows wants them for all rows of a tile.
  bool in_rows = false;
  // So many rows on, packs lie in a row as they do in the first one: copies one after the other lie as rows do.
  int64_t turns = 1;

  // How often they have to be in the copy. A tile of rows wants them for each; one that already lies side by side is
  // enough for others.
  int64_t copies(int64_t tile_rows) const {
    if (elements == 0) return 0;
    if (in_rows && tile_rows > 0) return tile_rows;
    return step == 1 && turns == 1 ? 0 : turns;
  }

  // Has the rows that follow each other read the copies by turns. Of the outer loop all but the last are whole.
  void take_turns(Walk& rows) const {
    Offsets& outer = rows.stride[0];
    rows.stride[1] = {outer.input, elements, outer.output, outer.denominator};
    rows.size[1] = turns;
    outer = {turns * outer.input, 0, turns * outer.output, turns * outer.denominator};
    rows.size[0] = (rows.size[0] + turns - 1) / turns;
    rows.dims = 2;
  }
};

// Whether the gradient is the same all along the walk.
inline bool is_constant(const Walk& walk) {
  for (int d = 0; d < walk.dims; ++d) {
    if (walk.stride[d].grad != 0) return false;
  }
  return true;
}

// Whether it is one number for all elements.
inline bool is_one_number(const Geometry& g) { return is_constant(g.rows) && is_constant(g.row); }

// Has a gradient that no kernel reads lie as the input does.
inline void lay_grad_as_input(Geometry& g) {
  for (Walk* walk : {&g.rows, &g.row}) {
    for (int d = 0; d < walk->dims; ++d) walk->stride[d].grad = walk->stride[d].input;
  }
}

// A copy has to be read so often to be worth it.
constexpr int64_t kLeastRepeats = 4;

// In g, the gradient's strides become those of the copy, if there is one, of no more than `most` elements. pack: of so
// many elements, where it counts how rows lie in packs.
inline Repeated take_repeated(Geometry& g, int64_t most = INT64_MAX, int64_t pack = 1) {
  Walk &rows = g.rows, &row = g.row;
  if (!is_constant(rows)) return {};
  const int64_t all = rows.count * row.count;
  const auto innermost = [](const Walk& walk) {
    const int last = walk.dims - 1;
    return last >= 0 && walk.stride[last].input == 1 && walk.stride[last].output == 1;
  };
  const bool lone = row.dims == 0;
  if (lone || (row.dims == 1 && innermost(row))) {
    const bool follow = rows.dims == 1 && rows.stride[0].input == row.count && rows.stride[0].output == row.count;
    const int64_t step = lone ? 1 : row.stride[0].grad;
    if (kLeastRepeats * row.count > all || row.count > most || (step == 1 && !follow)) return {};
    if (!lone) row.stride[0].grad = 1;
    const int64_t turns = pack / std::gcd(pack, row.count);
    return {row.count, step, follow, follow && kLeastRepeats * turns <= rows.count ? turns : 1};
  }
  if (!is_constant(row)) return {};
  for (Walk* walk : {&row, &rows}) {
    if (!innermost(*walk)) continue;
    const int last = walk->dims - 1;
    if (kLeastRepeats * walk->size[last] > all || walk->size[last] > most) return {};
    walk->stride[last].grad = 1;
    return {walk->size[last], 0};
  }
  return {};
}

}  // namespace l1norm
