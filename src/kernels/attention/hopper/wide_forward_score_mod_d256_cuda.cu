// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/hopper/wide_forward.cuh"
#include "kernels/attention/hopper/wide_launch.h"

namespace saturate::kernels::attention::wide {

cudaError_t forward_score_mod_d256(DType type, const ForwardProblem& p, int blocks,
                                cudaStream_t stream) {
  using Half = ForwardTile<__half, 256, 256, forward_keys(256), true, true>;
  using Bfloat16 = ForwardTile<__nv_bfloat16, 256, 256, forward_keys(256), true, true>;
  return type == DType::f16 ? launch_forward<Half>(p, blocks, stream)
                            : launch_forward<Bfloat16>(p, blocks, stream);
}

}  // namespace saturate::kernels::attention::wide
