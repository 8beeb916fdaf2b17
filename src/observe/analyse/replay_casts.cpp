// SPDX-License-Identifier: Apache-2.0
// Weights that are rounded to 16 bits again for each product.
#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "observe/analyse/replay.h"

namespace saturate::observe {
namespace {

// The blocks of kernels that work element by element, which say how many elements there are.
class ElementCounts {
 public:
  void add(int64_t blocks) { blocks_.insert(blocks); }
  // Whether one of them may work on as many elements as `blocks` of a rounding do: with a quarter to
  // four times as many elements a block, the last of which may be less than full.
  bool may_equal(int64_t blocks) const {
    for (const int64_t times : {1, 2, 4}) {
      const auto at = blocks_.lower_bound(times * (blocks - 1) + 1);
      if (at != blocks_.end() && *at <= times * blocks) return true;
      if (blocks_.contains((blocks + times - 1) / times)) return true;
    }
    return false;
  }

 private:
  std::set<int64_t> blocks_;
};

}  // namespace

// Where nothing trains weights stay as they are, and rounding them once would do. Operands of a
// product are rounded directly before it. Which of them are weights the kernels do not say, but
// what a program computes has as many elements as some kernel that wrote or read it: a rounding
// whose number no other kernel has, and that follows a kernel whose number is known and another, is
// of none of that. One of a kind in a step may be of the step's input. Cost: O(n log n).
void Replay::find_weight_casts() {
  struct Stream {
    std::vector<uint32_t> roundings;  // since the last other kernel
    bool after_known = false;         // it shows how many elements it wrote
  };
  ElementCounts computed;
  for (uint32_t i = marks_.front(); i < marks_.back(); ++i) {
    if (ops_[i].backward || ops_[i].optimizes) return;
    if (ops_[i].shows_elements && !ops_[i].rounding) computed.add(ops_[i].blocks);
  }
  std::map<uint32_t, Stream> streams;
  std::map<std::pair<uint32_t, int64_t>, std::vector<uint32_t>> weights;  // by name and blocks
  for (uint32_t i = marks_.front(); i < marks_.back(); ++i) {
    const ReplayOp& op = ops_[i];
    Stream& s = streams[op.stream];
    if (op.rounding) {
      s.roundings.push_back(i);
      continue;
    }
    if (op.blocks == 0 && op.bytes == 0) continue;  // a fill, for the product's sums
    for (const uint32_t r : s.roundings) {
      if (!op.product) break;
      ops_[r].of_operand = true;
      if (s.after_known && !computed.may_equal(ops_[r].blocks))
        weights[{ops_[r].name, ops_[r].blocks}].push_back(r);
    }
    s.roundings.clear();
    s.after_known = op.shows_elements;
  }
  for (const auto& [kind, found] : weights) {
    if (static_cast<int64_t>(found.size()) < 2 * steps()) continue;
    for (const uint32_t i : found) ops_[i].of_weight = true;
  }
}

}  // namespace saturate::observe
