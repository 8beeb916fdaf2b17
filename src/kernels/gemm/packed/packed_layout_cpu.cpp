// SPDX-License-Identifier: Apache-2.0
// Weights laid out in panels (packed_linear.h).
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/gemm/packed/packed_bf16_value.h"
#include "kernels/gemm/packed/packed_block.h"
#include "kernels/gemm/packed/packed_impl.h"

namespace saturate::kernels::packed {
namespace {

// The largest |w| of finite numbers, whose bits have the order of their sizes.
float largest(const float* w, int64_t k) {
  int32_t most = 0;
  for (int64_t i = 0; i < k; ++i) {
    int32_t bits;
    std::memcpy(&bits, w + i, sizeof(bits));
    most = std::max(most, bits & 0x7fffffff);
  }
  return std::bit_cast<float>(most);
}

// q of one row; returns their sum. A quotient lies within 127, so adding 1.5 * 2^23 leaves its nearest
// integer in the low bits.
int32_t round_row(const float* w, int64_t k, float scale, int8_t* q) {
  constexpr float kRound = 12582912.0f;
  int32_t sum = 0;
  for (int64_t i = 0; i < k; ++i) {
    const int32_t near =
        std::bit_cast<int32_t>(w[i] / scale + kRound) - std::bit_cast<int32_t>(kRound);
    const int32_t in = std::clamp(near, -127, 127);
    q[i] = static_cast<int8_t>(in);
    sum += in;
  }
  return sum;
}

}  // namespace

void pack_panel_f32(const float* w, int64_t rows, int64_t k, char* panel) {
  auto* const to = reinterpret_cast<float*>(panel);
  // Squares, so that what is read of each row is used before it leaves the cache.
  for (int64_t i = 0; i < k; i += kPanel) {
    const int64_t count = std::min(kPanel, k - i);
    float square[kPanel][kPanel];
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < count; ++c) square[c][r] = w[r * k + i + c];
    }
    for (int64_t c = 0; c < count; ++c) {
      std::copy_n(square[c], rows, to + (i + c) * kPanel);
    }
  }
}

void pack_panel_bf16(const float* w, int64_t rows, int64_t k, char* panel) {
  auto* const to = reinterpret_cast<uint32_t*>(panel);
  constexpr int64_t kSquare = 2 * kPanel;
  for (int64_t i = 0; i < k; i += kSquare) {
    const int64_t pairs = (std::min(kSquare, k - i) + 1) / 2;
    uint32_t square[kPanel][kPanel];
    for (int64_t r = 0; r < rows; ++r) {
      const float* const from = w + r * k + i;
      const bool odd = i + 2 * pairs > k;
      for (int64_t s = 0; s < pairs; ++s) {
        const float second = odd && s + 1 == pairs ? 0.0f : from[2 * s + 1];
        square[s][r] = static_cast<uint32_t>(bf16_bits(from[2 * s])) << 16 | bf16_bits(second);
      }
    }
    for (int64_t s = 0; s < pairs; ++s) {
      std::copy_n(square[s], rows, to + (i / 2 + s) * kPanel);
    }
  }
}

void pack_panel_s8(const float* w, int64_t rows, int64_t k, char* panel, float* scales,
                   int32_t* offsets) {
  const int64_t steps = (k + 3) / 4;
  std::vector<int8_t> q(static_cast<size_t>(kPanel * steps * 4));
  for (int64_t r = 0; r < rows; ++r) {
    const float scale = largest(w + r * k, k) / 127.0f;
    scales[r] = 0, offsets[r] = 0;
    if (!(scale >= 1.17549435e-38f)) continue;  // all zeros, or too small to divide by
    scales[r] = scale;
    offsets[r] = 128 * round_row(w + r * k, k, scale, q.data() + r * steps * 4);
  }
  for (int64_t s = 0; s < steps; ++s) {
    for (int64_t r = 0; r < kPanel; ++r) {
      std::memcpy(panel + s * kLine + r * 4, q.data() + (r * steps + s) * 4, 4);
    }
  }
}

}  // namespace saturate::kernels::packed
