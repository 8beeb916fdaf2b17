// SPDX-License-Identifier: Apache-2.0
// The one shape of every batch: whole sentences laid end to end in a fixed budget of rows.
#pragma once
#include <cstdint>

namespace saturate::data {

// Budgets. source_rows == 0 for a language model.
struct BatchShape {
  int64_t source_rows = 0;  // tokens, multiple of 8
  int64_t target_rows = 0;
  int64_t sequences = 0;
  int64_t max_source = 0;  // longest sentence in tokens, end-of-sentence included
  int64_t max_target = 0;
  friend bool operator==(const BatchShape&, const BatchShape&) = default;
};

// Where each array lies in one block of int32 words, so that a batch crosses to the device in one copy.
//
// Per side (source, target): ids (rows), positions (rows; position within the sentence), cu
// (sequences + 1; row where each sentence starts; unused sentences are empty at the end), order (rows;
// valid rows sorted by id, stable, for the embedding gradient), valid (1; rows in use).
// labels (target_rows): the token after each target row; -1 where there is no loss.
// Rows not in use have id 0, position 0, label -1.
//
// A rank that has some chunks of the rows (chunks > 0) finds behind these what TrainingStep derives
// from them: per side chunk_offsets (ops/row_chunks.h), and labels in the order of ranks.
struct SideLayout {
  int64_t ids = 0, positions = 0, cu = 0, order = 0, valid = 0;
  int64_t chunk_offsets = 0;
};
struct BatchLayout {
  BatchShape shape;
  SideLayout source, target;
  int64_t labels = 0;
  int64_t chunks = 0, chunk_labels = 0;
  int64_t words = 0;  // size of the block
  explicit BatchLayout(const BatchShape& shape, int64_t chunks = 0);
};

// What the host knows of a batch it filled, for progress and tests.
struct BatchStats {
  int64_t source_tokens = 0, target_tokens = 0, sequences = 0;
  int64_t epoch = 0;  // of its first sentence
};

}  // namespace saturate::data
