// SPDX-License-Identifier: Apache-2.0
#include <cublasLt.h>
#include <cuda_runtime.h>
#include <fmt/format.h>

#include <fstream>

#include "base/error.h"
#include "kernels/tune/machine.h"
#include "runtime/cuda/check.h"

namespace saturate::kernels {

// Raised when kernels are added or get faster: what was measured among the old ones is stale.
constexpr int kKernelSet = 2;

TuneMachine tune_machine(Device device) {
  if (!device.is_cuda()) throw Error(Errc::unsupported, "tune", "only GPUs are tuned");
  const DeviceInfo info = device_info(device);
  TuneMachine m{.gpu = info.name,
                .compute = fmt::format("{}.{}", info.compute_major, info.compute_minor),
                .driver = {},
                .libraries = {}};
  std::ifstream module("/sys/module/nvidia/version");
  if (!(module >> m.driver)) {
    int version = 0;
    SAT_CUDA(cudaDriverGetVersion(&version));
    m.driver = fmt::format("CUDA {}.{}", version / 1000, version % 1000 / 10);
  }
  const size_t v = cublasLtGetVersion();
  m.libraries =
      fmt::format("cuBLASLt {}.{}.{}, kernels {}", v / 10000, v % 10000 / 100, v % 100, kKernelSet);
  return m;
}

}  // namespace saturate::kernels
