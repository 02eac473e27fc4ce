// What a launch asks memory for while it waits for its stream. Pure and host-only but for the POD, which kernels take
// by value.
#pragma once

#include <cstdint>

#include "geometry.h"

namespace l1norm {

// Runs of so many bytes of an operand, the first one from its start on, each `stride` bytes after the one before.
struct Ahead {
  int32_t runs;  // 0: nothing is asked for
  int32_t bytes;
  int64_t stride;
};

// All of an operand, if it has most_bytes or fewer and they lie together, or so in rows. Of rows shorter than
// least_bytes most would be what lies between.
inline Ahead ahead_of(const Geometry& g, int64_t Offsets::* operand, int64_t element_size, int64_t least_bytes,
                      int64_t most_bytes) {
  const int64_t elements = g.rows.count * g.row.count;
  if (elements == 0 || elements > most_bytes / element_size) return {};
  const int64_t bytes = elements * element_size;
  int64_t reach = 1;
  for (const Walk* walk : {&g.rows, &g.row}) {
    for (int d = 0; d < walk->dims; ++d) {
      const int64_t stride = walk->stride[d].*operand;
      if (stride < 0) return {};
      reach += (walk->size[d] - 1) * stride;
    }
  }
  if (reach <= elements + elements / 8) return {1, static_cast<int32_t>(reach * element_size), 0};
  const int64_t row_bytes = bytes / g.rows.count;
  const bool in_rows = g.rows.dims == 1 && (g.row.dims == 0 || (g.row.dims == 1 && g.row.stride[0].*operand == 1));
  if (!in_rows || row_bytes < least_bytes) return {};
  return {static_cast<int32_t>(g.rows.count), static_cast<int32_t>(row_bytes),
          g.rows.stride[0].*operand * element_size};
}

}  // namespace l1norm
