// Calls l1norm's operator through PyTorch's dispatcher and runs an exported model that holds it; no Python runs.
#include <ATen/core/dispatch/Dispatcher.h>
#include <dlfcn.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/torch.h>

#include <iostream>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

constexpr int64_t kMean = 1;  // at::Reduction

at::Tensor formula(const at::Tensor& x) { return x / x.abs().mean(1, /*keepdim=*/true); }

at::Tensor l1_norm(const at::Tensor& x) {
  static const auto op =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("l1norm::l1_norm", "")
          .typed<at::Tensor(const at::Tensor&, at::IntArrayRef, int64_t, double, std::optional<at::ScalarType>)>();
  return op.call(x, {1}, kMean, 0.0, std::nullopt);
}

bool check(const std::string& what, const at::Tensor& got, const at::Tensor& expected) {
  const double difference = (got - expected).abs().max().item<double>();
  std::cout << what << ": largest difference from the formula " << difference << std::endl;
  return difference <= 1e-5;
}

int run(int argc, char** argv) {
  if (argc < 2) {
    std::cerr << "usage: l1norm_example l1norm/_C.*.so [model.pt2]\n";
    return 2;
  }
  // Loading it registers the operators.
  if (dlopen(argv[1], RTLD_NOW) == nullptr) throw std::runtime_error(dlerror());

  at::NoGradGuard no_grad;  // the operators' derivatives are Python
  torch::manual_seed(0);
  std::vector<at::Device> devices{at::kCPU};
  if (torch::cuda::is_available()) devices.emplace_back(at::kCUDA);
  bool right = true;
  for (const auto& device : devices) {
    const at::Tensor x = torch::randn({100, 5003}).to(device);
    right = check("operator, " + device.str(), l1_norm(x), formula(x)) && right;
  }
  if (argc > 2) {
    torch::inductor::AOTIModelPackageLoader model(argv[2]);
    const at::Device device(model.get_metadata()["AOTI_DEVICE_KEY"]);
    for (const int64_t rows : {3, 100}) {
      const at::Tensor x = torch::randn({rows, 64}).to(device);
      right = check("model, " + device.str() + ", " + std::to_string(rows) + " rows", model.run({x})[0],
                    formula(2 * x) + 1) &&
              right;
    }
  }
  std::cout << (right ? "right" : "wrong") << std::endl;
  return right ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    return 1;
  }
}
