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

// A row of logits in the bins of token_draw.h; only the tokens of one bin are sorted. `top`: the largest logit that is a number, finite. Cost: a pass, and one for each select().
template <class T>
class DrawBins {
 public:
  struct Selected {
    int32_t id;
    uint64_t sum;  // of the weights up to and with it
  };
  struct Target {  // of the running sums; 0: not looked for
    uint64_t count = 0, weight = 0;
  };

  DrawBins(const T* z, int64_t vocab, T top, const TokenDraw& d)
      : z_(z), vocab_(static_cast<int32_t>(vocab)), top_(top), draw_(d), bins_(kDrawBins) {
    for (int32_t id = 0; id < vocab_; ++id) {
      if (std::isnan(z_[id])) continue;
      const uint64_t weight = weight_of(id);
      Bin& bin = bins_[bin_of(id)];
      bin.weight += weight;
      ++bin.count;
      all_.weight += weight;
      ++all_.count;
      if (weight >= least_weight(d.min_p)) likely_ += weight;
    }
  }
  uint64_t count() const { return all_.count; }
  uint64_t weight() const { return all_.weight; }
  uint64_t likely() const { return likely_; }  // weight of those that min_p leaves

  // The first token in order of rank with which the running count or weight reaches the target,
  // which is at most that of the row.
  Selected select(const Target& target) const {
    Bin before;
    size_t found = 0;
    for (; !reached(target, before.count + bins_[found].count, before.weight + bins_[found].weight);
         ++found) {
      before.count += bins_[found].count;
      before.weight += bins_[found].weight;
    }
    std::vector<int32_t> ids;
    ids.reserve(bins_[found].count);
    for (int32_t id = 0; id < vocab_; ++id)
      if (!std::isnan(z_[id]) && bin_of(id) == found) ids.push_back(id);
    std::sort(ids.begin(), ids.end(),
              [this](int32_t x, int32_t y) { return z_[x] != z_[y] ? z_[x] > z_[y] : x < y; });
    for (const int32_t id : ids) {
      ++before.count;
      before.weight += weight_of(id);
      if (reached(target, before.count, before.weight)) return {id, before.weight};
    }
    return {ids.back(), before.weight};
  }

 private:
  struct Bin {
    uint64_t weight = 0, count = 0;
  };
  static bool reached(const Target& t, uint64_t count, uint64_t weight) {
    return (t.count > 0 && count >= t.count) || (t.weight > 0 && weight >= t.weight);
  }
  uint64_t weight_of(int32_t id) const {
    const T share = std::exp((z_[id] - top_) / static_cast<T>(draw_.temperature));
    return static_cast<uint64_t>(share * static_cast<T>(kWeightOne));
  }
  size_t bin_of(int32_t id) const {
    const T below =
        (top_ - z_[id]) / static_cast<T>(draw_.temperature) * static_cast<T>(kDrawBinsPerNat);
    return static_cast<size_t>(std::min(below, static_cast<T>(kDrawBins - 1)));
  }

  const T* z_;
  int32_t vocab_;
  T top_;
  TokenDraw draw_;
  std::vector<Bin> bins_;
  Bin all_;
  uint64_t likely_ = 0;
};

// `top` as above.
template <class T>
int32_t draw_token(const T* z, int64_t vocab, T top, const TokenDraw& d, int32_t position) {
  const DrawBins<T> bins(z, vocab, top, d);
  uint64_t sum = bins.weight();
  if (d.top_k > 0 && static_cast<uint64_t>(d.top_k) < bins.count())
    sum = bins.select({.count = static_cast<uint64_t>(d.top_k)}).sum;
  if (d.top_p < 1.0f) sum = bins.select({.weight = share_target(d.top_p, sum)}).sum;
  if (d.min_p > 0.0f) sum = std::min(sum, bins.likely());  // both are sums over the likeliest
  return bins.select({.weight = draw_target(d, position, sum)}).id;
}

}  // namespace saturate::kernels
