// From operator arguments to a Call: what a device's kernels need, with nothing of PyTorch in it.
// The operators differ between devices only in how a Call is run.
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <array>
#include <optional>
#include <tuple>
#include <vector>

#include "call.h"

namespace l1norm {

using torch::stable::Tensor;

using Dims = std::vector<int64_t>;
using ScalarType = torch::headeronly::ScalarType;
using OptionalScalarType = std::optional<ScalarType>;

inline DType kernel_dtype(ScalarType t, const char* name) {
  switch (t) {
    case ScalarType::Half:
      return DType::kHalf;
    case ScalarType::BFloat16:
      return DType::kBFloat16;
    case ScalarType::Float:
      return DType::kFloat;
    case ScalarType::Double:
      return DType::kDouble;
    default:
      STD_TORCH_CHECK(false, "l1_norm: ", name, " must be float16, bfloat16, float32 or float64");
  }
}

inline ScalarType denominator_dtype(ScalarType t) {
  return t == ScalarType::Double ? ScalarType::Double : ScalarType::Float;
}

using Mask = std::array<bool, 64>;

inline Mask reduced_dims(const Dims& dim, int64_t rank) {
  STD_TORCH_CHECK(rank <= 64, "l1_norm: input has ", rank, " dimensions, at most 64 are supported");
  Mask reduced{};
  if (dim.empty()) {
    reduced.fill(true);
    return reduced;
  }
  const int64_t bound = rank > 0 ? rank : 1;
  for (int64_t d : dim) {
    STD_TORCH_CHECK(-bound <= d && d < bound, "l1_norm: dim ", d, " is out of range [", -bound, ", ", bound - 1, "]");
    bool& seen = reduced[static_cast<size_t>(d < 0 ? d + bound : d)];
    STD_TORCH_CHECK(!seen, "l1_norm: dim ", d, " appears more than once");
    seen = true;
  }
  return reduced;
}

inline std::vector<int64_t> kept_sizes(const Tensor& input, const Mask& reduced) {
  std::vector<int64_t> sizes;
  for (int64_t d = 0; d < input.dim(); ++d) sizes.push_back(reduced[static_cast<size_t>(d)] ? 1 : input.size(d));
  return sizes;
}

inline bool same_sizes(const Tensor& a, const std::vector<int64_t>& sizes) {
  if (a.dim() != static_cast<int64_t>(sizes.size())) return false;
  for (int64_t d = 0; d < a.dim(); ++d) {
    if (a.size(d) != sizes[static_cast<size_t>(d)]) return false;
  }
  return true;
}

inline bool same_sizes(const Tensor& a, const Tensor& b) {
  const auto sizes = b.sizes();
  return same_sizes(a, std::vector<int64_t>(sizes.begin(), sizes.end()));
}

inline Tensor empty_like(const Tensor& self, ScalarType dtype) {
  using torch::stable::detail::from;
  std::array<StableIValue, 6> stack{from(self),         from(OptionalScalarType(dtype)),
                                    from(std::nullopt), from(std::nullopt),
                                    from(std::nullopt), from(std::nullopt)};
  TORCH_ERROR_CODE_CHECK(torch_call_dispatcher("aten::empty_like", "", stack.data(), TORCH_ABI_VERSION));
  return torch::stable::detail::to<Tensor>(stack[0]);
}

// run is void(const Call&): it fills the output, and the denominator where there is one.
template <auto run>
struct Operators {
  static void call(const Tensor& input, const Mask& reduced, int64_t reduction, double eps, const Tensor& out,
                   const Tensor* denominator, bool fresh_output) {
    STD_TORCH_CHECK(reduction == 1 || reduction == 2, "l1_norm: reduction must be 1 (mean) or 2 (sum), got ",
                    reduction);
    STD_TORCH_CHECK(eps >= 0.0, "l1_norm: eps must be at least 0, got ", eps);
    STD_TORCH_CHECK(same_sizes(out, input), "l1_norm: out must have the sizes of input");
    STD_TORCH_CHECK(out.device() == input.device(), "l1_norm: out must be on the device of input");
    Call c;
    c.input_dtype = kernel_dtype(input.scalar_type(), "input");
    c.dtype = kernel_dtype(out.scalar_type(), "out");
    STD_TORCH_CHECK(make_geometry(static_cast<int>(input.dim()), input.sizes().data(), input.strides().data(),
                                  out.strides().data(), reduced.data(), c.geometry),
                    "l1_norm: input and out have more than ", kMaxDims, " dimensions that cannot be merged");
    c.input = input.const_data_ptr();
    c.output = out.mutable_data_ptr();
    c.denominator = nullptr;
    if (denominator != nullptr) {
      STD_TORCH_CHECK(
          denominator->scalar_type() == denominator_dtype(out.scalar_type()) && denominator->is_contiguous() &&
              denominator->device() == input.device() && same_sizes(*denominator, kept_sizes(input, reduced)),
          "l1_norm: denominator must be contiguous, float64 for a float64 result and float32 otherwise, on the "
          "device of input, and have the sizes of input with 1 for each reduced dimension");
      c.denominator = denominator->mutable_data_ptr();
    }
    c.count = make_count(static_cast<Reduction>(reduction), c.geometry.row.count);
    c.eps = eps;
    c.device = input.get_device_index();
    c.fresh_output = fresh_output;
    run(c);
  }

