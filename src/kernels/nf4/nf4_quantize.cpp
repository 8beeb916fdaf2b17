// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <vector>

#include "base/error.h"
#include "kernels/nf4/nf4_impl.h"
#include "runtime/parallel_for.h"

namespace saturate::kernels {
namespace {

constexpr int64_t kBlocksAtOnce = 256;  // by one thread

// Between neighbours; what lies on one belongs to the lower value.
constexpr auto kBounds = [] {
  std::array<float, 15> bounds{};
  for (size_t i = 0; i < bounds.size(); ++i) bounds[i] = (kNf4Values[i] + kNf4Values[i + 1]) / 2;
  return bounds;
}();

uint8_t code_of(float x) {
  uint8_t code = 0;
  for (const float bound : kBounds) code = static_cast<uint8_t>(code + (x > bound));
  return code;
}

}  // namespace

void nf4_quantize(const float* w, int64_t count, void* held) {
  const Nf4Layout layout(count);
  auto* const bytes = static_cast<uint8_t*>(held);
  auto* const group_scales = static_cast<float*>(held);
  uint8_t* const codes = bytes + layout.codes_at();
  std::fill_n(bytes, layout.bytes(), uint8_t{0});
  std::vector<float> scales(static_cast<size_t>(layout.blocks()));
  parallel_for(layout.blocks(), kBlocksAtOnce, [&](int64_t first, int64_t last) {
    for (int64_t b = first; b < last; ++b) {
      const int64_t begin = b * kNf4Block, end = std::min(count, begin + kNf4Block);
      float largest = 0, sum = 0;
      for (int64_t i = begin; i < end; ++i) {
        largest = std::max(largest, std::abs(w[i]));
        sum += w[i] * 0.0f;  // not zero where a weight is not finite
      }
      scales[static_cast<size_t>(b)] = sum == 0.0f ? largest : NAN;
      const float inverse = 1.0f / std::max(largest, 1e-38f);
      for (int64_t i = begin; i < end; ++i) {
        const uint8_t code = code_of(w[i] * inverse);
        codes[i / 2] = static_cast<uint8_t>(codes[i / 2] | (i % 2 == 0 ? code << 4 : code));
      }
    }
  });
  double sum = 0;
  for (const float s : scales) sum += s;
  if (!std::isfinite(sum)) {
    throw Error(Errc::invalid_argument, "nf4",
                "a weight is not finite, so no scale of 4-bit codes holds it; take a model whose "
                "weights are finite");
  }
  const auto mean = static_cast<float>(sum / static_cast<double>(layout.blocks()));
  group_scales[layout.groups()] = mean;
  const float* const table = nf4_scale_table().values;
  for (int64_t g = 0; g < layout.groups(); ++g) {
    const int64_t begin = g * kNf4Group, end = std::min(layout.blocks(), begin + kNf4Group);
    float largest = 0;
    for (int64_t b = begin; b < end; ++b)
      largest = std::max(largest, std::abs(scales[static_cast<size_t>(b)] - mean));
    group_scales[g] = largest;
    const float inverse = 1.0f / std::max(largest, 1e-38f);
    for (int64_t b = begin; b < end; ++b) {
      const float x = (scales[static_cast<size_t>(b)] - mean) * inverse;
      bytes[layout.scales_at() + b] = encode_signed(table, x, kNearest);
    }
  }
}

}  // namespace saturate::kernels
