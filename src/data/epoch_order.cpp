// SPDX-License-Identifier: Apache-2.0
#include "data/epoch_order.h"

#include <algorithm>

#include "data/permutation.h"

namespace saturate::data {
namespace {

constexpr int64_t kMostUnits = int64_t{1} << 40;  // more than any corpus has; keeps sums small

// Each piece needs one more token, as label of its last.
int64_t pieces(int64_t tokens, int64_t piece) { return tokens < 1 ? 0 : (tokens - 1) / piece; }

}  // namespace

EpochOrder::EpochOrder(const TokenCache& cache, PackOrder order, PackUnit unit, int64_t piece,
                       uint64_t seed)
    : cache_(cache), order_(order), unit_(unit), piece_(piece), seed_(seed) {
  const CacheStats& head = cache.head();
  first_block_ = unit == PackUnit::stream ? pieces(head.target_tokens, piece) : head.counts.kept;
}

// How many of `units` there are, known as soon as the cache has got so far.
int64_t EpochOrder::await(int64_t units) const {
  units = std::min(units, kMostUnits);
  if (unit_ == PackUnit::sentences) return cache_.await_pairs(units);
  return pieces(cache_.await_tokens(units * piece_ + 1), piece_);
}

int64_t EpochOrder::at(int64_t epoch, int64_t position) const {
  if (order_ == PackOrder::sequential) return await(position + 1) > position ? position : -1;
  if (epoch > 0) {
    const int64_t all = await(kMostUnits);
    return position < all ? Permutation(all, seed_, epoch)(position) : -1;
  }
  int64_t begin = 0, end = first_block_;
  while (position >= end) {
    begin = end;
    end = std::min(2 * end, kMostUnits);
  }
  end = await(end);
  if (position >= end) return -1;
  // Blocks of the same length must not be shuffled alike: where a block begins stands for an epoch
  // that no run reaches.
  return begin + Permutation(end - begin, seed_, begin << 8)(position - begin);
}

}  // namespace saturate::data
