// SPDX-License-Identifier: Apache-2.0
// Pieces of flat arrays, as collectives take them.
#pragma once
#include <cstdint>

namespace saturate::parallel {

// Elements [begin, end) of the flat gradient array.
struct FlatRange {
  int64_t begin = 0, end = 0;
  friend bool operator==(const FlatRange&, const FlatRange&) = default;
};

// Of a bucket, at least. 25 MB of fp32: long enough that a reduction over NVLink runs near its peak
// rate, short enough that a 100 MB model has most of its gradients on the wire before backward ends.
constexpr int64_t kBucketElements = int64_t{25'000'000} / 4;

}  // namespace saturate::parallel
