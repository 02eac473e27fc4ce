// What vector_kernels.h needs from outside; apart from it so that no system header is compiled for one instruction set.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "../exact.h"
#include "../gradient.h"
#include "half_types.h"
#if defined(__x86_64__)
#include <immintrin.h>
#endif
