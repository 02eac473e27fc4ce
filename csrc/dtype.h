// The element types that kernels know, numbered as PyTorch's ScalarType numbers them.
#pragma once

#include <cstdint>

namespace l1norm {

enum class DType : int8_t { kHalf = 5, kFloat = 6, kDouble = 7, kBFloat16 = 15 };

constexpr int64_t element_size(DType t) { return t == DType::kDouble ? 8 : t == DType::kFloat ? 4 : 2; }

}  // namespace l1norm
