// What kernels need before their first launch on a device, and launches.
#pragma once

#include <cuda_runtime.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>

#include "../call.h"

namespace l1norm::cuda {

// CUDA devices that a process may know.
constexpr size_t kMaxDevices = 128;

// A function's attributes, set when they have to change: the driver is slow to take them. One static object a function.
class Prepared {
 public:
  // Leave for shared_bytes of dynamic shared memory. Without any, all of the L1 cache goes to loads in flight, but for
  // `percent` of what may be shared memory: half of it cost 23% on an H200.
  cudaError_t for_launch(int device, const void* function, int shared_bytes, int percent = 0) {
    std::atomic<int>& most = most_[static_cast<size_t>(device)];
    if (most.load(std::memory_order_acquire) > shared_bytes) return cudaSuccess;
    const std::lock_guard<std::mutex> lock(mutex_);
    if (most.load(std::memory_order_relaxed) > shared_bytes) return cudaSuccess;
    const cudaError_t error =
        shared_bytes == 0 ? cudaFuncSetAttribute(function, cudaFuncAttributePreferredSharedMemoryCarveout, percent)
                          : cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
    if (error == cudaSuccess) most.store(shared_bytes + 1, std::memory_order_release);
    return error;
  }

  // For clusters of more than kMaxCluster blocks; of an object of its own.
  cudaError_t for_wide_clusters(int device, const void* function) {
    std::atomic<int>& asked = most_[static_cast<size_t>(device)];
    if (asked.load(std::memory_order_acquire) != 0) return cudaSuccess;
    const cudaError_t error = cudaFuncSetAttribute(function, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
    if (error == cudaSuccess) asked.store(1, std::memory_order_release);
    return error;
  }

 private:
  std::mutex mutex_;
  std::array<std::atomic<int>, kMaxDevices> most_{};  // bytes asked for so far, plus one
};

inline cudaLaunchConfig_t launch_config(int64_t blocks, int threads, size_t shared_bytes, cudaStream_t stream) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  return config;
}

// Before what the stream did before has ended.
inline cudaLaunchAttribute early_start() {
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  return early;
}

inline cudaLaunchAttribute clusters_of(int blocks) {
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = static_cast<unsigned>(blocks);
  cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
  return cluster;
}

// In clusters of that many blocks, one where the architecture has none, and early where the call may start so: then the
// kernel calls await_stream().
template <typename... Parameters, typename... Arguments>
cudaError_t launch_in_stream(const Call& c, void (*function)(Parameters...), int64_t blocks, int threads,
                             size_t shared_bytes, int cluster_blocks, cudaStream_t stream,
                             const Arguments&... arguments) {
  std::array<cudaLaunchAttribute, 2> attributes{};
  cudaLaunchConfig_t config = launch_config(blocks, threads, shared_bytes, stream);
  config.attrs = attributes.data();
  if (cluster_blocks > 1) attributes[config.numAttrs++] = clusters_of(cluster_blocks);
  if (c.starts_early) attributes[config.numAttrs++] = early_start();
  return cudaLaunchKernelEx(&config, function, arguments...);
}

// Of blocks that wait for each other, in clusters of that many. cudaErrorCooperativeLaunchTooLarge where the device
// does not take all at once.
template <typename... Parameters, typename... Arguments>
cudaError_t launch_clusters_at_once(bool early, void (*function)(Parameters...), int64_t blocks, int threads,
                                    size_t shared_bytes, int cluster_blocks, cudaStream_t stream,
                                    const Arguments&... arguments) {
  std::array<cudaLaunchAttribute, 3> attributes{};
  cudaLaunchConfig_t config = launch_config(blocks, threads, shared_bytes, stream);
  config.attrs = attributes.data();
  cudaLaunchAttribute& cooperative = attributes[config.numAttrs++];
  cooperative.id = cudaLaunchAttributeCooperative;
  cooperative.val.cooperative = 1;
  if (cluster_blocks > 1) attributes[config.numAttrs++] = clusters_of(cluster_blocks);
  if (early) attributes[config.numAttrs++] = early_start();
  return cudaLaunchKernelEx(&config, function, arguments...);
}
template <typename... Parameters, typename... Arguments>
cudaError_t launch_at_once(bool early, void (*function)(Parameters...), int64_t blocks, int threads,
                           size_t shared_bytes, cudaStream_t stream, const Arguments&... arguments) {
  return launch_clusters_at_once(early, function, blocks, threads, shared_bytes, 1, stream, arguments...);
}

}  // namespace l1norm::cuda
