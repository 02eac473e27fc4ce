#include <cstdlib>
#include <cstring>

#include "kernels.h"

namespace l1norm::cpu {
namespace {

const Capability& choose() {
#if defined(__x86_64__)
  const char* wanted = std::getenv("L1NORM_CPU_CAPABILITY");
  const auto allowed = [&](const Capability& c) { return wanted == nullptr || std::strcmp(wanted, c.name) == 0; };
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
  if (wanted != nullptr && std::strcmp(wanted, kDefault.name) == 0) return kDefault;
  if (avx512 && (allowed(kAvx512) || !allowed(kAvx2))) return kAvx512;
  if (avx2) return kAvx2;
#endif
  return kDefault;
}

}  // namespace

const Capability& capability() {
  static const Capability& chosen = choose();
  return chosen;
}

}  // namespace l1norm::cpu
