// SPDX-License-Identifier: Apache-2.0
// Kernels that start while the kernel before them in the stream still runs (programmatic dependent
// launch, compute capability 9.0): for steps of few rows, whose kernels take as long to begin as
// to compute. CUDA C++ Programming Guide, "Programmatic Dependent Launch and Synchronization".
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#include "runtime/context.h"

namespace saturate::kernels {

constexpr int64_t kFewRows = 64;

// Lets the next kernel of the stream begin, then awaits those before this one, whose results are
// then visible. The first thing that every thread of a kernel does which is launched early, before
// it touches memory that other kernels write; does nothing in one that is not.
__device__ __forceinline__ void change_over() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;\ngriddepcontrol.wait;" ::: "memory");
#endif
}

// What memory will be read at may be asked for before change_over(): L2 is the same for all.
__device__ __forceinline__ void prefetch_to_l2(const void* line) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(line));
}

// Whether kernels over so many rows are launched early.
inline bool starts_early(const Context& ctx, int64_t rows) {
  return rows <= kFewRows && capability_of(ctx).major >= 9;
}

// kernel<<<grid, block, shared, stream>>>(arguments...), early where asked for. The kernel calls
// change_over() first.
template <class... Parameters, class... Arguments>
cudaError_t launch_kernel(bool early, void (*kernel)(Parameters...), dim3 grid, dim3 block,
                          size_t shared, cudaStream_t stream, const Arguments&... arguments) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = early ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, Parameters(arguments)...);
}

}  // namespace saturate::kernels
