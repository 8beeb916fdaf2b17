// SPDX-License-Identifier: Apache-2.0
#include "ops/owned_ranges.h"

#include <algorithm>

#include "base/error.h"

namespace saturate {
namespace {

int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

}  // namespace

int64_t slice_elements(int64_t bucket_elements, int ranks, int64_t align) {
  SAT_ASSERT(bucket_elements >= 0 && ranks >= 1 && align >= 64 && align % 64 == 0);
  return round_up((bucket_elements + ranks - 1) / ranks, align);
}

std::vector<OwnedRange> owned_ranges(std::span<const parallel::FlatRange> buckets, int ranks,
                                     int rank, int64_t align) {
  SAT_ASSERT(rank >= 0 && rank < ranks);
  std::vector<OwnedRange> ranges;
  for (const parallel::FlatRange& bucket : buckets) {
    SAT_ASSERT(bucket.begin % align == 0 && bucket.end >= bucket.begin);
    const int64_t slice = slice_elements(bucket.end - bucket.begin, ranks, align);
    const int64_t begin = std::min(bucket.begin + rank * slice, bucket.end);
    const int64_t end = std::min(begin + slice, bucket.end);
    if (begin < end) ranges.push_back({begin, end, 0});
  }
  std::sort(ranges.begin(), ranges.end(),
            [](const OwnedRange& a, const OwnedRange& b) { return a.begin < b.begin; });
  int64_t held = 0;
  for (OwnedRange& r : ranges) {
    r.local = held;
    held += round_up(r.end - r.begin, kernels::kParameterAlign);
  }
  return ranges;
}

}  // namespace saturate
