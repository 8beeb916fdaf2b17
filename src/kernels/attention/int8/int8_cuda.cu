// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/int8/forward.cuh"
#include "runtime/cuda/check.h"

namespace saturate::kernels {
namespace {

template <class T, int kD>
void launch(const Context& ctx, const Int8Problem& p) {
  using namespace attention;
  const AttentionArgs& a = p.a;
  constexpr auto kKernel = attention_forward_int8_kernel<T, kD>;
  constexpr int kBytes = kInt8Shared<kD>;
  SAT_CUDA(cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
  const int64_t needed = (a.max_q + kInt8Queries - 1) / kInt8Queries;
  const int tiles = needed > 0 ? static_cast<int>(needed) : 1;
  const dim3 grid(static_cast<unsigned>((a.sequences + 1) * tiles), static_cast<unsigned>(a.heads));
  kKernel<<<grid, kInt8Threads, kBytes, cuda::stream_of(ctx)>>>(p, tiles);
  SAT_CUDA_LAUNCHED("attention_forward_int8_kernel");
}

}  // namespace

void attention_forward_int8_cuda(const Context& ctx, const Int8Problem& p) {
  const bool half = p.a.dtype == DType::f16;
  if (p.a.head_size == 64)
    half ? launch<__half, 64>(ctx, p) : launch<__nv_bfloat16, 64>(ctx, p);
  else
    half ? launch<__half, 128>(ctx, p) : launch<__nv_bfloat16, 128>(ctx, p);
}

}  // namespace saturate::kernels
