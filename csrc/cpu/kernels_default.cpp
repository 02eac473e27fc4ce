// The instruction set that every processor of the architecture has.
#include "kernels.h"
#include "vector_includes.h"

#define L1NORM_CAPABILITY kDefault
#define L1NORM_CAPABILITY_NAME "default"
#define L1NORM_VECTOR_BYTES 16
#include "vector_kernels.h"
