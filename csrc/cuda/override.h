// Which kernel tests and benchmarks ask for, process-wide; the plan's own choice by default.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>

#include "plan.h"

namespace l1norm::cuda {

inline std::atomic<const Kernel*> wanted_kernel{nullptr};

// False for a name that no kernel has. An empty name gives the choice back to the plan.
inline bool set_kernel(const char* wanted) {
  static constexpr auto kAll = [] {
    std::array<Kernel, kKernels> all{};
    for (int k = 0; k < kKernels; ++k) all[static_cast<size_t>(k)] = static_cast<Kernel>(k);
    return all;
  }();
  const auto equal = [](const char* a, const char* b) {
    while (*a != '\0' && *a == *b) ++a, ++b;
    return *a == *b;
  };
  if (*wanted == '\0') {
    wanted_kernel = nullptr;
    return true;
  }
  for (const Kernel& kernel : kAll) {
    if (equal(wanted, name(kernel))) {
      wanted_kernel = &kernel;
      return true;
    }
  }
  return false;
}

}  // namespace l1norm::cuda
