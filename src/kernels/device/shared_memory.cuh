// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cuda_runtime.h>

#include <atomic>
#include <cstdint>

namespace saturate::kernels {

// Lets kKernel be launched with `bytes` of dynamic shared memory on the current device. The driver
// is asked once for each device (the first 64 of them), as the limit is one of a device's; any
// thread may call. Returns the driver's code.
template <auto kKernel>
cudaError_t allow_shared_memory(int bytes) {
  static std::atomic<uint64_t> allowed{0};  // a bit for each device
  int device = 0;
  if (const cudaError_t code = cudaGetDevice(&device); code != cudaSuccess) return code;
  const uint64_t mine = device < 64 ? uint64_t{1} << device : 0;
  if ((allowed.load(std::memory_order_relaxed) & mine) != 0) return cudaSuccess;
  const cudaError_t code =
      cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (code == cudaSuccess) allowed.fetch_or(mine, std::memory_order_relaxed);
  return code;
}

}  // namespace saturate::kernels
