// The tile and the warp kernel's launch: rows that a thread, or a warp or a part of one, has to itself.
//
// Figures are fractions of a copy's speed, or of torch.add's, measured on an H200 over 0.5 GiB.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <type_traits>

#include "shape.h"

namespace l1norm::cuda {

// Threads of a block of the warp kernel. A block's place is free once the last of its warps has ended, so that small
// blocks leave less idle, as long as they have 3 KB or more: a GPU starts about one in two cycles (128 float32: four
// warps 0.973, two 0.998, one 0.79; 256: 0.985, 1.005, 0.79; 1024: 0.985, 0.980, 1.002; 700 bfloat16: 0.939, 0.950,
// 0.956; 256 float64: 0.985, 1.002, 0.79; 200: 0.977, 0.982, 0.988).
constexpr int warp_kernel_threads(bool backward, int64_t element_size, int packs) {
  return packs >= (element_size == 2 && !backward ? 6 : 7) ? 32 : 64;
}

constexpr int kMostTileThreads = 128;
constexpr int kMostTileBytes = 32 << 10;

// Up to that length, tiles' rows stay in registers that kernels are compiled for.
constexpr int longest_known_row(int64_t element_size) { return element_size == 2 ? 20 : element_size == 4 ? 16 : 8; }

// Of so few halves, forward, a lane takes several rows that follow each other, which are whole words together, and sums
// them in floats (2 bfloat16: 0.85 row by row, 0.98 in fours, and 0.99 without sums in double; 3: 0.69, in twos 0.935
// and 0.99; 5: 0.91 and 0.99).
constexpr int neighbours_a_lane(int64_t element_size, int64_t length) {
  return element_size != 2 ? 1 : length == 2 ? 4 : length == 3 || length == 5 || length == 7 ? 2 : 1;
}

// The tile kernel: a warp takes that many rows at a time. packed: rows divide packs, which are in registers and not in
// shared memory.
struct TilePlan {
  int rows;
  int threads;
  bool packed;
};

// Threads of a block of such, packs a thread, and blocks on a multiprocessor that registers are shared between (of 4
// float32: two packs 1.018 of such a copy, one 0.94, four 1.010, two in 64 threads 0.79).
constexpr int kPackedThreads = 128;
constexpr int kPackedPacks = 2;
constexpr int kPackedBlocks = 8;

// The warp kernel: `lanes` lanes hold a row, `packs` packs a lane.
struct WarpPlan {
  int lanes;
  int packs;
  bool alike = true;  // backward, rows and their results' gradients lie alike in packs

