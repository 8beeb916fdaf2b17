// SPDX-License-Identifier: Apache-2.0
#include "kernels/gemm/mma/mma_gemm.cuh"

namespace saturate::kernels::mma {
template void launch<__half, Transpose::yes, Transpose::yes>(const Context&, const MatmulArgs&,
                                                             const Plan&);
}  // namespace saturate::kernels::mma
