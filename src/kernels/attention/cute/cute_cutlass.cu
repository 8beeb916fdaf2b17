// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/cute/cute.h"
#include "kernels/attention/cute/forward.cuh"

namespace saturate::kernels {
namespace {

template <int kD>
void launch(const Context& ctx, const AttentionArgs& a) {
  using namespace attention;
  if (a.dtype == DType::f16)
    launch_forward_cute<cutlass::half_t, kD>(a, cuda::stream_of(ctx));
  else
    launch_forward_cute<cutlass::bfloat16_t, kD>(a, cuda::stream_of(ctx));
}

}  // namespace

Fit attention_cute_is_built() noexcept { return {}; }
void attention_forward_cute_d64(const Context& ctx, const AttentionArgs& a) { launch<64>(ctx, a); }
void attention_forward_cute_d128(const Context& ctx, const AttentionArgs& a) {
  launch<128>(ctx, a);
}

}  // namespace saturate::kernels
