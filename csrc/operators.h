// The operators: their arguments checked and made a Call. They differ between devices only in how that is run.
#pragma once

#include <torch/csrc/stable/library.h>

#include <tuple>
#include <utility>

#include "tensors.h"

namespace l1norm {

// run is void(Call&): it fills the output, and the denominator where there is one.
template <auto run>
struct Operators {
  static void call(const View& input, const Mask& reduced, int64_t reduction, double eps, const View& out,
                   bool fresh_output) {
    Call c = make_call(input, nullptr, reduced, reduction, eps, out, nullptr, fresh_output);
    run(c);
  }

  static void call(const View& input, const Mask& reduced, int64_t reduction, double eps, const View& out,
                   void* denominator, const int64_t* denominator_strides, bool fresh_output) {
    Call c = make_call(input, nullptr, reduced, reduction, eps, out, denominator_strides, fresh_output);
    c.denominator = denominator;
    run(c);
  }

  struct Pair {
    Owned output, denominator;
  };

  static Pair make_pair(const View& in, const Mask& reduced, int64_t reduction, double eps, DType result) {
    Owned output = empty_like(in, result);
    const View out = view_of_new(output, in, result);
    const DenominatorLayout layout(out, reduced);
    Owned denominator = empty_denominator(out, layout);
    call(in, reduced, reduction, eps, out, data_of(denominator), layout.strides.data(), true);
    return {std::move(output), std::move(denominator)};
  }

  static Tensor l1_norm(const Tensor& input, const Dims& dim, int64_t reduction, double eps, OptionalScalarType dtype) {
    const View in(input);
    const Mask reduced = reduced_dims(dim, in.rank());
    const DType result = result_dtype(in, dtype);
    Owned output = empty_like(in, result);
    call(in, reduced, reduction, eps, view_of_new(output, in, result), true);
    return Tensor(output.release());
  }

  static void l1_norm_out(const Tensor& input, const Dims& dim, int64_t reduction, double eps, OptionalScalarType dtype,
                          const Tensor& out) {
    const View in(input), o(out);
    check_out(in, dtype, o);
    call(in, reduced_dims(dim, in.rank()), reduction, eps, o, false);
  }

  static void l1_norm_(const Tensor& self, const Dims& dim, int64_t reduction, double eps) {
    const View view(self);
    call(view, reduced_dims(dim, view.rank()), reduction, eps, view, false);
  }

  static std::tuple<Tensor, Tensor> l1_norm_with_denominator(const Tensor& input, const Dims& dim, int64_t reduction,
                                                             double eps, OptionalScalarType dtype) {
    const View in(input);
    const Mask reduced = reduced_dims(dim, in.rank());
    const DType result = result_dtype(in, dtype);
    Pair pair = make_pair(in, reduced, reduction, eps, result);
    return {Tensor(pair.output.release()), Tensor(pair.denominator.release())};
  }

  static void l1_norm_with_denominator_out(const Tensor& input, const Dims& dim, int64_t reduction, double eps,
                                           OptionalScalarType dtype, const Tensor& out, const Tensor& denominator) {
    const View in(input), o(out), d(denominator);
    check_out(in, dtype, o);
    const Mask reduced = reduced_dims(dim, in.rank());
    check_denominator(d, in, reduced, *o.dtype, "denominator");
    STD_TORCH_CHECK(d.contiguous || DenominatorLayout(o, reduced).is_of(d),
                    "l1_norm: denominator must be contiguous, or as dense and in the order of out");
    call(in, reduced, reduction, eps, o, d.write(), d.strides.data(), false);
  }

  static DType result_dtype(const View& input, OptionalScalarType dtype) {
    const DType same = checked(input.dtype, "input");
    return dtype ? checked(kernel_dtype(*dtype), "dtype") : same;
  }

  static void check_out(const View& input, OptionalScalarType dtype, const View& out) {
    STD_TORCH_CHECK(out.dtype == result_dtype(input, dtype), "l1_norm: out must have the dtype of the result");
  }

