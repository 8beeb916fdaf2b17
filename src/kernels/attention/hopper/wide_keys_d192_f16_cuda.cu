// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/hopper/wide_keys.cuh"
#include "kernels/attention/hopper/wide_launch.h"

namespace saturate::kernels::attention::wide {

cudaError_t keys_d192_f16(const BackwardProblem& p, int blocks, cudaStream_t stream) {
  return launch_keys<KeyTile<__half, 192, 128>>(p, blocks, stream);
}

}  // namespace saturate::kernels::attention::wide
