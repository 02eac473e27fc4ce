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
                   void* denominator, bool fresh_output) {
    Call c = make_call(input, nullptr, reduced, reduction, eps, out, fresh_output);
    c.denominator = denominator;
    run(c);
  }

  static Tensor l1_norm(const Tensor& input, const Dims& dim, int64_t reduction, double eps, OptionalScalarType dtype) {
    const View in(input);
    const Mask reduced = reduced_dims(dim, in.rank());
    const DType result = result_dtype(in, dtype);
    Owned output = empty_like(in, result);
    call(in, reduced, reduction, eps, view_of_new(output, in, result), nullptr, true);
    return Tensor(output.release());
  }

  static void l1_norm_out(const Tensor& input, const Dims& dim, int64_t reduction, double eps, OptionalScalarType dtype,
                          const Tensor& out) {
    const View in(input), o(out);
    check_out(in, dtype, o);
    call(in, reduced_dims(dim, in.rank()), reduction, eps, o, nullptr, false);
  }

  static void l1_norm_(const Tensor& self, const Dims& dim, int64_t reduction, double eps) {
    const View view(self);
    call(view, reduced_dims(dim, view.rank()), reduction, eps, view, nullptr, false);
  }

  static std::tuple<Tensor, Tensor> l1_norm_with_denominator(const Tensor& input, const Dims& dim, int64_t reduction,
                                                             double eps, OptionalScalarType dtype) {
    const View in(input);
    const Mask reduced = reduced_dims(dim, in.rank());
    const DType result = result_dtype(in, dtype);
    Owned output = empty_like(in, result), denominator = empty_denominator(in, reduced, result);
    call(in, reduced, reduction, eps, view_of_new(output, in, result), data_of(denominator), true);
    return {Tensor(output.release()), Tensor(denominator.release())};
  }

  static void l1_norm_with_denominator_out(const Tensor& input, const Dims& dim, int64_t reduction, double eps,
                                           OptionalScalarType dtype, const Tensor& out, const Tensor& denominator) {
    const View in(input), o(out), d(denominator);
    check_out(in, dtype, o);
    const Mask reduced = reduced_dims(dim, in.rank());
    check_denominator(d, in, reduced, *o.dtype, "denominator");
    call(in, reduced, reduction, eps, o, d.write(), false);
  }

  static DType result_dtype(const View& input, OptionalScalarType dtype) {
    const DType same = checked(input.dtype, "input");
    return dtype ? checked(kernel_dtype(*dtype), "dtype") : same;
  }

  static void check_out(const View& input, OptionalScalarType dtype, const View& out) {
    STD_TORCH_CHECK(out.dtype == result_dtype(input, dtype), "l1_norm: out must have the dtype of the result");
  }

  // The short way, see bindings.cpp. Boxed by hand: the counts and copies of TORCH_BOX would take 0.1 us more, of 2.
  template <bool with_settings>
  static void short_l1_norm(StableIValue* stack, uint64_t, uint64_t) {
    const Owned input = pop(stack[0]);
    const Settings s = with_settings ? pop_settings(stack + 1) : Settings{};
    const View in(input.get());
    Owned output;
    if (is_plain(in, s)) {
      output = empty_like(in, *in.dtype);
      call(in, reduced_dims(s.dim, in.rank()), s.reduction, s.eps, view_of_new(output, in, *in.dtype), nullptr, true);
    } else {
      output = undefined();
    }
    stack[0] = boxing::from(output.release());
  }

  template <bool with_settings>
  static void short_l1_norm_with_denominator(StableIValue* stack, uint64_t, uint64_t) {
    const Owned input = pop(stack[0]);
    const Settings s = with_settings ? pop_settings(stack + 1) : Settings{};
    const View in(input.get());
    Owned output, denominator;
    if (is_plain(in, s)) {
      const Mask reduced = reduced_dims(s.dim, in.rank());
      output = empty_like(in, *in.dtype);
      denominator = empty_denominator(in, reduced, *in.dtype);
      call(in, reduced, s.reduction, s.eps, view_of_new(output, in, *in.dtype), data_of(denominator), true);
    } else {
      output = undefined();
      denominator = undefined();
    }
    stack[0] = boxing::from(output.release());
    stack[1] = boxing::from(denominator.release());
  }

  template <bool with_settings>
  static void short_l1_norm_out(StableIValue* stack, uint64_t, uint64_t) {
    const Owned input = pop(stack[0]), out = pop(stack[1]);
    const Settings s = with_settings ? pop_settings(stack + 2) : Settings{};
    const View in(input.get()), o(out.get());
    const bool plain = is_plain(in, s) && o.dtype == in.dtype && o.same_device(in) && o.sizes.equals(in.sizes) &&
                       in.contiguous && o.contiguous && !overlap_partly(in, o);
    if (plain) call(in, reduced_dims(s.dim, in.rank()), s.reduction, s.eps, o, nullptr, false);
    stack[0] = boxing::from(plain);
  }

  static void register_in(torch::stable::detail::StableLibrary& m) {
    m.impl("l1_norm", TORCH_BOX(&Operators::l1_norm));
    m.impl("l1_norm.out", TORCH_BOX(&Operators::l1_norm_out));
    m.impl("l1_norm_", TORCH_BOX(&Operators::l1_norm_));
    m.impl("l1_norm_with_denominator", TORCH_BOX(&Operators::l1_norm_with_denominator));
    m.impl("l1_norm_with_denominator.out", TORCH_BOX(&Operators::l1_norm_with_denominator_out));
    m.impl("_l1_norm", &Operators::short_l1_norm<false>);
    m.impl("_l1_norm.out", &Operators::short_l1_norm_out<false>);
    m.impl("_l1_norm.settings", &Operators::short_l1_norm<true>);
    m.impl("_l1_norm.settings_out", &Operators::short_l1_norm_out<true>);
    m.impl("_l1_norm.with_denominator", &Operators::short_l1_norm_with_denominator<false>);
    m.impl("_l1_norm.settings_with_denominator", &Operators::short_l1_norm_with_denominator<true>);
  }
};

