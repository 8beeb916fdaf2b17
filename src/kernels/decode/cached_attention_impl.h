// SPDX-License-Identifier: Apache-2.0
// What cached_attention.cpp shares with the implementations.
#pragma once
#include "kernels/decode/cached_attention.h"

namespace saturate::kernels {

constexpr int64_t kMaxCachedHeadSize = 256;

void cached_attention_cpu(const Context& ctx, const CachedAttentionArgs& args);
void cached_attention_cuda(const Context& ctx, const CachedAttentionArgs& args);

}  // namespace saturate::kernels
