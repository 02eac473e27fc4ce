// The operators' schemas, and when those of the short way decline.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

namespace {

using torch::stable::Tensor;
using torch::stable::detail::from;
using torch::stable::detail::to;

void decline_new(StableIValue* stack, uint64_t, uint64_t) {
  const Tensor input(to<AtenTensorHandle>(stack[0]));
  stack[0] = from(Tensor());
}

void decline_out(StableIValue* stack, uint64_t, uint64_t) {
  const Tensor input(to<AtenTensorHandle>(stack[0])), out(to<AtenTensorHandle>(stack[1]));
  stack[0] = from(false);
}

void decline_pair(StableIValue* stack, uint64_t, uint64_t) {
  const Tensor input(to<AtenTensorHandle>(stack[0]));
  stack[0] = from(Tensor());
  stack[1] = from(Tensor());
}

void decline_backward(StableIValue* stack, uint64_t, uint64_t) {
  const Tensor grad_output(to<AtenTensorHandle>(stack[0])), input(to<AtenTensorHandle>(stack[1])),
      denominator(to<AtenTensorHandle>(stack[2]));
  stack[0] = from(Tensor());
}

void decline(torch::stable::detail::StableLibrary& m) {
  m.impl("_l1_norm", &decline_new);
  m.impl("_l1_norm.out", &decline_out);
  m.impl("_l1_norm.settings", &decline_new);
  m.impl("_l1_norm.settings_out", &decline_out);
  m.impl("_l1_norm.with_denominator", &decline_pair);
  m.impl("_l1_norm.settings_with_denominator", &decline_pair);
  m.impl("_l1_norm.cast", &decline_new);
  m.impl("_l1_norm.cast_with_denominator", &decline_pair);
  m.impl("_l1_norm_backward", &decline_backward);
  m.impl("_l1_norm_backward.settings", &decline_backward);
}

}  // namespace

STABLE_TORCH_LIBRARY(l1norm, m) {
  // dim: no dimension means all of them. reduction: 1 is mean, 2 is sum, as in ATen. denominator: what the rows were
  // divided by, with the reduced dimensions kept as 1; float64 for a float64 result and float32 otherwise. Operators
  // that write to an argument return nothing: functionalization takes no other custom ones.
  m.def("l1_norm(Tensor input, int[1] dim=1, int reduction=1, float eps=0.0, *, ScalarType? dtype=None) -> Tensor");
  m.def(
      "l1_norm.out(Tensor input, int[1] dim=1, int reduction=1, float eps=0.0, *, ScalarType? dtype=None, "
      "Tensor(a!) out) -> ()");
  m.def("l1_norm_(Tensor(a!) self, int[1] dim=1, int reduction=1, float eps=0.0) -> ()");
  m.def(
      "l1_norm_with_denominator(Tensor input, int[1] dim=1, int reduction=1, float eps=0.0, *, "
      "ScalarType? dtype=None) -> (Tensor output, Tensor denominator)");
  m.def(
      "l1_norm_with_denominator.out(Tensor input, int[1] dim=1, int reduction=1, float eps=0.0, *, "
      "ScalarType? dtype=None, Tensor(a!) out, Tensor(b!) denominator) -> ()");
  // The gradient of input from those of the output and, where there is one, of the denominator, which is given as
  // l1_norm_with_denominator gives it: kernels read it or make it anew.
  m.def(
      "l1_norm_backward(Tensor grad_output, Tensor input, Tensor denominator, int[1] dim=1, int reduction=1, "
      "float eps=0.0, *, Tensor? grad_denominator=None) -> Tensor");
  // The short way of an eager call (l1norm/_eager.py), which has no kernel at the Autograd key: where a derivative is
  // asked for, the caller sees to it. They decline, by undefined tensors or False, what the operators above must see
  // to. dims: one dimension, or a number for several (short_dims() in tensors.h). Some take no settings: an argument
  // costs PyTorch 0.04 us where it is left to its default and 0.15 us where it is given.
  m.def("_l1_norm(Tensor input) -> Tensor");
  m.def("_l1_norm.out(Tensor input, Tensor(a!) out) -> bool");
  m.def("_l1_norm.settings(Tensor input, int dims, int reduction, float eps) -> Tensor");
  m.def("_l1_norm.settings_out(Tensor input, Tensor(a!) out, int dims, int reduction, float eps) -> bool");
  m.def("_l1_norm.with_denominator(Tensor input) -> (Tensor output, Tensor denominator)");
  m.def(
      "_l1_norm.settings_with_denominator(Tensor input, int dims, int reduction, float eps) -> "
      "(Tensor output, Tensor denominator)");
  m.def("_l1_norm.cast(Tensor input, int dims, int reduction, float eps, int scalar_type) -> Tensor");
  m.def(
      "_l1_norm.cast_with_denominator(Tensor input, int dims, int reduction, float eps, int scalar_type) -> "
      "(Tensor output, Tensor denominator)");
  m.def("_l1_norm_backward(Tensor grad_output, Tensor input, Tensor denominator) -> Tensor");
  m.def(
      "_l1_norm_backward.settings(Tensor grad_output, Tensor input, Tensor denominator, int dims, int reduction, "
      "float eps) -> Tensor");
}

// Backends and layouts without a kernel, modes and subclasses, transforms of torch.func, views that negate.
STABLE_TORCH_LIBRARY_IMPL(l1norm, CompositeImplicitAutograd, m) { decline(m); }
STABLE_TORCH_LIBRARY_IMPL(l1norm, Python, m) { decline(m); }
STABLE_TORCH_LIBRARY_IMPL(l1norm, FuncTorchDynamicLayerFrontMode, m) { decline(m); }
STABLE_TORCH_LIBRARY_IMPL(l1norm, Negative, m) { decline(m); }
