// SPDX-License-Identifier: Apache-2.0
// What linear_attention.cpp shares with the implementations.
#pragma once
#include "model/mixers/linear_attention/linear_attention.h"

namespace saturate::model {

constexpr int64_t kLinearAttentionChunk = 16;  // tokens that a CUDA block takes at once

// Shared memory of a block: the state, two tiles of features, two of values, two of scores.
constexpr int64_t linear_attention_shared_bytes(int64_t head_size) noexcept {
  const int64_t tiles = 2 * head_size + 2 * (head_size + 1) + 2 * kLinearAttentionChunk;
  return (head_size * (head_size + 1) + kLinearAttentionChunk * tiles) *
         static_cast<int64_t>(sizeof(float));
}
// What a block of this device may have; 0 when the driver does not say.
int64_t linear_attention_cuda_room(Device device) noexcept;

void linear_attention_forward_cpu(const Context& ctx, const LinearAttentionArgs& args);
void linear_attention_backward_cpu(const Context& ctx, const LinearAttentionBackwardArgs& args);
void linear_attention_step_cpu(const Context& ctx, const LinearAttentionStepArgs& args);
void linear_attention_forward_cuda(const Context& ctx, const LinearAttentionArgs& args);
void linear_attention_backward_cuda(const Context& ctx, const LinearAttentionBackwardArgs& args);
void linear_attention_step_cuda(const Context& ctx, const LinearAttentionStepArgs& args);

}  // namespace saturate::model
