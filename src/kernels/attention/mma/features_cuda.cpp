// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/mma/features.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/attention/features.h"
#include "kernels/attention/mma/instances.h"
#include "kernels/attention/plain/plain.h"

namespace saturate::kernels {
namespace attention {

// Defined in a source for each of the list's sizes and types.
template <class T, int kD, int kV, uint32_t kMay>
void launch_forward_features(const Context& ctx, const AttentionArgs& a);
template <class T, int kD, int kV, uint32_t kMay>
void launch_backward_features(const Context& ctx, const AttentionBackwardArgs& b);
template <class T, int kD, int kV, uint32_t kMay>
void launch_bias_features(const Context& ctx, const AttentionBackwardArgs& b);

}  // namespace attention

namespace {

struct Instance {
  int head, value;
  uint32_t may;

  bool has(const AttentionArgs& a) const noexcept {
    const uint32_t needs = features_of(a) | (a.dropout > 0.0f ? attention::kMayDrop : 0);
    return a.head_size <= head && attention_v_head_size(a) <= value && (needs & ~may) == 0;
  }
};

// The first of the list that has what the call needs; null: the heads are too wide.
const Instance* instance_of(const AttentionArgs& a) noexcept {
  using namespace attention;
#define SAT_INSTANCE(head, value, set) {head, value, set},
  static constexpr Instance kInstances[] = {SAT_ATTENTION_INSTANCES(SAT_INSTANCE)};
#undef SAT_INSTANCE
  for (const Instance& i : kInstances)
    if (i.has(a)) return &i;
  return nullptr;
}

// Calls launch<T, head, value, set>() for the first instance of the list that has what the call needs.
template <class Launch>
void with_instance(const AttentionArgs& a, const Launch& launch) {
  using namespace attention;
#define SAT_LAUNCH(head, value, set)                                                      \
  if (Instance{head, value, set}.has(a))                                                  \
    return a.dtype == DType::f16 ? launch.template operator()<__half, head, value, set>() \
                                 : launch.template operator()<__nv_bfloat16, head, value, set>();
  SAT_ATTENTION_INSTANCES(SAT_LAUNCH)
#undef SAT_LAUNCH
}

// What both directions need; `bytes_of` says how much shared memory an instance takes.
Fit fits(const Context& ctx, const AttentionArgs& a, int (*bytes_of)(int, int)) noexcept {
  if (a.dtype != DType::bf16 && a.dtype != DType::f16)
    return {"dtype is neither bf16 nor f16 (tensor-core operands)"};
  if (a.head_size % 8 != 0 || attention_v_head_size(a) % 8 != 0)
    return {"a head size is no multiple of 8"};
  if (a.rotary_base > 0.0f && a.head_size % 16 != 0)
    return {"fused rotary positions need a head size that is a multiple of 16"};
  const Instance* instance = instance_of(a);
  if (instance == nullptr) return {"a head size is above 256"};
  if (!attention_rows_aligned(a.q, a.q_stride) || !attention_rows_aligned(a.k, a.k_stride) ||
      !attention_rows_aligned(a.v, a.v_stride) || !attention_rows_aligned(a.o, a.o_stride))
    return {"q, k, v or o is not aligned to 16 bytes, or its stride is no multiple of 8"};
  if (capability_of(ctx).major < 8) return {"the GPU is older than compute capability 8.0"};
  if (capability_of(ctx).shared_bytes < bytes_of(instance->head, instance->value))
    return {"the GPU has too little shared memory for heads this wide"};
  return attention_fits_grid(a);
}

}  // namespace

void attention_forward_features_cuda(const Context& ctx, const AttentionArgs& a) {
  with_instance(a, [&]<class T, int kD, int kV, uint32_t kMay>() {
    attention::launch_forward_features<T, kD, kV, kMay>(ctx, a);
  });
}

void attention_backward_features_cuda(const Context& ctx, const AttentionBackwardArgs& b) {
  const AttentionArgs& a = b.forward;
  attention_backward_prepare_cuda(ctx, b);
  if (b.d_sinks) attention::backward_plain_sinks(ctx, b);
  if (b.d_bias)
    with_instance(a, [&]<class T, int kD, int kV, uint32_t kMay>() {
      if constexpr ((kMay & kFeatureBias) != 0)
        attention::launch_bias_features<T, kD, kV, kMay>(ctx, b);
    });
  if (a.sequences > 0)
    with_instance(a, [&]<class T, int kD, int kV, uint32_t kMay>() {
      attention::launch_backward_features<T, kD, kV, kMay>(ctx, b);
    });
  if (b.d_alibi_slopes) attention::backward_plain_slopes(ctx, b);
}

Fit attention_features_fit(const Context& ctx, const AttentionArgs& a) noexcept {
  return fits(ctx, a, attention::forward_bytes);
}

Fit attention_backward_features_fit(const Context& ctx, const AttentionBackwardArgs& b) noexcept {
  if (!attention_rows_aligned(b.d_o, b.forward.o_stride) ||
      !attention_rows_aligned(b.d_q, b.d_q_stride) ||
      !attention_rows_aligned(b.d_k, b.d_k_stride) || !attention_rows_aligned(b.d_v, b.d_v_stride))
    return {"a gradient is not aligned to 16 bytes, or its stride is no multiple of 8"};
  if (const Fit f = attention_fits_bias_gradient(b); !f) return f;
  return fits(ctx, b.forward, [](int head, int value) {
    return attention::backward_bytes(head, value, attention::kOwnRows);
  });
}

}  // namespace saturate::kernels
