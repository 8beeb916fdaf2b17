// SPDX-License-Identifier: Apache-2.0
#include "kernels/gemm/sgemm/sgemm.h"
#include "runtime/cuda/check.h"

namespace saturate::kernels {

double sgemm_peak_cuda(const Context& ctx) {
  const auto get = [&](cudaDeviceAttr what) {
    int value = 0;
    SAT_CUDA(cudaDeviceGetAttribute(&value, what, ctx.device.index));
    return value;
  };
  const int version =
      10 * get(cudaDevAttrComputeCapabilityMajor) + get(cudaDevAttrComputeCapabilityMinor);
  const int lanes = version == 75 || version == 80 ? 64 : 128;  // a multiprocessor
  return 2e-6 * lanes * get(cudaDevAttrMultiProcessorCount) * get(cudaDevAttrClockRate);
}

}  // namespace saturate::kernels
