// SPDX-License-Identifier: Apache-2.0
// A Transformer as a row of items, between which a pipeline may cut it, and how many operations each
// of them takes.
//
//   encoder-decoder  source embedding, encoder layers, the encoder's final norm, target embedding,
//                    decoder layers, final norm, output and loss
//   decoder-only     embedding, layers, final norm, output and loss
//
// Models without a final norm have an item that does nothing in its place.
#pragma once
#include <cstdint>
#include <vector>

#include "model/model_config.h"

namespace saturate::model {

struct ItemRange {
  int64_t first = 0, last = 0;  // [first, last)
  bool has(int64_t item) const noexcept { return item >= first && item < last; }
};

// Where each kind of item stands.
struct Items {
  explicit Items(const ModelConfig& config);
  int64_t encoder_layers = 0;
  int64_t encoder_norm = -1;  // -1: there is no encoder
  int64_t target_embedding = 0;
  int64_t decoder_layers = 0;
  int64_t decoder_norm = 0, output = 0;
  bool encodes() const noexcept { return encoder_norm >= 0; }
  int64_t encoder_layer(int64_t i) const noexcept { return 1 + i; }
  int64_t decoder_layer(int64_t i) const noexcept { return target_embedding + 1 + i; }
  int64_t count() const noexcept { return output + 1; }
  ItemRange all() const noexcept { return {0, count()}; }
};

// What passes from the item before `item` to it. All rows have d_model elements.
struct Passing {
  bool source_rows = false;  // of the source side, else of the target's
  bool stream = false;       // the residual stream
  bool branch = false;       // and what joins it in the next norm, in models that norm first
  bool memory = false;       // the encoder's result, in source rows
};
Passing passing(const ModelConfig& config, int64_t item);

// The chunks of a pipeline, and which rank of it this is. Without chunks all items are one.
struct Stages {
  std::vector<int64_t> cuts;     // chunk c has items [cuts[c], cuts[c + 1])
  std::vector<int32_t> rank_of;  // by chunk
  int32_t rank = 0;
  int64_t chunks() const noexcept { return static_cast<int64_t>(rank_of.size()); }
  ItemRange range(int64_t chunk) const;
  int64_t chunk_of(int64_t item) const;  // 0 without chunks
  bool holds(int64_t item) const;
};

// Chunks for the ranks of `rank_of` so that the dearest rank has as little as possible, and then the
// chunks are as equal as possible.
// Errors: invalid_argument when there are fewer items than chunks.
std::vector<int64_t> cut_items(const std::vector<double>& costs,
                               const std::vector<int32_t>& rank_of);

}  // namespace saturate::model
