// SPDX-License-Identifier: Apache-2.0
#include "ops/arena_plan.h"

#include <algorithm>
#include <numeric>

namespace saturate {
namespace {
constexpr size_t kAlignment = 256;
size_t round_up(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }
}  // namespace

ArenaPlan plan_arena(const std::vector<size_t>& bytes,
                     const std::function<bool(size_t, size_t)>& meet) {
  std::vector<size_t> by_size(bytes.size());
  std::iota(by_size.begin(), by_size.end(), size_t{0});
  std::stable_sort(by_size.begin(), by_size.end(),
                   [&](size_t a, size_t b) { return bytes[a] > bytes[b]; });

  ArenaPlan plan;
  plan.offsets.assign(bytes.size(), 0);
  std::vector<size_t> given;  // kept sorted by offset
  for (size_t r : by_size) {
    const size_t size = round_up(bytes[r]);
    size_t offset = 0;
    for (size_t other : given) {
      const auto begin = static_cast<size_t>(plan.offsets[other]);
      const size_t end = begin + round_up(bytes[other]);
      if (end <= offset || !meet(other, r)) continue;
      if (offset + size <= begin) break;
      offset = end;
    }
    plan.offsets[r] = static_cast<int64_t>(offset);
    plan.bytes = std::max(plan.bytes, offset + size);
    const auto at = std::upper_bound(given.begin(), given.end(), r, [&](size_t a, size_t b) {
      return plan.offsets[a] < plan.offsets[b];
    });
    given.insert(at, r);
  }
  return plan;
}

}  // namespace saturate