  // Of those of one table.
  constexpr bool operator==(const WarpPlan& other) const { return lanes == other.lanes && packs == other.packs; }
};

// One of those that there are, for rows of up to so many packs.
struct WarpChoice {
  WarpPlan plan;
  int most;
};

// As many lanes as leave few packs idle and each lane enough to repay what lanes do together: with 4 or 16 packs a lane
// alone, 144 to 192 float32 ran at 0.86 to 0.95 where these have 0.98 to 1.0, 576 bfloat16 at 0.83 (0.98), and
// gradients of 288 at 0.77 (0.99); with 4 gradients of 120 float64 at 0.89 where 8 have 0.99, and with 5 those of 600
// bfloat16 at 0.95 where 10 have 0.995.
template <bool kBackward, int kSize>
constexpr auto warp_choices() {
  // clang-format off
  if constexpr (!kBackward && kSize == 2) {
    // Their arithmetic takes as long as memory: it is best spread over many packs a lane.
    return std::array<WarpChoice, 18>{{
        {{4, 8}, 32}, {{4, 10}, 40},
        {{8, 5}, 40}, {{8, 6}, 48}, {{8, 7}, 56}, {{8, 8}, 64}, {{8, 10}, 80}, {{8, 12}, 92},
        {{16, 6}, 96}, {{16, 7}, 112}, {{16, 8}, 128}, {{16, 10}, 160}, {{16, 12}, 184},
        {{32, 6}, 192}, {{32, 7}, 224}, {{32, 8}, 256}, {{32, 10}, 320}, {{32, 16}, 512}}};
  } else if constexpr (!kBackward && kSize == 4) {
    // A pack of room in a row's lanes is 1% faster than none.
    return std::array<WarpChoice, 18>{{
        {{4, 4}, 15}, {{4, 5}, 19}, {{4, 6}, 23}, {{4, 7}, 27},
        {{8, 3}, 25}, {{8, 4}, 30}, {{8, 5}, 38}, {{8, 6}, 46}, {{8, 7}, 55},
        {{16, 4}, 62}, {{16, 5}, 78}, {{16, 6}, 94}, {{16, 7}, 111},
        {{32, 4}, 126}, {{32, 5}, 159}, {{32, 6}, 191}, {{32, 7}, 224}, {{32, 16}, 512}}};
  } else if constexpr (!kBackward) {
    return std::array<WarpChoice, 17>{{
        {{4, 4}, 15}, {{4, 5}, 19}, {{4, 6}, 23}, {{4, 7}, 27},
        {{8, 4}, 31}, {{8, 5}, 39}, {{8, 6}, 47}, {{8, 7}, 55},
        {{16, 4}, 63}, {{16, 5}, 79}, {{16, 6}, 95}, {{16, 7}, 111},
        {{32, 4}, 127}, {{32, 5}, 159}, {{32, 6}, 191}, {{32, 7}, 224}, {{32, 16}, 512}}};
  } else if constexpr (kSize == 2) {
    return std::array<WarpChoice, 14>{{
        {{8, 3}, 24}, {{8, 4}, 32}, {{8, 5}, 40}, {{8, 6}, 48}, {{8, 7}, 56},
        {{16, 4}, 64}, {{8, 10}, 80}, {{16, 6}, 96}, {{16, 7}, 112}, {{16, 8}, 128},
        {{32, 4}, 128}, {{32, 5}, 160}, {{16, 12}, 192}, {{32, 8}, 256}}};
  } else if constexpr (kSize == 4) {
    return std::array<WarpChoice, 11>{{
        {{8, 3}, 24}, {{8, 4}, 29}, {{8, 5}, 40},
        {{16, 3}, 48}, {{16, 4}, 58}, {{16, 5}, 80},
        {{32, 3}, 96}, {{32, 4}, 118}, {{32, 5}, 160}, {{16, 12}, 192}, {{32, 8}, 256}}};
  } else {
    // So much arithmetic is best spread over many packs a lane, too.
    return std::array<WarpChoice, 12>{{
        {{4, 7}, 28}, {{4, 8}, 32},
        {{8, 6}, 48}, {{8, 7}, 56}, {{8, 8}, 64},
        {{16, 6}, 96}, {{16, 7}, 112}, {{16, 8}, 128},
        {{32, 4}, 128}, {{32, 6}, 192}, {{32, 7}, 224}, {{32, 8}, 256}}};
  }
  // clang-format on
}

// Of rows and results' gradients that do not lie alike. Fewer, as a kernel of halves takes 40 KB: 333 float32 run at
// 0.99, bfloat16 at 0.95.
template <int kSize>
constexpr auto apart_warp_choices() {
  // clang-format off
  if constexpr (kSize == 2) {
    return std::array<WarpChoice, 6>{{
        {{8, 3}, 24}, {{8, 5}, 40}, {{8, 7}, 56}, {{16, 6}, 96}, {{32, 5}, 160}, {{32, 8}, 256}}};
  } else if constexpr (kSize == 4) {
    return std::array<WarpChoice, 5>{{
        {{8, 4}, 32}, {{8, 7}, 56}, {{16, 7}, 112}, {{32, 5}, 160}, {{32, 8}, 256}}};
  } else {
    return std::array<WarpChoice, 6>{{
        {{8, 4}, 32}, {{8, 7}, 56}, {{16, 7}, 112}, {{32, 5}, 160}, {{32, 7}, 224}, {{32, 8}, 256}}};
  }
  // clang-format on
}

template <bool kBackward, bool kAlike, int kSize>
inline constexpr auto kWarpChoices = [] {
  if constexpr (kAlike) {
    return warp_choices<kBackward, kSize>();
  } else {
    return apart_warp_choices<kSize>();
  }
}();

// A thread a row: 0.96 to 1.0 for 1 to 111 float32, where lanes that share a row reach 0.05 to 0.96 but in rows of
// whole sectors from 56 on, which have 0.98 to 1.0 there and 0.96 to 0.98 here.
inline bool plan_tile(const Shape& shape, const Device& device, TilePlan& plan) {
  const int64_t row_bytes = shape.row_bytes();
  const int operands = shape.backward ? 2 : 1;
  if (!shape.held || !shape.dense || row_bytes == 0 || 32 * operands * row_bytes > kMostTileBytes) return false;
  const int64_t size = element_size(shape.dtype), singly = 32 * row_bytes;  // where each lane has one row
  // 0.5 to 0.8% more of 2 and 4 float32. Pairs of float64 have too much arithmetic (0.99, in tiles 1.055).
  plan.packed = shape.at_packs && shape.dtype == DType::kFloat && (shape.length == 2 || shape.length == 4);
  if (plan.packed) {
    plan.rows = static_cast<int>(32 * kPackedPacks * kPackBytes / row_bytes);
    plan.threads = kPackedThreads;
    return ceil_div(shape.rows, int64_t{plan.rows} * (plan.threads / 32)) <= INT32_MAX;
  }
  // A few rows a lane where they are short, so that there is enough to copy at a time: up to 4 KB, and 2200 bytes or
  // more (17 float32: 0.97 with 2176, 0.99 with 4352). Of float64, whose rows take longest to sum, 2 KB or more (5:
  // 0.93 with 1280 bytes, 0.99 with 2560, 0.98 with 5120).
  int64_t a_lane = size == 8 ? ceil_div(2048, singly) : std::max(4096 / singly, ceil_div(2200, singly));
  // What is not in registers takes longer: of halves about 5 KB have to be on their way (33: 0.85 with 2112 bytes, 0.99
  // with 4224; 27: 0.95 with 3456, 0.995 with 5184; 57: 0.995 with 3648, 0.975 with 7296), of float64 in whole packs
  // more than 3 KB (10: 0.93 with 2560, 0.99 with 5120).
  if (!shape.backward && shape.length > longest_known_row(size)) {
    if (size == 2) a_lane = std::max<int64_t>((4990 + singly / 2) / singly, 1);
    if (size == 8 && row_bytes % kPackBytes == 0) a_lane = ceil_div(3100, singly);
  }
  const int neighbours = shape.backward ? 1 : neighbours_a_lane(size, shape.length);
  plan.rows = 32 * static_cast<int>(a_lane / neighbours * neighbours);
  // Two rows a lane, while two blocks of them have room: 1 to 2% more of 4 GiB of 76 to 108 float32, 0.7% less of 0.5
  // GiB. Not of rows of 4-byte words, whose banks are slower then (75: 0.948, and 0.964), nor of halves.
  if (!shape.backward && !shape.is_half() && row_bytes % 8 == 0 && row_bytes >= 300 &&
      2 * (64 * kMostTileThreads / 32 * row_bytes + 2048) <= device.shared_bytes_per_multiprocessor) {
    plan.rows = 64;
  }
  // Blocks are small for the reason that the warp kernel's are (1 float32: four warps 0.975, one 0.989; 1 float64, with
  // 2 KB a warp: 0.976, two 0.995, one 0.79; gradients of 71 float32: 0.971, 1.006, 1.023), but not where few tiles
  // have room (232 bfloat16: 0.976, 0.966, 0.967).
  if (!shape.backward && row_bytes >= 300) {
    plan.threads = kMostTileThreads;
  } else {
    // Of GPUs whose multiprocessors take fewer threads, they take fewer than 32 blocks as well.
    const bool is_small = plan.rows * operands * row_bytes < 3072 || device.threads_per_multiprocessor < 2048;
    plan.threads = is_small ? 64 : 32;
  }
  const int64_t block_rows = static_cast<int64_t>(plan.rows) * (plan.threads / 32);
  // 1 KB for barriers and rounding.
  return block_rows * operands * row_bytes + 1024 <= device.shared_bytes &&
         ceil_div(shape.rows, block_rows) <= INT32_MAX;
}

// Whether rows that follow each other all begin at a sector of memory, as the first one does nearly always.
inline bool has_whole_sectors(const Shape& shape) { return shape.row_bytes() % kSectorBytes == 0; }

// Up to how many bytes of a row the tile kernel is the better one, where the warp kernel can take it as well. Beyond
// 596 bytes, or 296 of two operands each, an H200's shared memory has room for two blocks only: gradients of 71 float32
// run at 0.97, of 79 at 0.79.
inline int64_t longest_tile_row(const Shape& shape) {
  if (shape.backward) return 296;
  if (shape.is_half()) return has_whole_sectors(shape) ? 464 : 596;
  if (has_whole_sectors(shape)) return 208;
  // Eight lanes hold 93 to 103 float32 in three packs each, at 0.97 to 1.0.
  return shape.dtype == DType::kFloat && shape.packs() <= 25 ? 368 : 444;
}

// Rows that a warp or a part of one holds.
inline bool plan_warp(const Shape& shape, const Device& device, WarpPlan& plan) {
  if (!shape.held) return false;
  const bool alike = !shape.backward || shape.aligned;
  const int64_t packs = shape.packs();
  // 1500 x 300 float32 take 2.92 us in 32 lanes each and 2.96 in 16, 4000 rows 4.35 and 3.73; gradients of bfloat16 as
  // many 2.70 and, in eight, 2.76, and 4.56 and 3.50.
  const bool few = is_few(shape, device, 16);
  // The 64 bytes that four lanes read may lie in three sectors: 319 bfloat16 ran at 0.86, and at 0.92 with eight lanes;
  // 100 float32 at 0.92, and with eight at 1.0.
  const int most_of_four = !shape.backward && shape.dtype == DType::kFloat ? 22 : 32;
  const int least_lanes = few ? 32 : packs > most_of_four && !has_whole_sectors(shape) ? 8 : 4;
  // Fewer than 16 lanes have room for one more pack of halves than most rows have, as theirs begin at a sector then,
  // even where rows' do not (333 float16: 0.94, and 0.966).
  const bool rounds_up = !shape.backward && shape.is_half() && !has_whole_sectors(shape);
  const int64_t with_room = rounds_up ? (shape.row_bytes() + kPackBytes / 2) / kPackBytes : packs;
  const auto find = [&](const auto& choices) {
    for (const WarpChoice& choice : choices) {
      plan = choice.plan;
      plan.alike = alike;
      const int64_t needed = !few && plan.lanes < 16 ? with_room : packs;
      if (needed > (few ? plan.lanes * plan.packs : choice.most) || plan.lanes < least_lanes) continue;
      const int threads = warp_kernel_threads(shape.backward, element_size(shape.dtype), plan.packs);
      return ceil_div(shape.rows, threads / plan.lanes) <= INT32_MAX;
    }
    return false;
  };
  const auto of_size = [&](auto size) {
    constexpr int kSize = decltype(size)::value;
    if (!shape.backward) return find(kWarpChoices<false, true, kSize>);
    return alike ? find(kWarpChoices<true, true, kSize>) : find(kWarpChoices<true, false, kSize>);
  };
  switch (element_size(shape.dtype)) {
    case 2:
      return of_size(std::integral_constant<int, 2>{});
    case 4:
      return of_size(std::integral_constant<int, 4>{});
    default:
      return of_size(std::integral_constant<int, 8>{});
  }
}

}  // namespace l1norm::cuda
