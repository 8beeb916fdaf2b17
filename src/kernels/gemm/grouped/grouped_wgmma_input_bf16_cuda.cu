// SPDX-License-Identifier: Apache-2.0
#include "kernels/gemm/grouped/grouped_wgmma.cuh"

namespace saturate::kernels::wgmma {

cudaError_t launch_grouped_input_bf16(const GroupedProblem& p, int blocks, cudaStream_t stream) {
  return launch_grouped<GroupedTile<__nv_bfloat16, false>>(p, blocks, stream);
}

}  // namespace saturate::kernels::wgmma
