// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/bf16x6/bf16x6.h"

#include "kernels/attention/features.h"
#include "kernels/attention/impl.h"

namespace saturate::kernels {
namespace {

// 16-byte reads, 8-byte writes.
bool aligned(const void* p, int64_t stride) noexcept {
  return reinterpret_cast<uintptr_t>(p) % 16 == 0 && stride % 4 == 0;
}

}  // namespace

Fit attention_forward_bf16x6_fits(const Context& ctx, const AttentionArgs& a) noexcept {
  if (a.dtype != DType::f32) return {"dtype is not f32"};
  if (a.head_size != 32 && a.head_size != 64 && a.head_size != 128)
    return {"head size is none of 32, 64, 128"};
  if (!aligned(a.q, a.q_stride) || !aligned(a.k, a.k_stride) || !aligned(a.v, a.v_stride) ||
      !aligned(a.o, a.o_stride))
    return {"q, k, v or o is not aligned to 16 bytes, or its stride is no multiple of 4"};
  if (capability_of(ctx).major < 8) return {"the GPU is older than compute capability 8.0"};
  if (const Fit f = fits_features(a, kNoFeatures); !f) return f;
  return attention_fits_grid(a);
}

Fit attention_backward_bf16x6_fits(const Context& ctx, const AttentionBackwardArgs& b) noexcept {
  if (!aligned(b.d_o, b.forward.o_stride) || !aligned(b.d_q, b.d_q_stride) ||
      !aligned(b.d_k, b.d_k_stride) || !aligned(b.d_v, b.d_v_stride))
    return {"a gradient is not aligned to 16 bytes, or its stride is no multiple of 4"};
  return attention_forward_bf16x6_fits(ctx, b.forward);
}

void attention_forward_bf16x6_cuda(const Context& ctx, const AttentionArgs& a) {
  if (a.head_size == 32) return attention::launch_forward_bf16x6<32>(ctx, a);
  if (a.head_size == 64) return attention::launch_forward_bf16x6<64>(ctx, a);
  attention::launch_forward_bf16x6<128>(ctx, a);
}

void attention_backward_bf16x6_cuda(const Context& ctx, const AttentionBackwardArgs& b) {
  attention_backward_prepare_cuda(ctx, b);
  if (b.forward.sequences == 0) return;
  if (b.forward.head_size == 32) return attention::launch_backward_bf16x6<32>(ctx, b);
  if (b.forward.head_size == 64) return attention::launch_backward_bf16x6<64>(ctx, b);
  attention::launch_backward_bf16x6<128>(ctx, b);
}

}  // namespace saturate::kernels
