// How kernels read and write global memory, and what they tell the L2 cache.
#pragma once

#include <cstdint>

#include "pack.cuh"
#include "shared.cuh"

namespace l1norm::cuda {

// How often a kernel reads its input; its result, never. kFirst and kLast keep the input in the L2 cache in between: on
// an H200 they took 32768 x 65535 float32 in two passes from 0.725 to 0.82 of a copy's speed. kPassing: more than once,
// but not kept.
enum class Access { kOnce, kFirst, kLast, kPassing };

// Whether what is read once is to leave the L2 cache last, too. On an H200 memory is the faster for it, as writes leave
// the cache sooner, it seems: a copy of four packs a thread runs at 1.04 of its speed (with evict-first reads at 0.94),
// 4096 float32 at 1.02 of a copy's (0.98 without), 65535 at 1.01 (0.985). Not measured on others.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 900
constexpr bool kKeepsAll = true;
#else
constexpr bool kKeepsAll = false;
#endif

// The L2 cache policy of createpolicy.fractional.L2::evict_last at 1.0, which takes no register as a constant: that of
// cuda::access_property::persisting. (With <cuda/annotated_ptr>, a file of kernels takes a sixth longer to compile.)
constexpr uint64_t kEvictLast = 0x14F0000000000000;

// To leave the cache last; zeros where it is not there.
template <typename P>
__device__ __forceinline__ P load_keeping(const P* p, bool there) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  return there ? *static_cast<const P*>(__nv_associate_access_property(p, kEvictLast)) : P{};
#else
  return there ? *p : P{};
#endif
}

// Read for the last time.
template <typename P>
__device__ __forceinline__ P load_last(const P* p, bool there) {
  if (!there) return P{};
  if constexpr (sizeof(P) == 16) {
    const uint4 words = __ldcs(reinterpret_cast<const uint4*>(p));
    P pack;
    memcpy(&pack, &words, sizeof pack);
    return pack;
  } else {
    return *p;
  }
}

// Whether reads ask for that.
template <Access kAccess>
constexpr bool kKeeps = kAccess == Access::kFirst || (kAccess == Access::kOnce && kKeepsAll);

template <Access kAccess, typename P>
__device__ __forceinline__ P load_pack(const P* from, bool there) {
  if constexpr (kKeeps<kAccess>) {
    return load_keeping(from, there);
  } else if constexpr (kAccess == Access::kLast) {
    return load_last(from, there);
  } else {
    return there ? *from : P{};
  }
}

// N neighbours that begin anywhere. Of halves the words that they lie in, which are half as many.
template <Access kAccess, int N, typename T>
__device__ __forceinline__ Pack<T, N> load_anywhere(const T* p, bool there) {
  if constexpr (Pack<T, N>::kPairs) {
    const unsigned past = static_cast<unsigned>(reinterpret_cast<uintptr_t>(p)) % 4;  // 0 or 2
    const uint32_t* const from = reinterpret_cast<const uint32_t*>(p - past / sizeof(T));
    uint32_t words[N / 2 + 1];
#pragma unroll
    for (int k = 0; k < N / 2; ++k) words[k] = load_pack<kAccess>(from + k, there);
    words[N / 2] = load_pack<kAccess>(from + N / 2, there && past != 0);
    Pack<T, N> pack;
#pragma unroll
    for (int k = 0; k < N / 2; ++k) pack.units[k] = __funnelshift_r(words[k], words[k + 1], past * 8);
    return pack;
  } else {
    return make_pack<T, N>([&](int k) { return load_pack<kAccess>(p + k, there); });
  }
}

// Not to be read here.
template <typename P>
__device__ __forceinline__ void store_streaming(P* p, const P& pack) {
  if constexpr (sizeof(P) == 16) {
    uint4 words;
    memcpy(&words, &pack, sizeof words);
    __stcs(reinterpret_cast<uint4*>(p), words);
  } else {
    *p = pack;
  }
}

template <Access kAccess, typename P>
__device__ __forceinline__ void store_pack(P* to, const P& pack) {
  if constexpr (kAccess == Access::kLast) {
    store_streaming(to, pack);
  } else {
    *to = pack;
  }
}

// How gradients' operands are copied to shared memory. With that hint rings are no faster, and threads' own copies make
// rows of 131071 float32 0.6% slower, of 65535 float64 3.5%.
template <bool kBackward>
constexpr Access kCopied = kBackward ? Access::kPassing : Access::kOnce;

// 16 bytes from global to shared memory, for the thread that waits for its own copies.
template <Access kAccess>
__device__ __forceinline__ void copy_async(void* shared, const void* global) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  if constexpr (kKeeps<kAccess>) {
    // Whatever is zero in all launches: without it ptxas 13.0 may put a part of the address into a uniform register,
    // whose place in the instruction is the hint's, and the instruction is illegal.
    const uint32_t address = shared_address(shared) | (gridDim.y - 1);
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(address), "l"(global),
                 "l"(kEvictLast)
                 : "memory");
  } else {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(shared)), "l"(global) : "memory");
  }
#else
  *static_cast<uint4*>(shared) = *static_cast<const uint4*>(global);
#endif
}

// Ends a group of copies.
__device__ __forceinline__ void commit_copies() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Until at most kGroups groups are on their way.
template <int kGroups>
__device__ __forceinline__ void wait_for_copies() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
#endif
}

__device__ __forceinline__ void wait_for_copies() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

}  // namespace l1norm::cuda
