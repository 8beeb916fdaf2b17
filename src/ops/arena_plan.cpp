// SPDX-License-Identifier: Apache-2.0
#include "ops/arena_plan.h"

#include <algorithm>
#include <map>
#include <numeric>

namespace saturate {
namespace {
constexpr size_t kAlignment = 256;
size_t round_up(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }
}  // namespace

ArenaPlan plan_arena(const std::vector<ArenaRequest>& requests) {
  std::vector<size_t> by_size(requests.size());
  std::iota(by_size.begin(), by_size.end(), size_t{0});
  std::stable_sort(by_size.begin(), by_size.end(),
                   [&](size_t a, size_t b) { return requests[a].bytes > requests[b].bytes; });

  ArenaPlan plan;
  plan.offsets.assign(requests.size(), 0);
  std::vector<size_t> placed;  // kept sorted by offset
  for (size_t r : by_size) {
    const size_t bytes = round_up(requests[r].bytes);
    size_t offset = 0;
    for (size_t other : placed) {
      if (requests[other].last < requests[r].first || requests[other].first > requests[r].last)
        continue;
      const auto begin = static_cast<size_t>(plan.offsets[other]);
      if (offset + bytes <= begin) break;
      offset = std::max(offset, begin + round_up(requests[other].bytes));
    }
    plan.offsets[r] = static_cast<int64_t>(offset);
    plan.bytes = std::max(plan.bytes, offset + bytes);
    const auto at = std::upper_bound(placed.begin(), placed.end(), r, [&](size_t a, size_t b) {
      return plan.offsets[a] < plan.offsets[b];
    });
    placed.insert(at, r);
  }
  return plan;
}

size_t arena_lower_bound(const std::vector<ArenaRequest>& requests) {
  std::map<int64_t, int64_t> change;
  for (const ArenaRequest& r : requests) {
    const auto bytes = static_cast<int64_t>(round_up(r.bytes));
    change[r.first] += bytes;
    change[static_cast<int64_t>(r.last) + 1] -= bytes;
  }
  int64_t now = 0, most = 0;
  for (const auto& [at, delta] : change) most = std::max(most, now += delta);
  return static_cast<size_t>(most);
}

}  // namespace saturate
