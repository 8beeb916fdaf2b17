// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/hopper/forward_kernel.cuh"

namespace saturate::kernels::attention {

cudaError_t launch_forward_d128(DType type, bool is_long, const ForwardProblem& p, int blocks,
                                cudaStream_t stream) {
  return launch_forward_types<128, false>(type, is_long, p, blocks, stream);
}

}  // namespace saturate::kernels::attention
