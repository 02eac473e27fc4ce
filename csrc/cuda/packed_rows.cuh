// Rows of floats that divide a 16-byte pack, in a thread's registers: read and written where they lie in memory, whole
// packs.
#pragma once

#include "access.cuh"
#include "known_row.cuh"

namespace l1norm::cuda::tile_kernel {

// A row in memory, as differentiate() takes it.
template <int kLength>
class RowInMemory {
 public:
  static constexpr int kUnit = kLength;
  using RowUnit = Pack<float, kUnit>;
  static constexpr bool kSingle = false;

  __device__ __forceinline__ RowInMemory(const float* from, float* to) : from_(from), to_(to) {}

  __device__ __forceinline__ int count() const { return 1; }
  __device__ __forceinline__ RowUnit load(int) const { return *reinterpret_cast<const RowUnit*>(from_); }
  __device__ __forceinline__ void store(int, const RowUnit& unit) const { *reinterpret_cast<RowUnit*>(to_) = unit; }

 private:
  const float* from_;
  float* to_;
};

// A pack of rows of kLength elements each. Where rows end within it, they are taken one by one, as those are that are
// not plain.
template <bool kBackward, int kLength>
class PackOfRows {
 public:
  static constexpr int kPack = kPackBytes / static_cast<int>(sizeof(float)), kRows = kPack / kLength;
  static_assert(kRows * kLength == kPack);

  // The pack at `index` of so many whole ones.
  __device__ __forceinline__ PackOfRows(const Call& c, int64_t index, int64_t whole)
      : index_(index), is_whole_(index < whole) {
    x_ = load(c.input);
    if constexpr (kBackward) g_ = load(c.grad);
  }

  // kDivisors: somebody asks for them.
  template <bool kDivisors>
  __device__ __forceinline__ void normalize(const Call& c) const {
    AllRows result;
    Pack<float, kRows> divisors;
    bool proven = is_whole_;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      Row row[1] = {row_of(x_, i)};
      Sum total;
      Quotient<float> quotient;
      uint32_t unproven;
      divide_plainly(row, c, total, quotient, unproven);
      if (kDivisors) divisors.units[i] = rounded(exact_divisor<float>(total, c), float{});
      proven &= unproven == 0;
      set_row(result, i, row[0]);
    }
    if (proven) {
      *place(c.output) = result;
      if (kDivisors) store_divisors(c, divisors);
    } else {
      each_row(c, [&](int64_t row) { normalize_carefully(c, row); });
    }
  }

  __device__ __forceinline__ void differentiate(const Call& c) const {
    AllRows result;
    bool plain = is_whole_;
    static_assert(!reads_divisors<float>(kLength));
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const Row x[1] = {row_of(x_, i)}, g[1] = {row_of(g_, i)};
      Gradient gradient;
      plain &= find_gradient<kLength>(g, x, c, RowDivisor<float>{}, gradient);
      set_row(result, i, input_gradients(g[0], x[0], gradient));
    }
    if (plain) {
      *place(c.output) = result;
    } else {
      each_row(c, [&](int64_t row) { differentiate_carefully(c, row); });
    }
  }

 private:
  using AllRows = Pack<float, kPack>;
  using Row = Pack<float, kLength>;

  int64_t index_;
  bool is_whole_;
  AllRows x_;
  std::conditional_t<kBackward, AllRows, Row> g_;

  template <typename See>
  __device__ __forceinline__ void each_row(const Call& c, const See& see) const {
    const int64_t first = index_ * kRows, end = min(first + kRows, c.geometry.rows.count);
#pragma unroll 1
    for (int64_t row = first; row < end; ++row) see(row);
  }
  static __device__ __forceinline__ Row row_of(const AllRows& pack, int i) {
    return make_pack<float, kLength>([&](int k) { return pack[i * kLength + k]; });
  }
  static __device__ __forceinline__ void set_row(AllRows& pack, int i, const Row& row) {
#pragma unroll
    for (int k = 0; k < kLength; ++k) pack.units[i * kLength + k] = row[k];
  }

  __device__ __forceinline__ AllRows* place(const void* operand) const {
    return static_cast<AllRows*>(const_cast<void*>(operand)) + index_;
  }
  __device__ __forceinline__ AllRows load(const void* operand) const {
    return load_pack<Access::kOnce>(static_cast<const AllRows*>(place(operand)), is_whole_);
  }

  // Rows that follow each other have divisors that do; at once where they start at a multiple of their bytes.
  __device__ __forceinline__ void store_divisors(const Call& c, const Pack<float, kRows>& divisors) const {
    float* const to = static_cast<float*>(c.denominator) + index_ * kRows;
    if (reinterpret_cast<uintptr_t>(to) % sizeof divisors == 0) {
      *reinterpret_cast<Pack<float, kRows>*>(to) = divisors;
    } else {
#pragma unroll
      for (int i = 0; i < kRows; ++i) to[i] = divisors.units[i];
    }
  }

  static __device__ __forceinline__ void differentiate_carefully(const Call& c, int64_t row) {
    const float *const x = static_cast<const float*>(c.input) + row * kLength, *const g =
                                                                                   static_cast<const float*>(c.grad) +
                                                                                   row * kLength;
    using Single = RowInMemory<kLength>;
    tile_kernel::differentiate<float>(Single(x, nullptr), Single(g, static_cast<float*>(c.output) + row * kLength), c,
                                      RowDivisor<float>(c, denominator_of(c, row)));
  }

  // A row that is read again: in place too it is still there.
  static __device__ __forceinline__ void normalize_carefully(const Call& c, int64_t row) {
    const float* const from = static_cast<const float*>(c.input) + row * kLength;
    float* const to = static_cast<float*>(c.output) + row * kLength;
    Sum total;
    add_each(total, from, kLength);
    if (c.denominator != nullptr) write_denominator<float>(c, denominator_of(c, row), total);
    const Quotient<float> quotient(total, c.count, c.eps);
    const Exactly<float> exactly(total, c);
#pragma unroll 1
    for (int e = 0; e < kLength; ++e) to[e] = divide_again(from[e], quotient, exactly);
  }
};

}  // namespace l1norm::cuda::tile_kernel
