// The operators for CUDA: the current stream and device, a plan, a launch.
#include <cuda_runtime.h>

#include <array>
#include <atomic>

#include "../lattice.h"
#include "../operators.h"
#include "../repeated.h"
#include "kernels/column_ring.h"
#include "kernels/column_tile.h"
#include "kernels/gather.h"
#include "kernels/relay.h"
#include "kernels/resident.h"
#include "kernels/ring.h"
#include "kernels/runs.h"
#include "kernels/signs.h"
#include "kernels/slab.h"
#include "kernels/split.h"
#include "kernels/strided.h"
#include "kernels/strided_relay.h"
#include "kernels/tile.h"
#include "kernels/two_pass.h"
#include "kernels/warp.h"
#include "kernels/warp_columns.h"
#include "launch.h"
#include "override.h"
#include "plan.h"
#include "plan_signs.h"
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

__global__ void probe() {}

// Whether the code that runs here knows clusters, and kernels that start early: PTX of an older architecture does not,
// on whatever GPU it runs.
bool is_hopper_code() {
  cudaFuncAttributes attributes{};
  if (cudaFuncGetAttributes(&attributes, probe) == cudaSuccess) return attributes.ptxVersion >= 90;
  cudaGetLastError();  // the launch says what is wrong
  return false;
}

// Whether graphs take launches that start early: from CUDA 12.3 on.
bool is_driver_for_early_starts() {
  int version = 0;
  return cudaDriverGetVersion(&version) == cudaSuccess && version >= 12030;
}

// Whether two blocks a multiprocessor fit in clusters of kWidestCluster.
bool takes_widest_clusters(int shared_bytes_per_multiprocessor) {
  const int shared_bytes = shared_bytes_per_multiprocessor / 2 - kReservedShared;
  const auto function = reinterpret_cast<const void*>(probe);
  cudaLaunchAttribute cluster = clusters_of(kWidestCluster);
  cudaLaunchConfig_t config =
      launch_config(kWidestCluster, kStridedThreads / 2, static_cast<size_t>(shared_bytes), nullptr);
  config.attrs = &cluster;
  config.numAttrs = 1;
  int clusters = 0;
  if (cudaFuncSetAttribute(function, cudaFuncAttributeNonPortableClusterSizeAllowed, 1) == cudaSuccess &&
      cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes) == cudaSuccess &&
      cudaOccupancyMaxActiveClusters(&clusters, function, &config) == cudaSuccess) {
    return clusters > 0;
  }
  cudaGetLastError();
  return false;
}

Device query(int device) {
  const auto attribute = [&](cudaDeviceAttr a) {
    int value = 0;
    check(cudaDeviceGetAttribute(&value, a, device), "cudaDeviceGetAttribute");
    return value;
  };
  const bool hopper = is_hopper_code();
  const int shared_bytes = attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor);
  // Measured from Hopper on only. Memory moves two bits a line and cycle.
  const double cycles = hopper ? attribute(cudaDevAttrClockRate) : 0.0;
  const double bytes_per_cycle =
      cycles > 0.0 ? 0.25 * attribute(cudaDevAttrMemoryClockRate) * attribute(cudaDevAttrGlobalMemoryBusWidth) / cycles
                   : 0.0;
  const int widest = hopper && takes_widest_clusters(shared_bytes) ? kWidestCluster : kMaxCluster;
  return {attribute(cudaDevAttrMultiProcessorCount),
          attribute(cudaDevAttrMaxThreadsPerMultiProcessor),
          attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin),
          shared_bytes,
          attribute(cudaDevAttrL2CacheSize),
          hopper ? kMaxCluster : 1,
          hopper ? widest : 1,
          hopper && is_driver_for_early_starts(),
          bytes_per_cycle};
}

// Operands that a launch asks for while it waits have so much for each multiprocessor at the most, about what is on
// chip or on its way at once (1024 x 1024 float32 one after the other: 4.28 us, asked for 3.54; 131072 x 4: 2.78, 2.30;
// gradients of the former 5.17, 4.35; on an H100 (64, 64, 28, 28) bfloat16 over dim 1: 11.2, 9.7).
constexpr int64_t kAskedBytes = 128 << 10;

