// SPDX-License-Identifier: Apache-2.0
#include "data/permutation.h"

#include "base/error.h"
#include "base/philox.h"

namespace saturate::data {

constexpr uint64_t kRounds = 6;  // four suffice for security; six also mixes domains of a few bits

Permutation::Permutation(int64_t count, uint64_t seed, int64_t epoch)
    : count_(static_cast<uint64_t>(count)), seed_(seed), epoch_(static_cast<uint64_t>(epoch)) {
  SAT_ASSERT(count >= 1 && epoch >= 0);
  half_bits_ = 1;
  while ((uint64_t{1} << (2 * half_bits_)) < count_) ++half_bits_;
}

uint64_t Permutation::once(uint64_t x) const {
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  uint64_t left = x >> half_bits_, right = x & mask;
  for (uint64_t round = 0; round < kRounds; ++round) {
    const Random4 r = philox4x32(seed_, right, (epoch_ << 8) | round);
    const uint64_t next = left ^ (r.x[0] & mask);
    left = right;
    right = next;
  }
  return (left << half_bits_) | right;
}

int64_t Permutation::operator()(int64_t i) const {
  uint64_t x = static_cast<uint64_t>(i);
  do x = once(x);
  while (x >= count_);
  return static_cast<int64_t>(x);
}

}  // namespace saturate::data
