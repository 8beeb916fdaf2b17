// SPDX-License-Identifier: Apache-2.0
#include "kernels/gemm/sgemm/sgemm_tma.cuh"

namespace saturate::kernels {

TmaKernel sgemm_tma_kernel_128(bool a_along_k, bool b_along_k) {
  if (a_along_k) return b_along_k ? tma_kernel<128, true, true>() : tma_kernel<128, true, false>();
  return b_along_k ? tma_kernel<128, false, true>() : tma_kernel<128, false, false>();
}

}  // namespace saturate::kernels