// run is void(Call&): it fills the output.
template <auto run>
struct BackwardOperators {
  static Owned call(const View& input, const View& grad, const Mask& reduced, int64_t reduction, double eps,
                    const View& denominator, const View* grad_denominator) {
    Owned output = empty_like(input, *input.dtype);
    Call c = make_call(input, &grad, reduced, reduction, eps, view_of_new(output, input, *input.dtype), true);
    c.denominator = const_cast<void*>(denominator.read());
    if (grad_denominator != nullptr) c.grad_denominator = grad_denominator->read();
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
    const auto one_a_row = [&](const Tensor& t, const char* name) {
      const Tensor result = t.is_contiguous() ? t : torch::stable::contiguous(t);
      check_denominator(View(result), in, reduced, dtype, name);
      return result;
    };
    const Tensor divisors = one_a_row(denominator, "denominator");
    const View d(divisors);
    if (!grad_denominator) return Tensor(call(in, grad, reduced, reduction, eps, d, nullptr).release());
    const Tensor gradients = one_a_row(*grad_denominator, "grad_denominator");
    const View h(gradients);
    return Tensor(call(in, grad, reduced, reduction, eps, d, &h).release());
  }

  template <bool with_settings>
  static void short_l1_norm_backward(StableIValue* stack, uint64_t, uint64_t) {
    const Owned grad_output = pop(stack[0]), input = pop(stack[1]), denominator = pop(stack[2]);
    const Settings s = with_settings ? pop_settings(stack + 3) : Settings{};
    const View grad(grad_output.get()), in(input.get()), d(denominator.get());
    Owned output;
    if (is_plain(in, s) && is_gradient(grad, in)) {
      const Mask reduced = reduced_dims(s.dim, in.rank());
      if (is_denominator(d, in, reduced, *in.dtype)) {
        output = call(in, grad, reduced, s.reduction, s.eps, d, nullptr);
      }
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
