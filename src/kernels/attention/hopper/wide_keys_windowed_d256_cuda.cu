// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/hopper/wide_keys.cuh"
#include "kernels/attention/hopper/wide_launch.h"

namespace saturate::kernels::attention::wide {

cudaError_t keys_windowed_d256(DType type, const BackwardProblem& p, int blocks,
                             cudaStream_t stream) {
  using Half = KeyTile<__half, 256, 256, true, false>;
  using Bfloat16 = KeyTile<__nv_bfloat16, 256, 256, true, false>;
  return type == DType::f16 ? launch_keys<Half>(p, blocks, stream)
                            : launch_keys<Bfloat16>(p, blocks, stream);
}

}  // namespace saturate::kernels::attention::wide
