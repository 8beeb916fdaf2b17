// SPDX-License-Identifier: Apache-2.0
#include "kernels/gemm/packed/packed_outputs.h"

#include <algorithm>
#include <cstring>

#include "kernels/gemm/packed/packed_block.h"

namespace saturate::kernels {

using packed::kLine;
using packed::kPanel;

namespace {

int64_t lines_of(const PackedView& w) {
  const int64_t each = w.type == PackedType::f32 ? 1 : w.type == PackedType::bf16 ? 2 : 4;
  return (w.k + each - 1) / each;
}

}  // namespace

// A line of a panel has four bytes of each of its outputs.
PackedOutputs::PackedOutputs(const PackedView& all, std::span<const int32_t> outputs) {
  const auto n = static_cast<int64_t>(outputs.size());
  const bool s8 = all.type == PackedType::s8;
  const int64_t padded = (n + kPanel - 1) / kPanel * kPanel, lines = lines_of(all);
  const int64_t panels = padded / kPanel * lines * kLine;
  memory_ = Buffer({}, static_cast<size_t>(panels + (s8 ? padded * 8 : 0)));
  char* to = memory_.as<char>();
  view_ = {.type = all.type, .n = n, .k = all.k, .panels = to};
  constexpr int64_t kLane = kLine / kPanel;
  for (int64_t first = 0; first < n; first += kPanel) {
    const int64_t count = std::min(kPanel, n - first);
    const char* from[kPanel];
    for (int64_t r = 0; r < count; ++r) {
      const int64_t output = outputs[static_cast<size_t>(first + r)];
      from[r] = all.panels + output / kPanel * lines * kLine + output % kPanel * kLane;
    }
    for (int64_t i = 0; i < lines; ++i, to += kLine) {
      for (int64_t r = 0; r < count; ++r) std::memcpy(to + r * kLane, from[r] + i * kLine, kLane);
      std::memset(to + count * kLane, 0, static_cast<size_t>((kPanel - count) * kLane));
    }
  }
  if (!s8) return;
  auto* const scales = reinterpret_cast<float*>(to);
  auto* const offsets = reinterpret_cast<int32_t*>(scales + padded);
  for (int64_t i = 0; i < padded; ++i) {
    const bool is_output = i < n;
    const int32_t output = is_output ? outputs[static_cast<size_t>(i)] : 0;
    scales[i] = is_output ? all.scales[output] : 0.0f;
    offsets[i] = is_output ? all.offsets[output] : 0;
  }
  view_.scales = scales;
  view_.offsets = offsets;
}

}  // namespace saturate::kernels