// A device's properties never change; the driver is asked once.
const Device& properties(int device) {
  static std::array<std::atomic<const Device*>, kMaxDevices> known{};
  STD_TORCH_CHECK(device >= 0 && device < static_cast<int>(kMaxDevices), "l1_norm: no CUDA device ", device);
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

// Whether rows start at the same place of a 16-byte pack in input, output and gradient, of which they may read copies
// by turns, so that they do.
bool packs_align(const Call& c, bool by_turns) {
  const int64_t size = element_size(c.dtype);
  const auto same = [&](int64_t a, int64_t b) { return (a - b) * size % kPackBytes == 0; };
  const auto apart = [&](const void* other) {
    return (reinterpret_cast<uintptr_t>(c.input) - reinterpret_cast<uintptr_t>(other)) % kPackBytes != 0;
  };
  if (apart(c.output) || (c.grad != nullptr && apart(c.grad))) return false;
  const Walk& rows = c.geometry.rows;
  for (int d = 0; d < rows.dims; ++d) {
    const Offsets& s = rows.stride[d];
    if (!same(s.input, s.output) || !(by_turns || same(s.input, s.grad))) return false;
  }
  return true;
}

// Device memory for one launch, from PyTorch's allocator: what the stream does next may use it again.
class Scratch {
 public:
  Scratch(int device, size_t bytes) {
    if (bytes == 0) return;
    const int64_t size = static_cast<int64_t>(bytes), stride = 1;
    TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(1, &size, &stride, aoti_torch_dtype_uint8(),
                                                    aoti_torch_device_type_cuda(), device, &tensor_));
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_data_ptr(tensor_, &data_));
  }
  ~Scratch() {
    if (tensor_ != nullptr) aoti_torch_delete_tensor_object(tensor_);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  void* data() const { return data_; }

 private:
  AtenTensorHandle tensor_ = nullptr;
  void* data_ = nullptr;
};

template <typename Word>
__global__ void write_repeated(const Word* from, int64_t step, int64_t elements, Word* to, int64_t count) {
  const int64_t threads = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += threads) {
    to[i] = from[i % elements * step];
  }
}

// `copies` copies of what repeats itself in a gradient of elements of Word.
template <typename Word>
cudaError_t repeat(const void* from, const Repeated& repeated, int64_t copies, void* to, cudaStream_t stream) {
  constexpr int kThreads = 256;
  const int64_t count = copies * repeated.elements;
  const cudaLaunchConfig_t config =
      launch_config(std::min<int64_t>((count + kThreads - 1) / kThreads, 1024), kThreads, 0, stream);
  return cudaLaunchKernelEx(&config, write_repeated<Word>, static_cast<const Word*>(from), repeated.step,
                            repeated.elements, static_cast<Word*>(to), count);
}

cudaError_t repeat(int64_t element_size, const void* from, const Repeated& repeated, int64_t copies, void* to,
                   cudaStream_t stream) {
  switch (element_size) {
    case 2:
      return repeat<uint16_t>(from, repeated, copies, to, stream);
    case 4:
      return repeat<uint32_t>(from, repeated, copies, to, stream);
    default:
      return repeat<uint64_t>(from, repeated, copies, to, stream);
  }
}

