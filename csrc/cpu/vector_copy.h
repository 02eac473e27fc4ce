// Copies of blocks between layouts and types. Part of vector_kernels.h.

namespace l1norm::cpu {
namespace {

template <typename Bits>
constexpr int kSide = L1NORM_VECTOR_BYTES / sizeof(Bits) < 16 ? L1NORM_VECTOR_BYTES / sizeof(Bits) : 16;

template <typename Bits>
struct LineOf {
  typedef Bits type __attribute__((vector_size(kSide<Bits> * sizeof(Bits))));
};

// A square in registers: lines i and i + kN / 2 are zipped, log2(kN) times.
template <typename Line>
L1NORM_INLINE void transpose_lines(Line* lines) {
  constexpr int kN = sizeof(Line) / sizeof((*lines)[0]);
  constexpr std::make_index_sequence<kN> all;
  Line next[kN];
  for (int step = 1; step < kN; step *= 2) {
    for (int i = 0; i < kN / 2; ++i) {
      next[2 * i] = zipped<0>(lines[i], lines[i + kN / 2], all);
      next[2 * i + 1] = zipped<kN / 2>(lines[i], lines[i + kN / 2], all);
    }
    for (int i = 0; i < kN; ++i) lines[i] = next[i];
  }
}

template <typename Bits>
L1NORM_INLINE void transpose_square(const Bits* from, int64_t from_row, Bits* to, int64_t to_column) {
  constexpr int kN = kSide<Bits>;
  using Line = typename LineOf<Bits>::type;
  Line lines[kN];
  for (int i = 0; i < kN; ++i) lines[i] = load<Line>(from + i * from_row);
  transpose_lines(lines);
  for (int i = 0; i < kN; ++i) __builtin_memcpy(to + i * to_column, &lines[i], sizeof(Line));
}

// Of some lines and columns. What lies behind them is read and written as well, but for what lies behind the ends.
template <typename Bits>
void transpose_part(const Bits* from, const Bits* from_end, int64_t from_row, Bits* to, const Bits* to_end,
                    int64_t to_column, int64_t rows, int64_t columns) {
  constexpr int64_t kN = kSide<Bits>;
  using Line = typename LineOf<Bits>::type;
  Line lines[kN];
  for (int64_t i = 0; i < kN; ++i) {
    const Bits* const p = from + i * from_row;
    if (i < rows && from_end - p >= kN) {
      lines[i] = load<Line>(p);
    } else {
      lines[i] = Line{};
      if (i < rows) __builtin_memcpy(&lines[i], p, static_cast<size_t>(columns) * sizeof(Bits));
    }
  }
  transpose_lines(lines);
  for (int64_t j = 0; j < columns; ++j) {
    Bits* const q = to + j * to_column;
    if (to_end - q >= kN) {
      __builtin_memcpy(q, &lines[j], sizeof(Line));
    } else {
      __builtin_memcpy(q, &lines[j], static_cast<size_t>(rows) * sizeof(Bits));
    }
  }
}

// to[j * to_column + i] = from[i * from_row + j]
template <typename Bits>
void transpose(const Bits* from, int64_t from_row, Bits* to, int64_t to_column, int64_t rows, int64_t columns) {
  constexpr int64_t kN = kSide<Bits>;
  const auto one_by_one = [&](int64_t i0, int64_t i1, int64_t j0, int64_t j1) {
    for (int64_t j = j0; j < j1; ++j) {
      for (int64_t i = i0; i < i1; ++i) to[j * to_column + i] = from[i * from_row + j];
    }
  };
  const int64_t whole_rows = rows / kN * kN, whole_columns = columns / kN * kN;
  const Bits* const from_end = from + (rows - 1) * from_row + columns;
  const Bits* const to_end = to + (columns - 1) * to_column + rows;
  // Squares with so much of them are as fast as elements one by one. They read or write what comes next, which is this
  // block's where there is no gap; what they write there is written again.
  constexpr bool kParts = kN == 16 || L1NORM_VECTOR_BYTES == 64;
  const auto repays = [](int64_t left) { return kParts && 4 * left > kN; };
  const bool reads = from_row == columns && repays(columns - whole_columns);
  const bool writes = to_column == rows && repays(rows - whole_rows);
  for (int64_t j = 0; j < (reads ? columns : whole_columns); j += kN) {
    const int64_t n = columns - j < kN ? columns - j : kN;
    const auto part = [&](int64_t i, int64_t m) {
      transpose_part(from + i * from_row + j, from_end, from_row, to + j * to_column + i, to_end, to_column, m, n);
    };
    if (writes) part(whole_rows, rows - whole_rows);
    for (int64_t i = 0; i < whole_rows; i += kN) {
      if (n < kN) {
        part(i, kN);
      } else {
        transpose_square(from + i * from_row + j, from_row, to + j * to_column + i, to_column);
      }
    }
  }
  const int64_t left = reads ? columns : whole_columns;
  one_by_one(0, whole_rows, left, columns);
  one_by_one(whole_rows, rows, writes ? left : 0, columns);
}

// A transposition from or to `count` numbers without a gap, which compilers make shuffles of where they know the count.
template <int count, typename Bits>
void deal(const Bits* from, int64_t from_row, Bits* to, int64_t to_column, int64_t rows, int64_t columns) {
  if (columns == count && from_row == count) {
    for (int64_t i = 0; i < rows; ++i) {
      for (int j = 0; j < count; ++j) to[j * to_column + i] = from[i * count + j];
    }
  } else if (rows == count && to_column == count) {
    for (int64_t j = 0; j < columns; ++j) {
      for (int i = 0; i < count; ++i) to[j * count + i] = from[i * from_row + j];
    }
  } else if constexpr (count > 2) {
    deal<count - 1>(from, from_row, to, to_column, rows, columns);
  } else {
    transpose(from, from_row, to, to_column, rows, columns);
  }
}

// As Tensor.to() casts: to a half type by way of float.
template <typename To>
L1NORM_INLINE auto cast(Floats f) {
  if constexpr (To::kRoundsNaN) {
    return To::round(f);
  } else {
    return To::round(f == f ? f : Floats{} + __builtin_nanf(""));
  }
}

template <typename To, typename From>
L1NORM_INLINE void copy_line(const From* from, To* to, int64_t n) {
  if constexpr (std::is_same_v<To, From>) {
    __builtin_memcpy(to, from, static_cast<size_t>(n) * sizeof(To));
  } else {
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) store(to + i, cast<Typed<To>>(Typed<From>::load_floats(from + i)));
    if (i == n) return;
    Part<To> rest;
    store(rest.elements, cast<Typed<To>>(Typed<From>::load_floats(Part<From>(from + i, n - i).elements)));
    rest.copy_to(to + i, n - i);
  }
}

constexpr int64_t kStrip = 256;  // elements that are cast together

template <typename To, typename From>
void copy_strided(const From* from, To* to, const Block& b) {
  for (int64_t i = 0; i < b.rows; ++i) {
    const From* p = from + i * b.from_row;
    To* q = to + i * b.to_row;
    if constexpr (!std::is_same_v<To, From>) {
      From strip[kStrip];
      To cast[kStrip];
      for (int64_t j = 0; j < b.columns; j += kStrip) {
        const int64_t n = b.columns - j < kStrip ? b.columns - j : kStrip;
        for (int64_t k = 0; k < n; ++k) strip[k] = p[(j + k) * b.from_column];
        copy_line(strip, cast, n);
        for (int64_t k = 0; k < n; ++k) q[(j + k) * b.to_column] = cast[k];
      }
    } else if (b.from_column == 2 && b.to_column == 1) {
      for (int64_t j = 0; j < b.columns; ++j) q[j] = p[2 * j];
    } else if (b.from_column == 0 && b.to_column == 1) {
      const From x = *p;
      for (int64_t j = 0; j < b.columns; ++j) q[j] = x;
    } else {
      for (int64_t j = 0; j < b.columns; ++j) q[j * b.to_column] = p[j * b.from_column];
    }
  }
}

template <typename To, typename From>
void transpose_and_cast(const From* from, To* to, const Block& b) {
  using Bits = typename Typed<To>::Bits;
  if constexpr (std::is_same_v<To, From>) {
    deal<8>(reinterpret_cast<const Bits*>(from), b.from_row, reinterpret_cast<Bits*>(to), b.to_column, b.rows,
            b.columns);
  } else {
    To strip[kStrip];
    const int64_t width = b.columns < 16 ? b.columns : 16, height = kStrip / width;
    for (int64_t i = 0; i < b.rows; i += height) {
      const int64_t rows = b.rows - i < height ? b.rows - i : height;
      for (int64_t j = 0; j < b.columns; j += width) {
        const int64_t columns = b.columns - j < width ? b.columns - j : width;
        for (int64_t k = 0; k < rows; ++k) copy_line(from + (i + k) * b.from_row + j, strip + k * columns, columns);
        transpose_and_cast<To, To>(strip, to + j * b.to_column + i, {rows, columns, columns, 1, 1, b.to_column});
      }
    }
  }
}

// Few of them at a time, so that lines of what lies apart are still in the first cache when their next units come.
template <int count, typename T>
void copy_units(const T* from, T* to, const Block& b) {
  constexpr int64_t kFew = 32;
  if (b.unit < count) {
    if constexpr (count > 2) copy_units<count - 1>(from, to, b);
    return;
  }
  for (int64_t first = 0; first < b.rows; first += kFew) {
    const int64_t end = b.rows - first < kFew ? b.rows : first + kFew;
    for (int64_t j = 0; j < b.columns; ++j) {
      const T* const p = from + j * b.from_column;
      T* const q = to + j * b.to_column;
      for (int64_t i = first; i < end; ++i) __builtin_memcpy(q + i * b.to_row, p + i * b.from_row, count * sizeof(T));
    }
  }
}

template <typename To, typename From>
L1NORM_INLINE void copy_turned(const From* from, To* to, const Block& b) {
  if (b.from_column == 1 && b.to_column == 1) {
    for (int64_t i = 0; i < b.rows; ++i) copy_line(from + i * b.from_row, to + i * b.to_row, b.columns);
  } else if (b.from_column == 1 && b.to_row == 1) {
    transpose_and_cast(from, to, b);
  } else {
    copy_strided(from, to, b);
  }
}

// Small blocks: b is not to be copied as a whole, which would wait for each of its numbers to be stored.
template <typename To, typename From>
void copy(const void* source, void* target, const Block& b) {
  const From* from = static_cast<const From*>(source);
  To* to = static_cast<To*>(target);
  if constexpr (std::is_same_v<To, From>) {
    if (b.unit > 1) return copy_units<kMostUnit>(from, to, b);
  }
  const bool one_run = b.from_row == 1 && b.to_row == 1 && b.from_column == b.rows && b.to_column == b.rows;
  if (one_run) return copy_line(from, to, b.rows * b.columns);
  // Lines along what are neighbours in what is read, or else in what is written.
  if (b.rows > 1 && b.from_column != 1 && (b.from_row == 1 || (b.to_column != 1 && b.to_row == 1))) {
    copy_turned(from, to, {b.columns, b.rows, b.from_column, b.from_row, b.to_column, b.to_row});
  } else {
    copy_turned(from, to, b);
  }
}

}  // namespace
}  // namespace l1norm::cpu
