// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <map>
#include <optional>

namespace saturate::model {

/// Which runs of the slots [0, size) are taken; the first that is long enough is given. Nothing moves
/// once it has been given.
class SlotRanges {
 public:
  explicit SlotRanges(int64_t size) : size_(size) { clear(); }
  // The first slot of `count` (at least 1) that belong together, or none.
  std::optional<int64_t> take(int64_t count);
  // What take(count) gave.
  void give_back(int64_t first, int64_t count);
  void clear() { free_ = {{0, size_}}; }

 private:
  int64_t size_;
  std::map<int64_t, int64_t> free_;  // length by first slot; no two touch
};

}  // namespace saturate::model