template <DType T>
cudaError_t launch(const Call& c, const Plan& plan, cudaStream_t stream) {
  switch (plan.kernel) {
    case Kernel::kTile:
      return tile<T>(c, plan.tile, stream);
    case Kernel::kWarp:
      return warp<T>(c, plan.warp, stream);
    case Kernel::kResident:
      return resident<T>(c, plan.resident, stream);
    case Kernel::kSplit: {
      const Scratch scratch(c.device, split_scratch_bytes(plan.split, c.geometry.rows.count));
      return split<T>(c, plan.split, scratch.data(), stream);
    }
    case Kernel::kRing: {
      const Scratch scratch(c.device, ring_scratch_bytes(plan.ring, c.geometry.rows.count));
      if constexpr (T != DType::kDouble) {
        if (plan.ring.columns > 1) return ring_of_turns<T>(c, plan.ring, scratch.data(), stream);
      }
      return ring<T>(c, plan.ring, scratch.data(), stream);
    }
    case Kernel::kRelay: {
      const Scratch scratch(c.device, relay_scratch_bytes(plan.relay, c.geometry.rows.count));
      return relay<T>(c, plan.relay, scratch.data(), stream);
    }
    case Kernel::kGather:
      return gather<T>(c, plan.gather, stream);
    case Kernel::kRuns:
      if constexpr (T != DType::kDouble) {
        const Scratch scratch(c.device, runs_scratch_bytes(plan.runs, c.geometry.rows.count));
        return runs<T>(c, plan.runs, scratch.data(), stream);
      }
      break;  // none is planned
    case Kernel::kColumnTile:
      return column_tile<T>(c, plan.column_tile, stream);
    case Kernel::kSlab:
      return slab<T>(c, plan.slab, stream);
    case Kernel::kWarpColumns:
      if constexpr (T != DType::kDouble) return warp_columns<T>(c, plan.warp_columns, stream);
      break;  // none is planned
    case Kernel::kStrided:
      return strided<T>(c, plan.strided, stream);
    case Kernel::kStridedRelay: {
      const Scratch scratch(c.device, plan.strided_relay.scratch_bytes);
      return strided_relay<T>(c, plan.strided_relay, scratch.data(), stream);
    }
    case Kernel::kColumnRing:
      if constexpr (T != DType::kDouble) {
        const Scratch scratch(c.device, static_cast<size_t>(plan.column_ring.scratch_bytes));
        return column_ring<T>(c, plan.column_ring, scratch.data(), stream);
      }
      break;  // none is planned
    case Kernel::kTwoPass:
      return two_pass<T>(c, plan.two_pass, stream);
  }
  return cudaErrorInvalidValue;
}

cudaError_t launch(const Call& c, const Plan& plan, cudaStream_t stream) {
  switch (c.dtype) {
    case DType::kHalf:
      return launch<DType::kHalf>(c, plan, stream);
    case DType::kBFloat16:
      return launch<DType::kBFloat16>(c, plan, stream);
    case DType::kFloat:
      return launch<DType::kFloat>(c, plan, stream);
    case DType::kDouble:
      return launch<DType::kDouble>(c, plan, stream);
  }
  return cudaErrorInvalidValue;
}

struct Planned {
  Shape shape;
  Plan plan;
};

// Of a call whose gradient is laid as kernels will find it; c gets what goes with the launch.
Planned planned(Call& c, const Repeated& repeated, const Device& device) {
  const Geometry& g = c.geometry;
  const bool cast = c.input_dtype != c.dtype;
  const int64_t size = element_size(c.dtype);
  const bool held = g.unit_stride() && !cast;
  // Which copies the geometry: for those that may need it.
  const auto lattice = [&] { return shape_of(lattice_of(c, kPackBytes), kPackBytes / size); };
  Shape shape{g.rows.count,      g.row.count,
              c.input_dtype,     held,
              g.dense(),         packs_align(c, repeated.turns > 1),
              c.grad != nullptr, starts_at(c, kPackBytes)};
  if (repeated.in_rows) {
    shape.dense = true;
    shape.at_packs = false;
  }
  if (!cast) shape.run = g.run();
  shape.one_grad = c.one_grad != nullptr;
  if (!cast && (goes_across(shape) || wanted_kernel != nullptr)) shape.lattice = lattice();
  shape.lattice.in_place = c.input == c.output;
  c.starts_early = device.early_starts;
  if (c.starts_early) {
    const bool reads_grad = c.grad != nullptr && c.one_grad == nullptr;
    const int64_t most = kAskedBytes * device.multiprocessors / (reads_grad ? 2 : 1);
    c.input_ahead = ahead_of(g, &Offsets::input, element_size(c.input_dtype), kLineBytes, most);
    if (reads_grad) c.grad_ahead = ahead_of(g, &Offsets::grad, size, kLineBytes, most);
  }
  const Plan plan = make_plan(shape, device, wanted_kernel);
  c.stagger = plan.stagger;
  return {shape, plan};
}

