// SPDX-License-Identifier: Apache-2.0
#include "kernels/gemm/mma/mma_gemm.cuh"

namespace saturate::kernels::mma {
template void launch<__nv_bfloat16, Transpose::yes, Transpose::no>(const Context&,
                                                                   const MatmulArgs&, const Plan&);
}  // namespace saturate::kernels::mma
