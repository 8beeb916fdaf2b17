// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/hopper/backward_kernel.cuh"

namespace saturate::kernels::attention::hopper {

void backward_windowed_d128_bf16(const Context& ctx, const BackwardProblem& p) {
  launch_backward<__nv_bfloat16, 128, true>(ctx, p);
}

}  // namespace saturate::kernels::attention::hopper
