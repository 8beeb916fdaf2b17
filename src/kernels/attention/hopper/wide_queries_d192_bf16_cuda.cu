// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/hopper/wide_launch.h"
#include "kernels/attention/hopper/wide_queries.cuh"

namespace saturate::kernels::attention::wide {

cudaError_t queries_d192_bf16(const BackwardProblem& p, int blocks, cudaStream_t stream) {
  return launch_queries<QueryTile<__nv_bfloat16, 192, 128>>(p, blocks, stream);
}

}  // namespace saturate::kernels::attention::wide
