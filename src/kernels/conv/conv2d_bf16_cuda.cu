// SPDX-License-Identifier: Apache-2.0
#include "kernels/conv/conv2d_mma.cuh"
#include "kernels/conv/conv2d_products.cuh"

namespace saturate::kernels::conv {
template void forward<__nv_bfloat16>(const Context&, const Conv2dArgs&);
template void input_gradient<__nv_bfloat16>(const Context&, const Conv2dBackwardArgs&);
template void weight_gradient<__nv_bfloat16>(const Context&, const Conv2dBackwardArgs&,
                                             const Split&);
}  // namespace saturate::kernels::conv
