// SPDX-License-Identifier: Apache-2.0
#include <cstdint>

#include "runtime/cuda/graph_fills.h"

namespace saturate::cuda {
namespace {

__global__ void fill_bytes_kernel(char* dst, int value, uint32_t bytes) {
  const uint32_t word = (static_cast<uint32_t>(value) & 0xFFu) * 0x01010101u;
  const bool words = reinterpret_cast<uintptr_t>(dst) % 4 == 0 && bytes % 4 == 0;
  if (words) {
    for (uint32_t i = threadIdx.x; i < bytes / 4; i += blockDim.x)
      reinterpret_cast<uint32_t*>(dst)[i] = word;
  } else {
    for (uint32_t i = threadIdx.x; i < bytes; i += blockDim.x) dst[i] = static_cast<char>(word);
  }
}

}  // namespace

void* fill_kernel() noexcept { return reinterpret_cast<void*>(&fill_bytes_kernel); }

}  // namespace saturate::cuda
