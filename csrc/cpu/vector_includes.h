// What vector_kernels.h needs from outside; apart from it so that no system header is compiled for one instruction set.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "../exact.h"
#include "../gradient.h"
#include "half_types.h"
#include "kernels.h"
#if defined(__x86_64__)
#include <immintrin.h>
#endif