  // The short way, see bindings.cpp. Boxed by hand: the counts and copies of TORCH_BOX would take 0.1 us more, of 2.

  // What an overload is given besides tensors.
  enum class Given { kNothing, kSettings, kSettingsAndType };

  // The result's dtype, behind the settings.
  template <Given given>
  static std::optional<DType> short_dtype(const View& input, const StableIValue* stack) {
    if constexpr (given != Given::kSettingsAndType) return input.dtype;
    return kernel_dtype(static_cast<ScalarType>(boxing::to<int64_t>(stack[4])));
  }

  template <Given given>
  static void short_l1_norm(StableIValue* stack, uint64_t, uint64_t) {
    const Owned input = pop(stack[0]);
    const Settings s = given != Given::kNothing ? pop_settings(stack + 1) : Settings{};
    const View in(input.get());
    const auto reduced = short_dims(in, s);
    const auto result = short_dtype<given>(in, stack);
    Owned output;
    if (reduced && result) {
      output = empty_like(in, *result);
      call(in, *reduced, s.reduction, s.eps, view_of_new(output, in, *result), true);
    } else {
      output = undefined();
    }
    stack[0] = boxing::from(output.release());
  }

  template <Given given>
  static void short_l1_norm_with_denominator(StableIValue* stack, uint64_t, uint64_t) {
    const Owned input = pop(stack[0]);
    const Settings s = given != Given::kNothing ? pop_settings(stack + 1) : Settings{};
    const View in(input.get());
    const auto reduced = short_dims(in, s);
    const auto result = short_dtype<given>(in, stack);
    Pair pair =
        reduced && result ? make_pair(in, *reduced, s.reduction, s.eps, *result) : Pair{undefined(), undefined()};
    stack[0] = boxing::from(pair.output.release());
    stack[1] = boxing::from(pair.denominator.release());
  }

  template <bool with_settings>
  static void short_l1_norm_out(StableIValue* stack, uint64_t, uint64_t) {
    const Owned input = pop(stack[0]), out = pop(stack[1]);
    const Settings s = with_settings ? pop_settings(stack + 2) : Settings{};
    const View in(input.get()), o(out.get());
    const auto reduced = short_dims(in, s);
    const bool plain = reduced && o.dtype == in.dtype && o.same_device(in) && o.sizes.equals(in.sizes) &&
                       in.contiguous && o.contiguous && !overlap_partly(in, o);
    if (plain) call(in, *reduced, s.reduction, s.eps, o, false);
    stack[0] = boxing::from(plain);
  }

