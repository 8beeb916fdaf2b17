// SPDX-License-Identifier: Apache-2.0
#include "model/slot_ranges.h"

#include <algorithm>

namespace saturate::model {

std::optional<int64_t> SlotRanges::take(int64_t count) {
  const auto found =
      std::ranges::find_if(free_, [count](const auto& run) { return run.second >= count; });
  if (found == free_.end()) return std::nullopt;
  const auto [first, length] = *found;
  free_.erase(found);
  if (length > count) free_.emplace(first + count, length - count);
  return first;
}

void SlotRanges::give_back(int64_t first, int64_t count) {
  auto next = free_.lower_bound(first);
  if (next != free_.end() && next->first == first + count) {
    count += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == first) {
      before->second += count;
      return;
    }
  }
  free_.emplace_hint(next, first, count);
}

}  // namespace saturate::model
