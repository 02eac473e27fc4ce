// Columns that come round in a dense run of memory: which of them an element is of, and which row's it is.
#pragma once

#include "../geometry.h"
#include "../lattice.h"
#include "divider.h"

namespace l1norm::cuda {

// Columns that come round, so many at a time.
struct Turns {
  int columns;
  Divider by_columns;

  explicit Turns(int columns_) : columns(columns_), by_columns(static_cast<uint32_t>(columns)) {}

  __device__ __forceinline__ int turn_of(int k) const {
    return static_cast<int>(by_columns.quotient(static_cast<uint32_t>(k)));
  }
  __device__ __forceinline__ int column_of(int k) const { return k - turn_of(k) * columns; }
};

// Columns that come round of which a row has several: a fold holds those of as many rows as lie between a row's own.
struct Folds {
  Turns columns;  // of a fold
  Turns apart;    // columns from one of a row's to the next

  explicit Folds(const Rounds& rounds)
      : columns(static_cast<int>(rounds.fold * rounds.apart)), apart(static_cast<int>(rounds.apart)) {}

  struct Row {
    int fold, place;
  };
  __device__ __forceinline__ Row row_of_column(int k) const { return {columns.turn_of(k), apart.column_of(k)}; }
  __device__ __forceinline__ Row row(int number) const { return {apart.turn_of(number), apart.column_of(number)}; }

  __device__ __forceinline__ int number(Row row) const { return row.fold * apart.columns + row.place; }
  __device__ __forceinline__ int first_column(Row row) const { return row.fold * columns.columns + row.place; }
  __device__ __forceinline__ bool is_first_column(int k) const { return columns.column_of(k) < apart.columns; }

  // From the first row's to this one's.
  __device__ __forceinline__ int64_t denominator(const Walk& rows, Row row) const {
    const int last = rows.dims - 1;
    if (apart.columns == 1) return row.fold * rows.stride[last].denominator;
    return row.fold * rows.stride[last - 1].denominator + row.place * rows.stride[last].denominator;
  }
};

}  // namespace l1norm::cuda
