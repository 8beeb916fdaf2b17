// SPDX-License-Identifier: Apache-2.0
// What cached_attention.cpp shares with the implementations.
#pragma once
#include "kernels/decode/cached_attention.h"

namespace saturate::kernels {

constexpr int64_t kMaxCachedHeadSize = 256;

void cached_attention_cpu(const Context& ctx, const CachedAttentionArgs& args);
// f32, with the bits of cached_attention_cpu().
void cached_attention_avx512_cpu(const Context& ctx, const CachedAttentionArgs& args);
void cached_attention_cuda(const Context& ctx, const CachedAttentionArgs& args);
// By tensor cores: 16-bit types, head_size 64 or 128, compute capability 8.0.
void cached_attention_mma_cuda(const Context& ctx, const CachedAttentionArgs& args);
// o from the `count` parts of each row and head in ctx.workspace, in their order.
void cached_attention_join_cuda(const Context& ctx, const CachedAttentionArgs& args, int count);

// Query heads of one key head that a warp takes together: the rows of half a fragment.
constexpr int64_t kMmaQueries = 8;
inline int64_t mma_bundles(const CachedAttentionArgs& a) {
  return (a.heads / a.kv_heads + kMmaQueries - 1) / kMmaQueries;
}
// Blocks that share the positions of each: by sizes, the device and the room in the workspace.
int mma_splits(const Context& ctx, const CachedAttentionArgs& args);

// Positions up to which a warp is enough for a row and head, where these fill the device.
constexpr int64_t kShortHistory = 256;

// Parts of each row and head that the workspace holds.
int64_t room_for_parts(const Context& ctx, const CachedAttentionArgs& args);

// Reading shared positions once takes two more launches: below this it costs more than it saves
// (one H200, bf16, 5 beams: 27 against 12 us at 128 positions; 4 beams: 133 against 152 us at
// 4096).
constexpr int64_t kLeastShared = 1024;
// Whether what a group shares may be read once, where there is room for its parts.
inline bool may_share_prefix(const CachedAttentionArgs& a) {
  return a.window == 0 && a.soft_cap == 0.0f && a.bias == nullptr &&
         a.shared_positions != nullptr && a.max_positions >= kLeastShared;
}

// The positions that the rows of a group share, read once for kPrefixQueries queries: writes parts
// first_part .. first_part + splits of each row and head, of first_part + splits in all.
constexpr int64_t kPrefixQueries = 4;
void cached_attention_prefix_cuda(const Context& ctx, const CachedAttentionArgs& args, float* parts,
                                  int first_part, int splits);
// Its blocks for one split: groups x key heads x bundles of queries.
inline int64_t prefix_blocks(const CachedAttentionArgs& a) {
  const int64_t queries = a.group_rows * (a.heads / a.kv_heads);
  return a.rows / a.group_rows * a.kv_heads * ((queries + kPrefixQueries - 1) / kPrefixQueries);
}

}  // namespace saturate::kernels
