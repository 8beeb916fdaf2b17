// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/hopper/forward_kernel.cuh"

namespace saturate::kernels::attention {

cudaError_t launch_forward_windowed_d128(DType type, const ForwardProblem& p, int blocks,
                                       cudaStream_t stream) {
  return launch_forward_windowed<128, false>(type, p, blocks, stream);
}

}  // namespace saturate::kernels::attention
