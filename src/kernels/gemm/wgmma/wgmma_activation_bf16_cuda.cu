// SPDX-License-Identifier: Apache-2.0
#include "kernels/gemm/wgmma/wgmma_activation.cuh"

namespace saturate::kernels::wgmma {

cudaError_t launch_activation_bf16(ActivationKind kind, const Problem& p, int blocks,
                                   cudaStream_t stream) {
  return launch_activation<__nv_bfloat16>(kind, p, blocks, stream);
}

}  // namespace saturate::kernels::wgmma
