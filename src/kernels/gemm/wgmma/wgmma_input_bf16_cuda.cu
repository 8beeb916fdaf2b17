// SPDX-License-Identifier: Apache-2.0
#include "kernels/gemm/wgmma/wgmma_launch.cuh"

namespace saturate::kernels::wgmma {

cudaError_t launch_input_bf16(Shape shape, const Problem& p, int blocks, cudaStream_t stream) {
  using T = __nv_bfloat16;
  return launch_narrow<T, false>(shape, p, blocks, stream);
}

}  // namespace saturate::kernels::wgmma
