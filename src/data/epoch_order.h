// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "data/token_cache.h"

namespace saturate::data {

enum class PackOrder : uint8_t { shuffled, sequential };

// How a language model's documents become sequences. sentences: each document on its own, cut to
// pieces of max_target. stream: all documents, laid end to end, cut to pieces of exactly
// max_target.
enum class PackUnit : uint8_t { sentences, stream };

// Which pair, document or piece of the stream stands where in an epoch: a function of (corpus,
// seed, epoch), whatever part of the cache is there already; what is not is waited for.
//
// The first epoch must begin before the corpus is read, so it is shuffled in blocks: the cache's
// head, then as much again, and from there on each block twice the one before, so that the last
// half of the corpus is one block. Later epochs are shuffled as a whole, and so is the first one of
// a corpus that is all head.
class EpochOrder {
 public:
  // `piece`: tokens of a piece of the stream.
  EpochOrder(const TokenCache& cache, PackOrder order, PackUnit unit, int64_t piece, uint64_t seed);
  // -1 past the epoch's end. Errors: those of waiting for the cache.
  int64_t at(int64_t epoch, int64_t position) const;
  // Waits until it is known.
  bool has(int64_t unit) const { return unit >= 0 && await(unit + 1) > unit; }
  // Units of the head.
  int64_t first_block() const { return first_block_; }

 private:
  int64_t await(int64_t units) const;

  const TokenCache& cache_;
  const PackOrder order_;
  const PackUnit unit_;
  const int64_t piece_;
  const uint64_t seed_;
  int64_t first_block_ = 0;
};

}  // namespace saturate::data
