// SPDX-License-Identifier: Apache-2.0
#include "kernels/gemm/wgmma/promoted_kernel.cuh"
#include "kernels/gemm/wgmma/wgmma_launch.cuh"

namespace saturate::kernels::wgmma {
namespace {

template <class A, class B, class Out>
cudaError_t launch_one(const PromotedProblem& p, int blocks, cudaStream_t stream) {
  using P = Promoted<A, B, Out, Out, true>;
  return launch_pairs<matmul_promoted_kernel<P>, P::kSharedBytes>(p, blocks, stream);
}

template <class A, class B>
cudaError_t launch_types(DType d_type, const PromotedProblem& p, int blocks, cudaStream_t stream) {
  switch (d_type) {
    case DType::bf16:
      return launch_one<A, B, __nv_bfloat16>(p, blocks, stream);
    case DType::f16:
      return launch_one<A, B, __half>(p, blocks, stream);
    case DType::f32:
      return launch_one<A, B, float>(p, blocks, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace

cudaError_t launch_fp8(bool e5m2_a, bool e5m2_b, DType d_type, const PromotedProblem& p, int blocks,
                       cudaStream_t stream) {
  using Narrow = __nv_fp8_e4m3;
  using Wide = __nv_fp8_e5m2;
  if (e5m2_a && e5m2_b) return launch_types<Wide, Wide>(d_type, p, blocks, stream);
  if (e5m2_a) return launch_types<Wide, Narrow>(d_type, p, blocks, stream);
  if (e5m2_b) return launch_types<Narrow, Wide>(d_type, p, blocks, stream);
  return launch_types<Narrow, Narrow>(d_type, p, blocks, stream);
}

}  // namespace saturate::kernels::wgmma
