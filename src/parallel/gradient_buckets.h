// SPDX-License-Identifier: Apache-2.0
// Which parts of the flat gradient array to all-reduce together, and when.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace saturate::parallel {

// Elements [begin, end) of the flat gradient array.
struct FlatRange {
  int64_t begin = 0, end = 0;
  friend bool operator==(const FlatRange&, const FlatRange&) = default;
};

struct GradientBucket {
  FlatRange elements;
  int ready_after = 0;  // index into finish_order: the range whose end completes this bucket
  friend bool operator==(const GradientBucket&, const GradientBucket&) = default;
};

// 25 MB of fp32: long enough that an all-reduce over NVLink runs near its peak rate, short enough
// that a 100 MB model has most of its gradients on the wire before backward ends.
constexpr int64_t kBucketElements = int64_t{25'000'000} / 4;

// Groups neighbouring ranges into buckets that are contiguous in the flat array, cover the ranges
// once and nothing else, and come in the order in which they are ready. A bucket closes at
// `bucket_elements` or more, or when nothing next to it is still to come; ranges that finish out of
// order wait for their neighbours only.
//
// finish_order  ranges in the order in which backward finishes them. What lies between them (frozen
//               parameters) is nobody's: no bucket reaches over it.
// Order         a function of the arguments alone: all ranks get the same buckets.
// Errors        invalid_argument when ranges overlap or are empty, or bucket_elements < 1.
std::vector<GradientBucket> gradient_buckets(std::span<const FlatRange> finish_order,
                                             int64_t bucket_elements = kBucketElements);

}  // namespace saturate::parallel
