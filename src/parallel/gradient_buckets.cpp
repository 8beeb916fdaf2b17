// SPDX-License-Identifier: Apache-2.0
#include "parallel/gradient_buckets.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"

namespace saturate::parallel {
namespace {

// Ends of the stretches that the ranges cover: where no neighbour will ever come.
struct Edges {
  std::set<int64_t> begins, ends;
};

Edges edges_of(std::span<const FlatRange> ranges) {
  std::vector<FlatRange> sorted(ranges.begin(), ranges.end());
  std::sort(sorted.begin(), sorted.end(), [](auto& a, auto& b) { return a.begin < b.begin; });
  Edges edges;
  int64_t at = 0;
  for (const FlatRange& r : sorted) {
    if (r.begin < at || r.end <= r.begin)
      throw Error(
          Errc::invalid_argument, "gradient_buckets",
          fmt::format("range [{}, {}) follows element {}: ranges must be non-empty and must "
                      "not overlap",
                      r.begin, r.end, at));
    // A stretch goes on where the one before ends.
    if (edges.ends.erase(r.begin) == 0) edges.begins.insert(r.begin);
    edges.ends.insert(at = r.end);
  }
  return edges;
}

}  // namespace

std::vector<GradientBucket> gradient_buckets(std::span<const FlatRange> finish_order,
                                             int64_t bucket_elements) {
  if (bucket_elements < 1)
    throw Error(Errc::invalid_argument, "gradient_buckets",
                fmt::format("bucket_elements is {}: at least 1 is needed", bucket_elements));
  const Edges edges = edges_of(finish_order);

  std::vector<GradientBucket> buckets;
  std::map<int64_t, int64_t> open;  // begin -> end: finished, not in a bucket, neighbours merged
  std::map<int64_t, int64_t> closed_end;    // begin -> end of each bucket
  std::map<int64_t, int64_t> closed_begin;  // end -> begin
  const auto emit_if_done = [&](std::map<int64_t, int64_t>::iterator it, int index) {
    const auto [begin, end] = *it;
    const bool no_left = edges.begins.contains(begin) || closed_begin.contains(begin);
    const bool no_right = edges.ends.contains(end) || closed_end.contains(end);
    if (end - begin < bucket_elements && !(no_left && no_right)) return false;
    open.erase(it);
    closed_end[begin] = end;
    closed_begin[end] = begin;
    buckets.push_back({{begin, end}, index});
    return true;
  };

  for (int index = 0; const FlatRange& range : finish_order) {
    int64_t begin = range.begin, end = range.end;
    auto right = open.find(end);
    if (right != open.end()) {
      end = right->second;
      open.erase(right);
    }
    auto left = open.lower_bound(begin);
    if (left != open.begin() && std::prev(left)->second == begin) {
      begin = std::prev(left)->first;
      open.erase(std::prev(left));
    }
    if (emit_if_done(open.emplace(begin, end).first, index)) {
      // The new bucket may have shut in what lies open beside it.
      if (auto after = open.find(end); after != open.end()) emit_if_done(after, index);
      auto before = open.lower_bound(begin);
      if (before != open.begin() && std::prev(before)->second == begin)
        emit_if_done(std::prev(before), index);
    }
    ++index;
  }
  return buckets;
}

}  // namespace saturate::parallel
