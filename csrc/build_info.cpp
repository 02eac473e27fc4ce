#include "build_info.h"

#include <torch/headeronly/version.h>

#include <sstream>

#include "cpu/kernels.h"
#include "cuda/stream.h"

#ifndef L1NORM_VERSION
#error "setup.py defines L1NORM_VERSION"
#endif

namespace l1norm {
namespace {

#if defined(L1NORM_CUDA_VERSION)
std::vector<std::string> split(const char* list) {
  std::vector<std::string> parts;
  std::istringstream in(list);
  for (std::string part; std::getline(in, part, ';');) parts.push_back(part);
  return parts;
}
#endif

std::string compiler() {
#if defined(__clang__)
  return "clang " __clang_version__;
#else
  return "gcc " __VERSION__;
#endif
}

}  // namespace

std::unordered_map<std::string, Fact> build_info() {
  std::unordered_map<std::string, Fact> facts;
  facts["version"] = std::string(L1NORM_VERSION);
  facts["torch"] = std::string(TORCH_VERSION);
  facts["torch_target"] = std::string("2.11");
#if defined(L1NORM_CUDA_VERSION)
  facts["cuda"] = std::optional<std::string>(L1NORM_CUDA_VERSION);
  facts["cuda_architectures"] = split(L1NORM_CUDA_ARCHITECTURES);
#else
  facts["cuda"] = std::optional<std::string>();
  facts["cuda_architectures"] = std::vector<std::string>();
#endif
  facts["compiler"] = compiler();
#if defined(L1NORM_DEBUG)
  facts["debug"] = true;
#else
  facts["debug"] = false;
#endif
  facts["cpu_capability"] = std::string(cpu::capability().name);
  facts["cuda_stream"] = cuda::has_stream_entry_point();
  return facts;
}

}  // namespace l1norm
