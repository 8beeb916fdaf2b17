// SPDX-License-Identifier: Apache-2.0
#include "ops/held_runs.h"

#include <algorithm>

namespace saturate {

SavedShape saved_shape(const ParameterSpec& p) noexcept {
  const bool cut = p.whole.rows > 0;
  return {(cut ? p.whole.rows : p.rows) - p.padding_rows, cut ? p.whole.cols : p.cols};
}

void for_held(const ParameterStore& store, const ParameterSpec& p, StateArray a, Held what,
              Share share, int64_t most, const TakeHeld& f) {
  const ParameterGroup& group = store.group_of(p);
  const auto element = static_cast<int64_t>(group.element_bytes(a));
  // What operations read stays whole even where its ranges are owned by several ranks.
  const bool whole_array = group.array(a).bytes() == group.bytes_of(a, group.count());
  const SavedShape shape = saved_shape(p);
  const int64_t saved = shape.rows * shape.cols;
  const std::vector<parallel::ShardRun> all{{0, p.size()}};
  const std::vector<parallel::ShardRun>& runs = p.whole.rows > 0 ? p.whole.runs : all;
  std::vector<int64_t> begins;  // of the runs, in this rank's own order
  int64_t held = 0;
  for (const parallel::ShardRun& run : runs)
    begins.push_back(std::exchange(held, held + run.length));
  std::vector<HeldRun> here;
  const OwnedRange all_of_it{0, group.count(), 0};
  for (const OwnedRange& r : whole_array&& what == Held::in_memory
                                 ? std::span<const OwnedRange>(&all_of_it, 1)
                                 : group.owned()) {
    const int64_t length = r.end - r.begin;
    const int64_t first = std::max(p.offset, r.begin + length * share.rank / share.ranks);
    const int64_t last =
        std::min(p.offset + p.size(), r.begin + length * (share.rank + 1) / share.ranks);
    for (int64_t begin = first; begin < last; begin += most) {
      const int64_t end = std::min(last, begin + most);
      here.clear();
      auto i = static_cast<size_t>(std::ranges::upper_bound(begins, begin - p.offset) -
                                   begins.begin() - 1);
      for (int64_t at = begin - p.offset; at < end - p.offset; ++i) {
        const int64_t into = at - begins[i];
        const int64_t n = std::min(runs[i].length - into, end - p.offset - at);
        const int64_t whole = runs[i].global_offset + into;
        if (whole < saved)
          here.push_back({at - (begin - p.offset), whole, std::min(n, saved - whole)});
        at += n;
      }
      char* const base = group.array(a).as<char>();
      const int64_t place = whole_array ? begin : r.local + begin - r.begin;
      f(base == nullptr ? nullptr : base + place * element, end - begin, here);
    }
  }
}

}  // namespace saturate