  static void register_in(torch::stable::detail::StableLibrary& m) {
    m.impl("l1_norm", TORCH_BOX(&Operators::l1_norm));
    m.impl("l1_norm.out", TORCH_BOX(&Operators::l1_norm_out));
    m.impl("l1_norm_", TORCH_BOX(&Operators::l1_norm_));
    m.impl("l1_norm_with_denominator", TORCH_BOX(&Operators::l1_norm_with_denominator));
    m.impl("l1_norm_with_denominator.out", TORCH_BOX(&Operators::l1_norm_with_denominator_out));
    m.impl("_l1_norm", &Operators::short_l1_norm<Given::kNothing>);
    m.impl("_l1_norm.out", &Operators::short_l1_norm_out<false>);
    m.impl("_l1_norm.settings", &Operators::short_l1_norm<Given::kSettings>);
    m.impl("_l1_norm.cast", &Operators::short_l1_norm<Given::kSettingsAndType>);
    m.impl("_l1_norm.settings_out", &Operators::short_l1_norm_out<true>);
    m.impl("_l1_norm.with_denominator", &Operators::short_l1_norm_with_denominator<Given::kNothing>);
    m.impl("_l1_norm.settings_with_denominator", &Operators::short_l1_norm_with_denominator<Given::kSettings>);
    m.impl("_l1_norm.cast_with_denominator", &Operators::short_l1_norm_with_denominator<Given::kSettingsAndType>);
  }
};

// run is void(Call&): it fills the output.
template <auto run>
struct BackwardOperators {
  static Owned call(const View& input, const View& grad, const Mask& reduced, int64_t reduction, double eps,
                    const View& denominator, const View* grad_denominator) {
    Owned output = empty_like(input, *input.dtype);
    const View out = view_of_new(output, input, *input.dtype);
    const DenominatorLayout layout(out, reduced);
    Call c = make_call(input, &grad, reduced, reduction, eps, out, layout.strides.data(), true);
    // Kernels want denominators as forward calls make them; they rarely come in another order.
    const auto laid_out = [&](const View& t, Owned& copy) {
      if (layout.is_of(t)) return const_cast<void*>(t.read());
      copy = empty_denominator(out, layout);
      AtenTensorHandle to = nullptr, from = nullptr;
      TORCH_ERROR_CODE_CHECK(aoti_torch_new_tensor_handle(copy.get(), &to));
      TORCH_ERROR_CODE_CHECK(aoti_torch_new_tensor_handle(t.tensor, &from));
      Tensor target(to);
      torch::stable::copy_(target, Tensor(from));
      return data_of(copy);
    };
    Owned denominators, gradients;
    c.denominator = laid_out(denominator, denominators);
    if (grad_denominator != nullptr) c.grad_denominator = laid_out(*grad_denominator, gradients);
    if (c.geometry.rows.count > 0 && c.geometry.row.count > 0) run(c);
    return output;
  }

  static Tensor l1_norm_backward(const Tensor& grad_output, const Tensor& input, const Tensor& denominator,
                                 const Dims& dim, int64_t reduction, double eps,
                                 std::optional<Tensor> grad_denominator) {
    const View in(input), grad(grad_output);
    const DType dtype = checked(in.dtype, "input");
    STD_TORCH_CHECK(is_gradient(grad, in),
                    "l1_norm: grad_output must have the dtype and the sizes of input and be on its device");
    const Mask reduced = reduced_dims(dim, in.rank());
    const View d(denominator);
    check_denominator(d, in, reduced, dtype, "denominator");
    if (!grad_denominator) return Tensor(call(in, grad, reduced, reduction, eps, d, nullptr).release());
    const View h(*grad_denominator);
    check_denominator(h, in, reduced, dtype, "grad_denominator");
    return Tensor(call(in, grad, reduced, reduction, eps, d, &h).release());
  }

  template <bool with_settings>
  static void short_l1_norm_backward(StableIValue* stack, uint64_t, uint64_t) {
    const Owned grad_output = pop(stack[0]), input = pop(stack[1]), denominator = pop(stack[2]);
    const Settings s = with_settings ? pop_settings(stack + 3) : Settings{};
    const View grad(grad_output.get()), in(input.get()), d(denominator.get());
    Owned output;
    const auto reduced = short_dims(in, s);
    if (reduced && is_gradient(grad, in) && is_denominator(d, in, *reduced, *in.dtype)) {
      output = call(in, grad, *reduced, s.reduction, s.eps, d, nullptr);
    }
    stack[0] = boxing::from((output ? std::move(output) : undefined()).release());
  }

  static bool is_gradient(const View& grad, const View& input) {
    return grad.dtype == input.dtype && grad.same_device(input) && grad.sizes.equals(input.sizes);
  }

  static void register_in(torch::stable::detail::StableLibrary& m) {
    m.impl("l1_norm_backward", TORCH_BOX(&BackwardOperators::l1_norm_backward));
    m.impl("_l1_norm_backward", &BackwardOperators::short_l1_norm_backward<false>);
    m.impl("_l1_norm_backward.settings", &BackwardOperators::short_l1_norm_backward<true>);
  }
};

}  // namespace l1norm
