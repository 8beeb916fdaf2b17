// SPDX-License-Identifier: Apache-2.0
// The draw of token_draw.h. Include from *_cpu.cpp.
#pragma once
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/decode/token_draw.h"

namespace saturate::kernels {

// The first of the largest logits; -1 where none is a number.
template <class T>
int32_t likeliest_token(const T* z, int64_t vocab) {
  int32_t best = -1;
  for (int32_t id = 0; id < vocab; ++id) {
    if (best < 0 ? !std::isnan(z[id]) : z[id] > z[best]) best = id;
  }
  return best;
}

// `top`: the largest logit that is a number, finite.
template <class T>
int32_t draw_token(const T* z, int64_t vocab, T top, const TokenDraw& d, int32_t position) {
  struct Weighted {
    uint64_t sum;  // of the weights so far
    int32_t id;
  };
  std::vector<Weighted> tokens;
  for (int32_t id = 0; id < vocab; ++id) {
    if (!std::isnan(z[id])) tokens.push_back({0, id});
  }
  const auto before = [z](const Weighted& x, const Weighted& y) {
    return z[x.id] != z[y.id] ? z[x.id] > z[y.id] : x.id < y.id;
  };
  const auto kept =
      d.top_k > 0 ? std::min<size_t>(tokens.size(), static_cast<size_t>(d.top_k)) : tokens.size();
  std::partial_sort(tokens.begin(), tokens.begin() + static_cast<int64_t>(kept), tokens.end(),
                    before);
  uint64_t sum = 0, likely = 0;
  for (size_t i = 0; i < kept; ++i) {
    const T weight = std::exp((z[tokens[i].id] - top) / static_cast<T>(d.temperature));
    const auto whole = static_cast<uint64_t>(weight * static_cast<T>(kWeightOne));
    sum += whole;
    if (whole >= least_weight(d.min_p)) likely = sum;
    tokens[i].sum = sum;
  }
  const auto reaches = [&](uint64_t target) {
    return std::partition_point(tokens.begin(), tokens.begin() + static_cast<int64_t>(kept),
                                [target](const Weighted& w) { return w.sum < target; });
  };
  if (d.top_p < 1.0f) sum = reaches(share_target(d.top_p, sum))->sum;
  sum = std::min(sum, likely);
  return reaches(draw_target(d, position, sum))->id;
}

}  // namespace saturate::kernels
