// SPDX-License-Identifier: Apache-2.0
#include "model/finite.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

namespace saturate::model {
namespace {

// An exponent of all ones, infinity or not a number, and no other carries into the top bit.
uint32_t carry(float v) { return (std::bit_cast<uint32_t>(v) & 0x7F800000u) + 0x00800000u; }
bool is_finite(uint32_t carries) { return carries >> 31 == 0; }

}  // namespace

NonFiniteScores::NonFiniteScores(const std::string& op)
    : Error(
          Errc::invalid_argument, op,
          "the model's scores are not finite: its weights, or what is computed from them, are too "
          "large; take a checkpoint from before training diverged, or try --precision fp32") {}

size_t first_not_finite(std::span<const float> values) noexcept {
  // Blocks without an exit inside, so that the compiler makes vector code of them.
  constexpr size_t kBlock = 4096;
  for (size_t first = 0; first < values.size(); first += kBlock) {
    const auto block = values.subspan(first, std::min(kBlock, values.size() - first));
    uint32_t carries = 0;
    for (const float v : block) carries |= carry(v);
    if (is_finite(carries)) continue;
    size_t i = 0;
    while (is_finite(carry(block[i]))) ++i;
    return first + i;
  }
  return values.size();
}

size_t first_not_finite(DType type, const void* values, size_t count) noexcept {
  if (type != DType::f64) return first_not_finite({static_cast<const float*>(values), count});
  const std::span doubles(static_cast<const double*>(values), count);
  const auto at = std::ranges::find_if_not(doubles, [](double v) { return std::isfinite(v); });
  return static_cast<size_t>(at - doubles.begin());
}

void require_finite(const std::string& parameter, DType type, const void* values, size_t count) {
  const size_t at = first_not_finite(type, values, count);
  if (at == count) return;
  const double value = type == DType::f64 ? static_cast<const double*>(values)[at]
                                          : static_cast<const float*>(values)[at];
  throw Error(
      Errc::invalid_argument, "save",
      fmt::format("the weights are no longer finite ({} holds {}): training diverged; go on "
                  "from a checkpoint before that with --resume and a lower optimizer.lr or "
                  "optimizer.clip_norm",
                  parameter, value));
}

}  // namespace saturate::model
