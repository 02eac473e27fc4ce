// Shared memory: its lines, its addresses, and waits for what arrives in it by itself.
#pragma once

#include <cstdint>

#include "device.h"

namespace l1norm::cuda {

// Asynchronous copies go to shared memory from the start of a line on: 8192 x 131071 float32 runs at 0.91 from 16 bytes
// past one.
constexpr int kSharedLine = 128;
constexpr int kLinePacks = kSharedLine / kPackBytes;
__host__ __device__ constexpr int to_line(int packs) { return (packs + kLinePacks - 1) / kLinePacks * kLinePacks; }

__device__ __forceinline__ uint32_t shared_address(const void* place) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(place));
}
// In a register: the compiler would work it out at each use, by a slow read of a special one.
__device__ __forceinline__ uint32_t kept_shared_address(const void* place) {
  uint32_t address = shared_address(place);
  asm("" : "+r"(address));
  return address;
}
__device__ __forceinline__ void store_shared(uint32_t address, const uint4& value) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(value.x), "r"(value.y), "r"(value.z),
               "r"(value.w)
               : "memory");
}
__device__ __forceinline__ uint4 load_shared(uint32_t address) {
  uint4 value;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "r"(address)
               : "memory");
  return value;
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
// An mbarrier: a phase is over when so many have arrived and the bytes that are expected are there.
__device__ __forceinline__ void start_barrier(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
// Of all that this thread has started: for other threads, and for the copy engine.
__device__ __forceinline__ void show_barriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ __forceinline__ void arrive_at(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// Arrives, too.
__device__ __forceinline__ void expect_bytes(uint32_t barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
// Until the phase of that number, modulo 2, is over, and not yet the next one.
__device__ __forceinline__ void await_phase(uint32_t barrier, unsigned parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// Where a peer of the cluster has what lies there here.
__device__ __forceinline__ uint32_t mapped_to(uint32_t address, int peer) {
  uint32_t there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(peer));
  return there;
}
// To places in a peer's memory, whose barrier expects the bytes.
__device__ __forceinline__ void send(uint32_t place, const double2& value, uint32_t barrier) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f64 [%0], {%1, %2}, [%3];" ::"r"(place),
               "d"(value.x), "d"(value.y), "r"(barrier)
               : "memory");
}
__device__ __forceinline__ void send(uint32_t place, double value, uint32_t barrier) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.f64 [%0], %1, [%2];" ::"r"(place), "d"(value),
               "r"(barrier)
               : "memory");
}
__device__ __forceinline__ void send(uint32_t place, const float2& value, uint32_t barrier) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(place),
               "f"(value.x), "f"(value.y), "r"(barrier)
               : "memory");
}
#endif

}  // namespace l1norm::cuda
