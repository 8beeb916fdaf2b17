// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <vector>

#include "data/batch.h"
#include "data/packer.h"
#include "data/token_cache.h"

namespace saturate::data {

// Writes batches in the layout of data/batch.h. Holds scratch memory only: one per thread at a
// time.
//
// Encoder-decoder: target ids are <pad> followed by the sentence, labels the sentence and </s>
// (Marian's convention: decoding starts from <pad>). Language model: ids are the document's tokens,
// labels the token after each; the last label of a document is </s>.
class BatchFiller {
 public:
  BatchFiller(const TokenCache& cache, const PackerOptions& options);
  // `words` has layout.words int32; all of them are written. No items: a batch without rows.
  // Errors: io for a damaged cache.
  BatchStats fill(const std::vector<PackedItem>& items, int32_t* words);
  const BatchLayout& layout() const noexcept { return layout_; }

 private:
  void fill_target(const PackedItem& item, int32_t* ids, int32_t* labels) const;
  void sort_by_id(const int32_t* ids, int64_t rows, int64_t vocab, int32_t* order);

  const TokenCache& cache_;
  PackUnit unit_;
  BatchLayout layout_;
  std::vector<int32_t> next_;  // per id: where its next row goes in `order`
};

}  // namespace saturate::data
