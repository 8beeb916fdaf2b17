// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/hopper/wide_keys.cuh"
#include "kernels/attention/hopper/wide_launch.h"

namespace saturate::kernels::attention::wide {

cudaError_t keys_d256_bf16(const BackwardProblem& p, int blocks, cudaStream_t stream) {
  return launch_keys<KeyTile<__nv_bfloat16, 256, 256>>(p, blocks, stream);
}

}  // namespace saturate::kernels::attention::wide
