// SPDX-License-Identifier: Apache-2.0
// What cached_attention.cpp shares with the implementations.
#pragma once
#include "kernels/decode/cached_attention.h"

namespace saturate::kernels {

constexpr int64_t kMaxCachedHeadSize = 256;

void cached_attention_cpu(const Context& ctx, const CachedAttentionArgs& args);
void cached_attention_cuda(const Context& ctx, const CachedAttentionArgs& args);

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
