// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/hopper/wide_launch.h"
#include "kernels/attention/hopper/wide_queries.cuh"

namespace saturate::kernels::attention::wide {

cudaError_t queries_score_mod_d256(DType type, const BackwardProblem& p, int blocks,
                                cudaStream_t stream) {
  using Half = QueryTile<__half, 256, 256, true, true>;
  using Bfloat16 = QueryTile<__nv_bfloat16, 256, 256, true, true>;
  return type == DType::f16 ? launch_queries<Half>(p, blocks, stream)
                            : launch_queries<Bfloat16>(p, blocks, stream);
}

}  // namespace saturate::kernels::attention::wide
