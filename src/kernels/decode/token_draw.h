// SPDX-License-Identifier: Apache-2.0
// How a token is drawn from a row of logits: what sample_step() and beam_step() share.
#pragma once
#include <cstdint>

#include "base/philox.h"

namespace saturate::kernels {

// Tokens in order of falling logit, smaller id first; weight floor(2^32 e^((z - top) / T)). Sums of
// weights are integers, so the order of summing does not matter. Of softmax(logits / temperature)
// stay the top_k likeliest, of these the smallest set of the likeliest with a share of at least
// top_p, and of these the tokens with a weight of at least min_p times the largest. The token is the first whose running sum exceeds W x / 2^32, W the sum of those kept and x
// the first number of random_block(seed, stream, kSampleOp + sample, position): a function of these
// four, whatever else is computed.
//
// Source  Fan et al., arXiv:1805.04833 (top_k); Holtzman et al., arXiv:1904.09751 (top_p); Nguyen et
//         al., arXiv:2407.01082 (min_p).
struct TokenDraw {
  uint64_t seed = 0;
  int32_t stream = 0;        // which of the seed's random numbers,
  int32_t sample = 0;        // and which of the stream's samples
  float temperature = 1.0f;  // positive
  float top_p = 1.0f;        // in (0, 1]; 1: all
  int32_t top_k = 0;         // 0: all
  float min_p = 0.0f;        // in [0, 1]; 0: all
};

constexpr uint32_t kSampleOp = 0x53414D;     // apart from the operations of a training step
constexpr float kWeightOne = 4294967296.0f;  // 2^32

// Implementations put tokens into bins by how far their logit lies below the largest: bins are in
// order of rank, so running sums over them tell which one holds a token. The last one begins 22.7
// temperatures below: what lies there weighs nothing.
constexpr int kDrawBins = 2048;
constexpr float kDrawBinsPerNat = 90.0f;

// The running sum that the drawn token is the first to reach: 1 + floor(total * x / 2^32).
SAT_HD uint64_t draw_target(const TokenDraw& d, int32_t position, uint64_t total) {
  const uint64_t x =
      random_block(d.seed, static_cast<uint32_t>(d.stream),
                   kSampleOp + static_cast<uint32_t>(d.sample), static_cast<uint32_t>(position))
          .x[0];
  return 1 + (total >> 32) * x + ((total & 0xFFFFFFFFu) * x >> 32);
}

// The least weight that min_p leaves.
SAT_HD uint64_t least_weight(float min_p) { return static_cast<uint64_t>(min_p * kWeightOne); }

// The running sum that ends the set of top_p: at least 1, at most total.
SAT_HD uint64_t share_target(float top_p, uint64_t total) {
  const double share = static_cast<double>(top_p) * static_cast<double>(total);
  const uint64_t floor = static_cast<uint64_t>(share);
  const uint64_t target = floor + (static_cast<double>(floor) < share ? 1 : 0);
  return target < 1 ? 1 : target > total ? total : target;
}

}  // namespace saturate::kernels
