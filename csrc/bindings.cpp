// The module and the operators' schemas; nothing else.
#include <torch/csrc/stable/library.h>

// torch's bundled pybind11 refuses a stable-ABI target; the one that is included here has nothing to do with torch.
#pragma push_macro("TORCH_TARGET_VERSION")
#undef TORCH_TARGET_VERSION
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#pragma pop_macro("TORCH_TARGET_VERSION")

#include "build_info.h"
#include "overlap.h"

PYBIND11_MODULE(_C, m) {
  m.doc() = "Kernels of l1norm, registered as torch.ops.l1norm.*; facts about the build.";
  m.def("build_info", &l1norm::build_info, "Facts about this binary and the processor it runs on.");
  m.def("overlap", &l1norm::overlap, pybind11::arg("sizes"), pybind11::arg("strides_a"), pybind11::arg("strides_b"),
        pybind11::arg("distance"),
        "Whether two strided views of one shape, `distance` elements apart in one storage, share an element.");
  m.def("overlaps_itself", &l1norm::overlaps_itself, pybind11::arg("sizes"), pybind11::arg("strides"),
        "Whether two indices of a strided view name one element.");
}

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
}
