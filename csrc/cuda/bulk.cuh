// Copies between global and shared memory by the copy engine, where there is one.
#pragma once

#include <cstdint>

#include "access.cuh"
#include "shared.cuh"

namespace l1norm::cuda {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define L1NORM_BULK_COPY 1
#else
#define L1NORM_BULK_COPY 0
#endif

#if L1NORM_BULK_COPY
// Whole packs, to that address in shared memory; the barrier's phase waits for them.
template <Access kAccess>
__device__ __forceinline__ void copy_bulk(uint32_t shared, const void* global, int bytes, uint32_t barrier) {
  if constexpr (kKeeps<kAccess>) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::
            "r"(shared),
        "l"(global), "r"(bytes), "r"(barrier), "l"(kEvictLast)
        : "memory");
  } else {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared),
        "l"(global), "r"(bytes), "r"(barrier)
        : "memory");
  }
}

// What this thread has written to shared memory, for the copy engine.
__device__ __forceinline__ void show_to_copies() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
// Whole packs, from shared memory.
__device__ __forceinline__ void store_bulk(void* global, const void* shared, int bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(global), "r"(shared_address(shared)),
               "r"(bytes)
               : "memory");
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// Until shared memory may be given up that this thread has stored.
__device__ __forceinline__ void await_stored_reads() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
#endif

// Copies `bytes` bytes, elements of T, to or from shared memory at a 16-byte boundary, by one whole warp: the copy
// engine takes what is aligned where there is one, the lanes the rest.
class WarpCopy {
 public:
  __device__ __forceinline__ explicit WarpCopy(uint64_t* barrier) : barrier_(shared_address(barrier)) {
#if L1NORM_BULK_COPY
    if (lane() == 0) {
      start_barrier(barrier_, 1);
      show_barriers();
    }
    __syncwarp();
#endif
  }

  // Starts to load, once; wait() takes what it returns.
  template <typename T>
  __device__ __forceinline__ int load(unsigned char* shared, const T* global, int bytes) const {
    const int whole = whole_packs(global, bytes);
#if L1NORM_BULK_COPY
    if (lane() == 0 && whole > 0) {
      expect_bytes(barrier_, whole);
      copy_bulk<Access::kOnce>(shared_address(shared), global, whole, barrier_);
    }
#else
    const uint4* from = reinterpret_cast<const uint4*>(global);
    uint4* to = reinterpret_cast<uint4*>(shared);
#pragma unroll 8
    for (int i = lane(); i < whole / 16; i += 32) to[i] = from[i];
#endif
    T* rest = reinterpret_cast<T*>(shared);
    for (int i = whole / static_cast<int>(sizeof(T)) + lane(); i < bytes / static_cast<int>(sizeof(T)); i += 32) {
      rest[i] = global[i];
    }
    return whole;
  }

  // Returns once every lane may read what was copied.
  __device__ __forceinline__ void wait(int whole) const {
#if L1NORM_BULK_COPY
    if (whole > 0) await_phase(barrier_, 0);
#else
    (void)whole;
#endif
    __syncwarp();
  }

  // Returns once shared memory may be given up.
  template <typename T>
  __device__ __forceinline__ void store(T* global, const unsigned char* shared, int bytes) const {
    const int whole = whole_packs(global, bytes);
#if L1NORM_BULK_COPY
    show_to_copies();
#endif
    __syncwarp();
#if L1NORM_BULK_COPY
    if (lane() == 0 && whole > 0) store_bulk(global, shared, whole);
#else
    const uint4* from = reinterpret_cast<const uint4*>(shared);
    uint4* to = reinterpret_cast<uint4*>(global);
#pragma unroll 8
    for (int i = lane(); i < whole / 16; i += 32) to[i] = from[i];
#endif
    const T* rest = reinterpret_cast<const T*>(shared);
    for (int i = whole / static_cast<int>(sizeof(T)) + lane(); i < bytes / static_cast<int>(sizeof(T)); i += 32) {
      global[i] = rest[i];
    }
#if L1NORM_BULK_COPY
    if (lane() == 0) await_stored_reads();
#endif
  }

 private:
  static __device__ __forceinline__ int lane() { return static_cast<int>(threadIdx.x) % 32; }
  static __device__ __forceinline__ int whole_packs(const void* global, int bytes) {
    return reinterpret_cast<uintptr_t>(global) % 16 == 0 ? bytes / 16 * 16 : 0;
  }

  uint32_t barrier_;
};

}  // namespace l1norm::cuda