void check_launch(cudaError_t error) {
  STD_TORCH_CHECK(error != cudaErrorNoKernelImageForDevice,
                  "l1_norm: this binary has no code for the GPU of input; 'python -m l1norm info' lists what it was "
                  "built for; rebuild with TORCH_CUDA_ARCH_LIST set to the GPU's compute capability");
  check(error, "kernel launch");
}

// By a kernel that reads no gradient, as it is one number for all elements. False where none is planned.
bool run_by_one_number(const Call& c, const Device& device, cudaStream_t stream) {
  if (c.grad == nullptr || c.input_dtype != c.dtype || !is_one_number(c.geometry)) return false;
  Call one = c;
  one.one_grad = c.grad;
  one.grad = c.input;
  lay_grad_as_input(one.geometry);
  if (one.geometry.unit_stride()) {  // of whose kernels no other one takes it: nothing is planned twice
    SignsPlan plan;
    const bool takes = wanted_kernel == nullptr && packs_align(one, false) &&
                       plan_signs(one.geometry.rows.count, one.geometry.row.count, element_size(c.dtype), device, plan);
    if (!takes) return false;
    one.starts_early = device.early_starts;
    one.stagger = plan.stagger;
    check_launch(signs(one, plan, stream));
    return true;
  }
  const auto [shape, plan] = planned(one, {}, device);
  if (!takes_one_number(plan.kernel, plan, shape.lattice)) return false;
  one.stagger.cycles /= 2;  // one operand is read of two
  check_launch(launch(one, plan, stream));
  return true;
}

void run(Call& c) {
  Geometry& g = c.geometry;
  if (g.rows.count == 0 || (g.row.count == 0 && c.denominator == nullptr)) return;
  const cudaStream_t stream = current_stream(c.device);
  const DeviceGuard guard(c.device);
  const Device& device = properties(c.device);
  if (run_by_one_number(c, device, stream)) return;
  const void* const grad = c.grad;
  const int64_t size = element_size(c.dtype), pack = kPackBytes / size;
  const int64_t turn_pack = reads_by_turns(size, g.row.count * size) ? pack : 1;
  const bool repeats = grad != nullptr && c.input_dtype == c.dtype;
  const Repeated repeated = repeats ? take_repeated(g, INT64_MAX, turn_pack) : Repeated{};
  const uintptr_t past_a_line = reinterpret_cast<uintptr_t>(c.input) % kLineBytes;
  if (repeated.copies(0) > 0) c.grad = c.input;  // as far from a line as the copy will be
  const auto [shape, plan] = planned(c, repeated, device);
  const bool tiles = plan.kernel == Kernel::kTile;
  const int64_t copies = repeated.copies(tiles ? plan.tile.rows : 0);
  const Scratch scratch(c.device,
                        copies == 0 ? 0 : static_cast<size_t>(copies * repeated.elements * size) + kLineBytes);
  c.grad = grad;
  cudaError_t error = cudaSuccess;
  if (copies > 0) {
    void* const copy = static_cast<char*>(scratch.data()) + (tiles ? 0 : past_a_line);
    error = repeat(size, grad, repeated, copies, copy, stream);
    c.grad = copy;
  }
  if (repeated.turns > 1 && takes_rows(plan)) repeated.take_turns(g.rows);
  if (error == cudaSuccess) error = launch(c, plan, stream);
  if (error == cudaErrorCooperativeLaunchTooLarge) {
    // Another process holds a part of the device: kernels whose blocks all wait for each other cannot run.
    cudaGetLastError();
    const bool across = plan.kernel == Kernel::kColumnRing || plan.ring.columns > 1;
    const Kernel portable = across ? Kernel::kStridedRelay : Kernel::kRelay;
    error = launch(c, make_plan(shape, device, &portable), stream);
  }
  check_launch(error);
}

}  // namespace
}  // namespace l1norm::cuda

STABLE_TORCH_LIBRARY_IMPL(l1norm, CUDA, m) {
  l1norm::Operators<l1norm::cuda::run>::register_in(m);
  l1norm::BackwardOperators<l1norm::cuda::run>::register_in(m);
}
