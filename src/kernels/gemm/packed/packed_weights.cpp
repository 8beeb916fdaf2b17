// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/gemm/packed/packed_block.h"
#include "kernels/gemm/packed/packed_linear.h"
#include "runtime/parallel_for.h"

namespace saturate::kernels {
namespace {

using packed::kLine;
using packed::kPanel;

// Column `column` of its panel, which begins at `panel`.
void pack_f32(const float* w, int64_t k, int64_t column, char* panel) {
  auto* const to = reinterpret_cast<float*>(panel) + column;
  for (int64_t i = 0; i < k; ++i) to[i * kPanel] = w[i];
}

struct Rounded {
  float scale;
  int32_t offset;
};
Rounded pack_s8(const float* w, int64_t k, int64_t column, char* panel) {
  float most = 0;
  for (int64_t i = 0; i < k; ++i) most = std::max(most, std::abs(w[i]));
  const float scale = most / 127.0f;
  if (!(scale >= 1.17549435e-38f)) return {0.0f, 0};  // all zeros, or too small to divide by
  int32_t sum = 0;
  for (int64_t i = 0; i < k; ++i) {
    const auto q = static_cast<int8_t>(
        std::clamp<int32_t>(static_cast<int32_t>(std::nearbyint(w[i] / scale)), -127, 127));
    sum += q;
    panel[i / 4 * kLine + column * 4 + i % 4] = static_cast<char>(q);
  }
  return {scale, 128 * sum};
}

}  // namespace

PackedWeights::PackedWeights(PackedType type, const float* w, int64_t n, int64_t k) {
  if (n < 1 || k < 1) {
    throw Error(Errc::invalid_argument, "pack",
                fmt::format("weights are ({}, {}); both must be at least 1", n, k));
  }
  const bool s8 = type == PackedType::s8;
  const int64_t panels = (n + kPanel - 1) / kPanel, steps = s8 ? (k + 3) / 4 : k;
  const int64_t panel_bytes = steps * kLine, padded = panels * kPanel;
  const int64_t constants = s8 ? padded * 8 : 0;
  memory_ = Buffer({}, static_cast<size_t>(panels * panel_bytes + constants));
  std::memset(memory_.data(), 0, memory_.bytes());
  char* const data = memory_.as<char>();
  auto* const scales = reinterpret_cast<float*>(data + panels * panel_bytes);
  auto* const offsets = reinterpret_cast<int32_t*>(scales + padded);
  parallel_for(n, std::max<int64_t>(1, 65536 / k), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      char* const panel = data + i / kPanel * panel_bytes;
      if (!s8) {
        pack_f32(w + i * k, k, i % kPanel, panel);
        continue;
      }
      const Rounded r = pack_s8(w + i * k, k, i % kPanel, panel);
      scales[i] = r.scale, offsets[i] = r.offset;
    }
  });
  view_ = {.type = type,
           .n = n,
           .k = k,
           .panels = data,
           .scales = s8 ? scales : nullptr,
           .offsets = s8 ? offsets : nullptr};
}

CpuLevel cpu_level() noexcept {
#if defined(__x86_64__)
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return CpuLevel::plain;
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512dq")) {
    return CpuLevel::avx2;
  }
  return __builtin_cpu_supports("avx512vnni") ? CpuLevel::vnni : CpuLevel::avx512;
#else
  return CpuLevel::plain;
#endif
}

}  // namespace saturate::kernels
