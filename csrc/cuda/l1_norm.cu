// The operators for CUDA: the current stream and device, a plan, a launch.
#include <cuda_runtime.h>

#include <array>
#include <atomic>

#include "../tensors.h"
#include "kernels/resident.h"
#include "kernels/two_pass.h"
#include "kernels/warp.h"
#include "override.h"
#include "plan.h"
#include "stream.h"

namespace l1norm::cuda {
namespace {

void check(cudaError_t error, const char* what) {
  STD_TORCH_CHECK(error == cudaSuccess, "l1_norm: ", what, ": ", cudaGetErrorString(error));
}

// The calling thread's device, put back at the end.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device) : device_(device) {
    check(cudaGetDevice(&previous_), "cudaGetDevice");
    if (previous_ != device_) check(cudaSetDevice(device_), "cudaSetDevice");
  }
  ~DeviceGuard() {
    if (previous_ != device_) cudaSetDevice(previous_);
  }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int device_;
  int previous_ = 0;
};

// Datacenter GPUs from Hopper on run clusters of 16 where a kernel asks for them; consumer ones (12.x) of 8.
int max_cluster(int major) { return major < 9 ? 1 : major < 12 ? kMaxCluster : 8; }

Device query(int device) {
  const auto attribute = [&](cudaDeviceAttr a) {
    int value = 0;
    check(cudaDeviceGetAttribute(&value, a, device), "cudaDeviceGetAttribute");
    return value;
  };
  return {attribute(cudaDevAttrMultiProcessorCount), attribute(cudaDevAttrMaxThreadsPerMultiProcessor),
          attribute(cudaDevAttrL2CacheSize), max_cluster(attribute(cudaDevAttrComputeCapabilityMajor))};
}

// A device's properties never change; the driver is asked once.
const Device& properties(int device) {
  constexpr size_t kDevices = 128;
  static std::array<std::atomic<const Device*>, kDevices> known{};
  STD_TORCH_CHECK(device >= 0 && device < static_cast<int>(kDevices), "l1_norm: no CUDA device ", device);
  std::atomic<const Device*>& slot = known[static_cast<size_t>(device)];
  const Device* found = slot.load(std::memory_order_acquire);
  if (found == nullptr) {
    const Device* mine = new Device(query(device));
    if (slot.compare_exchange_strong(found, mine)) return *mine;
    delete mine;
  }
  return *found;
}

cudaStream_t current_stream(int device) {
  STD_TORCH_CHECK(has_stream_entry_point(),
                  "l1_norm: this PyTorch has no CUDA (it lacks aoti_torch_get_current_cuda_stream), but input is on a "
                  "CUDA device; install a CUDA build of torch 2.11 or later");
  void* stream = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(device, &stream));
  return static_cast<cudaStream_t>(stream);
}

template <DType T>
cudaError_t launch(const Call& c, const Plan& plan, cudaStream_t stream) {
  switch (plan.kernel) {
    case Kernel::kWarp:
      return warp<T>(c, plan.warp, stream);
    case Kernel::kResident:
      return resident<T>(c, plan.resident, stream);
    case Kernel::kTwoPass:
      return two_pass<T>(c, plan.two_pass, stream);
  }
  return cudaErrorInvalidValue;
}

void run(const Call& c) {
  const Geometry& g = c.geometry;
  if (g.rows.count == 0 || (g.row.count == 0 && c.denominator == nullptr)) return;
  const cudaStream_t stream = current_stream(c.device);
  const DeviceGuard guard(c.device);
  const Shape shape{g.rows.count, g.row.count, c.input_dtype, g.unit_stride() && c.input_dtype == c.dtype};
  const Plan plan = make_plan(shape, properties(c.device), wanted_kernel);
  cudaError_t error = cudaErrorInvalidValue;
  switch (c.dtype) {
    case DType::kHalf:
      error = launch<DType::kHalf>(c, plan, stream);
      break;
    case DType::kBFloat16:
      error = launch<DType::kBFloat16>(c, plan, stream);
      break;
    case DType::kFloat:
      error = launch<DType::kFloat>(c, plan, stream);
      break;
    case DType::kDouble:
      error = launch<DType::kDouble>(c, plan, stream);
      break;
  }
  STD_TORCH_CHECK(error != cudaErrorNoKernelImageForDevice,
                  "l1_norm: this binary has no code for the GPU of input; 'python -m l1norm info' lists what it was "
                  "built for; rebuild with TORCH_CUDA_ARCH_LIST set to the GPU's compute capability");
  check(error, "kernel launch");
}

}  // namespace
}  // namespace l1norm::cuda

STABLE_TORCH_LIBRARY_IMPL(l1norm, CUDA, m) { l1norm::Operators<l1norm::cuda::run>::register_in(m); }
