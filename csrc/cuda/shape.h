// What a geometry is to the plan.
#pragma once

#include <cstdint>

#include "../dtype.h"
#include "device.h"
#include "lattice_shape.h"

namespace l1norm::cuda {

struct Shape {
  int64_t rows;
  int64_t length;
  DType dtype;   // of the input
  bool held;     // may be kept as it is read: elements of a row are neighbours in memory, and no cast
  bool dense;    // rows follow each other without a gap
  bool aligned;  // packs of the input, of the output and of its gradient start at the same elements
  bool backward = false;
  bool at_packs = false;   // all of them start at a multiple of a pack's bytes
  LatticeShape lattice{};  // without a cast
  int64_t run = 0;         // elements of each of a row's runs of neighbours, where it has several, and no cast
  bool one_grad = false;   // gradients of results are one number, which kernels may know and read none

  int64_t row_bytes() const { return length * element_size(dtype); }
  double bytes() const { return static_cast<double>(rows) * static_cast<double>(row_bytes()); }
  // The most whole packs that a row can have, wherever it starts.
  int64_t packs() const { return row_bytes() / kPackBytes; }
  bool is_half() const { return element_size(dtype) == 2; }
};

// Rows of which each multiprocessor has up to so many: what counts is how long one takes.
inline bool is_few(const Shape& shape, const Device& device, int on_each = 1) {
  return shape.rows <= static_cast<int64_t>(on_each) * device.multiprocessors;
}

// Tiles of rows that a warp takes: fewer take longer than blocks whose threads share rows.
inline bool are_enough_tiles(int64_t tiles, const Device& device) {
  return tiles >= 8 * int64_t{device.multiprocessors};
}

}  // namespace l1norm::cuda
