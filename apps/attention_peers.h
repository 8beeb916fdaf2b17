// SPDX-License-Identifier: Apache-2.0
// Times of other implementations, as bench/peers/pytorch_attention.py writes them, for the table of
// `saturate bench attention --ladder --peers FILE`.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.h"

namespace saturate::apps {

struct AttentionPeer {
  std::string name;  // "eager", "cudnn", ...
  DType type = DType::f32;
  int64_t batch = 0, heads = 0, length = 0, head_size = 0;
  bool causal = false;
  double forward_ms = 0, backward_ms = 0;  // 0: not measured
};

// Every peer of a file of JSON lines; Saturate's own lines and those about something else are left
// out. The last of several lines about the same holds. Errors: io; invalid_argument, with the
// line's number.
std::vector<AttentionPeer> read_attention_peers(const std::string& path);

}  // namespace saturate::apps
