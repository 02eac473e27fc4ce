// Scalar conversions between the half types and float, the same on every processor.
#pragma once

#include <cstdint>

namespace l1norm::cpu {

// Bits of a half type; the type tells float16 from bfloat16.
struct Half {
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};

#define L1NORM_INLINE inline __attribute__((always_inline))

template <typename To, typename From>
L1NORM_INLINE To bits_as(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  __builtin_memcpy(&to, &from, sizeof to);
  return to;
}

L1NORM_INLINE float to_float(Half x) {
  const uint16_t h = x.bits;
  // Shift the fields into place; the multiplication rebiases the exponent and normalises subnormals.
  const uint32_t magnitude = static_cast<uint32_t>(h & 0x7fff) << 13;
  const float rebias = bits_as<float>(uint32_t{(254 - 15) << 23});
  float f = bits_as<float>(magnitude) * rebias;
  if ((h & 0x7c00) == 0x7c00) f = bits_as<float>(magnitude | 0x7f800000u);
  return bits_as<float>(bits_as<uint32_t>(f) | static_cast<uint32_t>(h & 0x8000) << 16);
}

L1NORM_INLINE float to_float(BFloat16 x) { return bits_as<float>(static_cast<uint32_t>(x.bits) << 16); }

// Rounded to nearest, ties to even.
L1NORM_INLINE Half to_half(float f) {
  const uint32_t bits = bits_as<uint32_t>(f), sign = bits & 0x80000000u;
  uint32_t u = bits ^ sign;
  if (u > 0x7f800000u) {
    u = 0x7e00;
  } else if (u >= 0x47800000u) {  // 2^16 and above
    u = 0x7c00;
  } else if (u < 0x38800000u) {  // below 2^-14: the addition of 0.5 aligns and rounds a subnormal result
    u = bits_as<uint32_t>(bits_as<float>(u) + 0.5f) - 0x3f000000u;
  } else {
    u = (u + 0xc8000fffu + ((u >> 13) & 1)) >> 13;
  }
  return {static_cast<uint16_t>(u | sign >> 16)};
}

L1NORM_INLINE BFloat16 to_bfloat16(float f) {
  const uint32_t u = bits_as<uint32_t>(f);
  if (f != f) return {0x7fc0};
  return {static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1)) >> 16)};
}

}  // namespace l1norm::cpu
