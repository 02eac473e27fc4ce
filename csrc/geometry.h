// Sizes and strides -> the walk that kernels follow. Pure and host-only but for the two PODs, which kernels take by
// value.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#if defined(__CUDACC__)
#define L1NORM_WALK __host__ __device__ __forceinline__
#else
#define L1NORM_WALK inline
#endif

namespace l1norm {

// Dimensions that are left after merging; TensorIterator's limit.
constexpr int kMaxDims = 25;
constexpr int kMaxRank = 64;  // PyTorch's own limit

struct Offsets {
  int64_t input;
  int64_t grad;  // of the result; as input where there is none
  int64_t output;
  int64_t denominator;

  L1NORM_WALK void add(int64_t count, const Offsets& stride) {
    input += count * stride.input;
    grad += count * stride.grad;
    output += count * stride.output;
    denominator += count * stride.denominator;
  }
};

// A nest of loops, outermost first, with a stride in elements for each operand.
struct Walk {
  int dims = 0;
  int64_t count = 1;
  Offsets stride[kMaxDims];  // of the first dims
  int64_t size[kMaxDims];

  L1NORM_WALK Offsets at(int64_t index) const { return locate(index, dims - 1); }

  // Whether loop d leads so many elements on, in input, grad and output alike.
  bool has_stride(int d, int64_t elements) const {
    const Offsets& s = stride[d];
    return s.input == elements && s.grad == elements && s.output == elements;
  }

  // Elements that a walk of two loops jumps besides its steps, from round to round of the inner one.
  int64_t jump(int64_t Offsets::* of) const { return stride[0].*of - size[1] * (stride[1].*of); }

  // Where indices fit 31 bits: divisions take a fifth of the time.
  L1NORM_WALK Offsets at_small(int index) const { return locate(static_cast<uint32_t>(index), dims - 1); }

  // The same of the loops around the innermost one.
  L1NORM_WALK Offsets around_small(int index) const { return locate(static_cast<uint32_t>(index), dims - 2); }

 private:
  // last: of the loops that the index counts. The outermost one needs no division.
  template <typename Index>
  L1NORM_WALK Offsets locate(Index index, int last) const {
    Offsets o{};
    if (last == 0) {  // all that most walks have, without a branch between
      o.add(static_cast<int64_t>(index), stride[0]);
      return o;
    }
#if defined(__CUDA_ARCH__)
#pragma unroll 1
#endif
    for (int d = last; d > 0; --d) {
      const Index extent = static_cast<Index>(size[d]), next = index / extent;
      o.add(static_cast<int64_t>(index - next * extent), stride[d]);
      index = next;
    }
    if (last >= 0) o.add(static_cast<int64_t>(index), stride[0]);
    return o;
  }
};

// rows: where each row starts; row: the elements of one row. A row is what one divisor is for.
struct Geometry {
  Walk rows;
  Walk row;

  // Elements of an operand, from its first to behind its last.
  int64_t span(int64_t Offsets::* of) const {
    int64_t span = 1;
    for (const Walk* walk : {&rows, &row}) {
      for (int d = 0; d < walk->dims; ++d) span += (walk->size[d] - 1) * (walk->stride[d].*of);
    }
    return span;
  }

  // Neighbours in a row are neighbours in memory, in input, grad and output alike.
  bool unit_stride() const { return row.dims == 0 || (row.dims == 1 && row.has_stride(0, 1)); }

  // Elements of each of the runs of neighbours that a row is made of, if it is made of several that are alike; else 0.
  int64_t run() const { return row.dims == 2 && row.has_stride(1, 1) ? row.size[1] : 0; }

  // Rows of neighbours that follow each other without a gap, in input, grad and output alike.
  bool dense() const { return unit_stride() && (rows.dims == 0 || (rows.dims == 1 && rows.has_stride(0, row.count))); }
};

struct Dim {
  int64_t size;
  Offsets stride;
};

// Orders loops by stride (largest outermost) and merges neighbours that one stride describes.
// False where more than kMaxDims are left.
inline bool make_walk(Dim* dims, int n, Walk& walk) {
  walk.dims = 0;
  walk.count = 1;
  for (int i = 0; i < n; ++i) walk.count *= dims[i].size;
  if (walk.count == 0) return true;
  n = static_cast<int>(std::remove_if(dims, dims + n, [](const Dim& d) { return d.size == 1; }) - dims);
  // An insertion sort: stable, without std::stable_sort's buffer on the heap.
  const auto outer = [](const Dim& a, const Dim& b) {
    if (a.stride.output != b.stride.output) return a.stride.output > b.stride.output;
    return a.stride.input != b.stride.input ? a.stride.input > b.stride.input : a.stride.grad > b.stride.grad;
  };
  for (int i = 1; i < n; ++i) {
    const Dim d = dims[i];
    int at = i;
    for (; at > 0 && outer(d, dims[at - 1]); --at) dims[at] = dims[at - 1];
    dims[at] = d;
  }
  for (int i = 0; i < n; ++i) {
    const Dim& d = dims[i];
    if (walk.dims > 0) {
      const int last = walk.dims - 1;
      const Offsets& outer = walk.stride[last];
      if (outer.input == d.size * d.stride.input && outer.grad == d.size * d.stride.grad &&
          outer.output == d.size * d.stride.output && outer.denominator == d.size * d.stride.denominator) {
        walk.size[last] *= d.size;
        walk.stride[last] = d.stride;
        continue;
      }
    }
    if (walk.dims == kMaxDims) return false;
    walk.size[walk.dims] = d.size;
    walk.stride[walk.dims] = d.stride;
    ++walk.dims;
  }
  return true;
}

// Strides of denominators, of which there is one a row: dense, in the order in which the output lies in memory, so that
// they keep no dimensions from merging.
inline void dense_denominators(int rank, const int64_t* sizes, const int64_t* output_strides, const bool* reduced,
                               int64_t* strides) {
  std::array<int, kMaxRank> inner_first;
  for (int i = 0; i < rank; ++i) {
    const int d = rank - 1 - i;
    int at = i;
    for (; at > 0 && output_strides[d] < output_strides[inner_first[at - 1]]; --at) {
      inner_first[at] = inner_first[at - 1];
    }
    inner_first[at] = d;
  }
  int64_t stride = 1;
  for (int i = 0; i < rank; ++i) {
    const int d = inner_first[i];
    strides[d] = stride;
    if (!reduced[d]) stride *= std::max<int64_t>(sizes[d], 1);
  }
}

// reduced[d] tells whether dimension d is summed over. grad_strides are those of input in a call without a grad, so
// that it changes nothing; denominator_strides are null where a call has no denominators. False where the tensor has
// more dimensions that do not merge than kernels walk.
inline bool make_geometry(int rank, const int64_t* sizes, const int64_t* input_strides, const int64_t* grad_strides,
                          const int64_t* output_strides, const int64_t* denominator_strides, const bool* reduced,
                          Geometry& geometry) {
  if (rank > kMaxRank) return false;
  std::array<Dim, kMaxRank> rows, row;
  int n_rows = 0, n_row = 0;
  for (int d = 0; d < rank; ++d) {
    Dim dim{sizes[d], {input_strides[d], grad_strides[d], output_strides[d], 0}};
    if (reduced[d]) {
      row[n_row++] = dim;
    } else {
      if (denominator_strides != nullptr) dim.stride.denominator = denominator_strides[d];
      rows[n_rows++] = dim;
    }
  }
  return make_walk(rows.data(), n_rows, geometry.rows) && make_walk(row.data(), n_row, geometry.row);
}

}  // namespace l1norm
