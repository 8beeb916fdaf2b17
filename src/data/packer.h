// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "data/batch.h"
#include "data/epoch_order.h"
#include "data/token_cache.h"

namespace saturate::data {

// to_longest fills a batch only as far as rows padded to its longest sentence would: what a trainer
// without packing can do at the same cost. For comparison.
enum class Padding : uint8_t { none, to_longest };

struct PackerOptions {
  BatchShape shape;
  // Rows at the end of each side that no token takes: what rounds them up to equal parts for the
  // ranks that share a batch. So a batch holds the same sentences however it is cut.
  int64_t source_padding = 0, target_padding = 0;
  PackOrder order = PackOrder::shuffled;
  PackUnit unit = PackUnit::sentences;
  Padding padding = Padding::none;
  uint64_t seed = 1;
  int64_t epochs = 0;  // 0: without end
  friend bool operator==(const PackerOptions&, const PackerOptions&) = default;
};

// A sentence pair, or a piece of a document, on its way into a batch.
struct PackedItem {
  int64_t epoch = 0;
  int64_t index = 0;               // pair of the cache; for stream the number of the piece
  int64_t first = 0;               // first token, of the document or of the stream
  int64_t source = 0, target = 0;  // rows it takes
  friend bool operator==(const PackedItem&, const PackedItem&) = default;
};

// Where the global sequence of batches stands: small, exact, the same on every rank.
struct PackerState {
  int64_t batches = 0;  // packed so far
  int64_t epoch = 0;
  int64_t position = 0;             // within the epoch's order
  std::vector<PackedItem> carried;  // drawn, not yet in a batch
  std::string to_json() const;
  // Lengths of the carried items are read again by Packer. Errors: invalid_argument.
  static PackerState from_json(const std::string& text);
  friend bool operator==(const PackerState&, const PackerState&) = default;
};

// Packs sentences in epoch order into batches: a function of (cache, options) alone, one global
// sequence whatever the number of ranks. Most of a batch is taken in order; the last part is chosen
// from a pool of kPoolItems so that source and target rows run out together. Every sentence occurs
// once an epoch. Waits for what the cache has not got yet. Errors: invalid_argument when a sentence
// cannot fit the shape, or a state is not of this cache; those of waiting for the cache.
class Packer {
 public:
  Packer(const TokenCache& cache, const PackerOptions& options, const PackerState& state = {});
  // The items of the next batch; false after the last epoch.
  bool next(std::vector<PackedItem>& items);
  PackerState state() const;

 private:
  void take_padded(std::vector<PackedItem>& items);
  bool draw();
  void complete(PackedItem& item) const;
  size_t choose(const BatchShape& left) const;

  const TokenCache& cache_;
  const PackerOptions options_;
  const EpochOrder order_;
  int64_t batches_ = 0, epoch_ = 0, position_ = 0;
  std::deque<PackedItem> pool_;
};

// The shape whose budgets fill evenly on the corpus's head: source_rows from the ratio of its token
// counts, and as many sequences as batches may need. target_rows is rounded up to a multiple of 8
// (stream: of max_target). Errors: invalid_argument when a limit is larger than the rows.
BatchShape suggest_shape(const TokenCache& cache, int64_t target_rows, int64_t max_source,
                         int64_t max_target, PackUnit unit = PackUnit::sentences);

}  // namespace saturate::data
