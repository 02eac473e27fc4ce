// A row in a tile of shared memory, which a thread has to itself, and how it takes it.
#pragma once

#include "held.cuh"

namespace l1norm::cuda::tile_kernel {

// A row in shared memory as units of the largest size that divides its bytes: then neighbouring lanes, a row each, hit
// different banks, but for 16-byte units in a row of 32 bytes or a multiple. There lanes start at different units.
template <typename T, int kUnitBytes>
class TileRow {
 public:
  static constexpr int kUnit = kUnitBytes / sizeof(T);
  using RowUnit = Pack<T, kUnit>;
  static constexpr bool kSingle = false;
  static constexpr bool kRotates = kUnitBytes == 16;

  __device__ __forceinline__ TileRow(unsigned char* tile, int row, int length, int lane)
      : units_(reinterpret_cast<RowUnit*>(tile) + row * (length / kUnit)), count_(length / kUnit) {
    if constexpr (kRotates) {
      // Eight lanes at a time, in banks of 16 bytes.
      const int same = min(count_ & -count_, 8);
      start_ = (lane % 8) * same / 8 % count_;
    }
  }

  __device__ __forceinline__ int count() const { return count_; }
  __device__ __forceinline__ RowUnit load(int k) const { return units_[place(k)]; }
  __device__ __forceinline__ void store(int k, const RowUnit& unit) const { units_[place(k)] = unit; }
  __device__ __forceinline__ RowUnit unit(int k) const { return load(k); }
  __device__ __forceinline__ void set_unit(int k, const RowUnit& unit) const { store(k, unit); }
  // Where a unit lies, and of how many elements it is.
  __device__ __forceinline__ T* at(int k) const { return reinterpret_cast<T*>(units_ + place(k)); }
  __device__ __forceinline__ int size(int) const { return kUnit; }
  __device__ __forceinline__ T& element(int k, int e) const { return at(k)[e]; }

 private:
  __device__ __forceinline__ int place(int k) const {
    if constexpr (!kRotates) return k;
    const int p = k + start_;
    return p < count_ ? p : p - count_;
  }

  RowUnit* units_;
  int count_;
  int start_ = 0;
};

// A row of an odd number of 2-byte elements: whole words, and a single element ahead of them or after them.
template <typename T>
class TileRow<T, 2> {
 public:
  static constexpr int kUnit = 2;
  static constexpr bool kSingle = true;
  using RowUnit = Pack<T, 2>;

  __device__ __forceinline__ TileRow(unsigned char* tile, int row, int length, int)
      : words_(reinterpret_cast<RowUnit*>(tile) + (row * length + 1) / 2),
        single_(reinterpret_cast<Pack<T, 1>*>(tile) + row * length + (row * length % 2 == 0 ? length - 1 : 0)),
        count_(length / 2) {}

  __device__ __forceinline__ int count() const { return count_; }
  __device__ __forceinline__ RowUnit load(int k) const { return words_[k]; }
  __device__ __forceinline__ void store(int k, const RowUnit& unit) const { words_[k] = unit; }
  __device__ __forceinline__ static constexpr bool has_single() { return true; }
  __device__ __forceinline__ Pack<T, 1>* single() const { return single_; }

  // The same with the single element as the first of the last unit, which a zero fills.
  __device__ __forceinline__ RowUnit unit(int k) const {
    if (k < count_) return words_[k];
    const Pack<T, 1> last = *single_;
    return make_pack<T, 2>([&](int e) { return e == 0 ? last[0] : T{}; });
  }
  __device__ __forceinline__ void set_unit(int k, const RowUnit& unit) const {
    if (k < count_) {
      words_[k] = unit;
    } else {
      single_->units[0] = unit[0];
    }
  }
  __device__ __forceinline__ T* at(int k) const {
    return k < count_ ? reinterpret_cast<T*>(words_ + k) : &single_->units[0];
  }
  __device__ __forceinline__ int size(int k) const { return k < count_ ? kUnit : 1; }
  __device__ __forceinline__ T& element(int k, int e) const { return at(k)[e]; }

 private:
  RowUnit* words_;
  Pack<T, 1>* single_;
  int count_;
};

// How a row's units are taken: batches of 16 bytes to 32 bytes at least, then what is left in smaller ones, so that
// little is computed for units that are not there.
template <typename T, int kUnit>
constexpr int kLargeBatch = kUnit >= 4 ? (kUnit * sizeof(T) == 16 ? 2 : 4) : 8;
template <typename T, int kUnit>
constexpr int kSmallBatch = kUnit >= 2 ? 1 : 2;

template <typename Row>
struct Batch {
  using Unit = typename Row::RowUnit;

  template <int kUnits>
  static __device__ __forceinline__ void load(const Row& row, int k, Unit (&units)[kUnits]) {
#pragma unroll
    for (int j = 0; j < kUnits; ++j) units[j] = j == 0 || k + j < row.count() ? row.load(k + j) : Unit{};
  }

  template <int kUnits, typename T>
  static __device__ __forceinline__ void divide(const Row& row, int k, const Unit (&units)[kUnits],
                                                const Quotient<T>& quotient, const Least<T>& least, const Sum& total,
                                                const Call& c) {
    unsigned unproven = 0;
#pragma unroll
    for (int j = 0; j < kUnits; ++j) {
      Unit result;
      const bool proven = quotient.divide(units[j], result, least);
      unproven |= proven ? 0u : 1u << j;
      if (proven && (j == 0 || k + j < row.count())) row.store(k + j, result);
    }
    if (unproven == 0) return;
    const Exactly<T> exactly(total, c);
#pragma unroll 1
    for (; unproven != 0; unproven &= unproven - 1) {
      const int j = __ffs(static_cast<int>(unproven)) - 1;
      if (k + j >= row.count()) return;
      const Unit unit = row.load(k + j);
      row.store(k + j, make_pack<T, Row::kUnit>([&](int e) { return divide_again(unit[e], quotient, exactly); }));
    }
  }
};

}  // namespace l1norm::cuda::tile_kernel
