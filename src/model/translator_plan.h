// SPDX-License-Identifier: Apache-2.0
// Translation of one batch of at most so many sentences: memory, recorded operations and captured
// graph for one shape.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/decode/beam_step.h"
#include "model/decode_cache.h"
#include "model/translator.h"
#include "ops/tape.h"
#include "runtime/memory.h"
#include "runtime/replay.h"

namespace saturate::model {

struct DecodeShape {
  int64_t sentences = 0, source_rows = 0;
  int64_t max_source = 0, max_target = 0;  // longest sentences in tokens
  int64_t slots = 0;  // positions of all hypotheses together that the cache holds
};

// One sentence of a batch and the longest translation it may get.
struct DecodeItem {
  const std::vector<int32_t>* source = nullptr;
  int64_t limit = 0;
};

class TranslatorPlan {
 public:
  // Errors: out_of_memory.
  TranslatorPlan(const Transformer& model, const ParameterStore& store, const TranslatorOptions& o,
                 const DecodeShape& shape);
  const DecodeShape& shape() const noexcept { return shape_; }

  // Translates a batch that fits the shape. out[i] gets the ids for items[i]. Errors:
  // NonFiniteScores.
  void run(std::span<const DecodeItem> items, std::span<std::vector<int32_t>> out);
  // Of the batch that ran last, whose results were `best`: every hypothesis that had ended, by
  // falling score, the best first.
  std::vector<std::vector<Hypothesis>> ended(std::span<const std::vector<int32_t>> best);

 private:
  // Arrays of 32-bit numbers that a batch starts with, in one block that one copy brings over.
  struct Layout {
    explicit Layout(const DecodeShape& shape, int64_t beam);
    int64_t source_ids, source_positions, source_cu, query_cu, limits;
    int64_t starts, ids, positions, finished, lengths, words;
  };
  void record_encoder();
  void record_step();
  void fill(std::span<const DecodeItem> items);
  void decode(int64_t sentences, int64_t longest);
  bool all_done(int64_t sentences) const;
  void require_scores(int64_t sentences);
  int32_t* words(int64_t offset) const noexcept { return block_.as<int32_t>() + offset; }

  const Transformer& model_;
  const TranslatorOptions options_;
  DecodeShape shape_;
  int64_t rows_;  // hypotheses
  Layout layout_;
  Stream stream_;
  Buffer block_, scores_, slots_, tokens_, candidate_scores_, candidate_ids_, workspace_;
  HostBuffer host_block_, host_scores_, result_;
  DecodeCache cache_;
  Tape encoder_, step_;
  std::vector<Value> memories_;  // what each mixer reads of the memory, on the encoder's tape
  Buffer encoder_arena_, step_arena_;
  Replay replay_;
};

}  // namespace saturate::model