  static Tensor l1_norm(const Tensor& input, Dims dim, int64_t reduction, double eps, OptionalScalarType dtype) {
    const Mask reduced = reduced_dims(dim, input.dim());
    Tensor output = empty_like(input, dtype.value_or(input.scalar_type()));
    call(input, reduced, reduction, eps, output, nullptr, true);
    return output;
  }

  static void l1_norm_out(const Tensor& input, Dims dim, int64_t reduction, double eps, OptionalScalarType dtype,
                          Tensor out) {
    check_out(input, dtype, out);
    call(input, reduced_dims(dim, input.dim()), reduction, eps, out, nullptr, false);
  }

  static void l1_norm_(Tensor self, Dims dim, int64_t reduction, double eps) {
    call(self, reduced_dims(dim, self.dim()), reduction, eps, self, nullptr, false);
  }

  static std::tuple<Tensor, Tensor> l1_norm_with_denominator(const Tensor& input, Dims dim, int64_t reduction,
                                                             double eps, OptionalScalarType dtype) {
    const Mask reduced = reduced_dims(dim, input.dim());
    Tensor output = empty_like(input, dtype.value_or(input.scalar_type()));
    Tensor denominator =
        torch::stable::new_empty(input, kept_sizes(input, reduced), denominator_dtype(output.scalar_type()));
    call(input, reduced, reduction, eps, output, &denominator, true);
    return {output, denominator};
  }

  static void l1_norm_with_denominator_out(const Tensor& input, Dims dim, int64_t reduction, double eps,
                                           OptionalScalarType dtype, Tensor out, Tensor denominator) {
    check_out(input, dtype, out);
    call(input, reduced_dims(dim, input.dim()), reduction, eps, out, &denominator, false);
  }

  static void check_out(const Tensor& input, OptionalScalarType dtype, const Tensor& out) {
    STD_TORCH_CHECK(out.scalar_type() == dtype.value_or(input.scalar_type()),
                    "l1_norm: out must have the dtype of the result");
  }

  static void register_in(torch::stable::detail::StableLibrary& m) {
    m.impl("l1_norm", TORCH_BOX(&Operators::l1_norm));
    m.impl("l1_norm.out", TORCH_BOX(&Operators::l1_norm_out));
    m.impl("l1_norm_", TORCH_BOX(&Operators::l1_norm_));
    m.impl("l1_norm_with_denominator", TORCH_BOX(&Operators::l1_norm_with_denominator));
    m.impl("l1_norm_with_denominator.out", TORCH_BOX(&Operators::l1_norm_with_denominator_out));
  }
};

}  // namespace l1norm
