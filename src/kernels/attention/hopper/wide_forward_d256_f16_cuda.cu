// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/hopper/wide_forward.cuh"
#include "kernels/attention/hopper/wide_launch.h"

namespace saturate::kernels::attention::wide {

cudaError_t forward_d256_f16(const ForwardProblem& p, int blocks, cudaStream_t stream) {
  return launch_forward<ForwardTile<__half, 256, 256, forward_keys(256)>>(p, blocks, stream);
}

}  // namespace saturate::kernels::attention::wide
