// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "kernels/device/shared_memory.cuh"
#include "kernels/gemm/wgmma/wgmma_kernel.cuh"

namespace saturate::kernels::wgmma {

// Launches kKernel on `blocks` blocks in pairs, kSharedBytes each.
template <auto kKernel, uint32_t kSharedBytes, class Args>
cudaError_t launch_pairs(const Args& args, int blocks, cudaStream_t stream) {
  if (const cudaError_t code = allow_shared_memory<kKernel>(kSharedBytes); code != cudaSuccess)
    return code;
  // Blocks may come while the last ones of the kernel before still run: they set up, then wait.
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim = {kCluster, 1, 1};
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = kSharedBytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = 2;
  return cudaLaunchKernelEx(&config, kKernel, args);
}

template <class P>
cudaError_t launch(const Problem& p, int blocks, cudaStream_t stream) {
  return launch_pairs<matmul_wgmma_kernel<P>, P::kSharedBytes>(p, blocks, stream);
}

// Every shape with 16-bit results, the cooperative ones with fp32 results (long sums, for which the
// time to write does not count).
template <class T, Form kForm>
cudaError_t launch_form(Shape shape, const Problem& p, int blocks, cudaStream_t stream) {
  constexpr bool kKMajorA = kForm != Form::weight_gradient, kKMajorB = kForm == Form::forward;
  using Out = std::conditional_t<kKMajorA, T, float>;
  switch (shape) {
    case Shape::cooperative_128x256:
      return launch<Tile<T, Out, 128, 256, 4, false, kKMajorA, kKMajorB>>(p, blocks, stream);
    case Shape::cooperative_256x192:
      return launch<Tile<T, Out, 256, 192, 4, false, kKMajorA, kKMajorB>>(p, blocks, stream);
    case Shape::ping_pong_128x192:
      if constexpr (kKMajorA)
        return launch<Tile<T, Out, 128, 192, 5, true, kKMajorA, kKMajorB>>(p, blocks, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace saturate::kernels::wgmma
