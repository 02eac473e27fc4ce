// How far apart the first groups of blocks of a launch begin. Pure and host-only but for the POD, which kernels take by
// value.
#pragma once

#include <cstdint>

namespace l1norm {

// Each of the first `groups` waits `cycles` longer than the one before it.
struct Stagger {
  uint32_t groups;
  uint32_t cycles;
};

}  // namespace l1norm
