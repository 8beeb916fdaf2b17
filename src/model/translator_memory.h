// SPDX-License-Identifier: Apache-2.0
// What the sentences of one translator have in memory: the state of their searches, caches, keys and
// values of their sources, results. Every recorded step works on the same.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/decode/beam_place.h"
#include "kernels/decode/mean_logits.h"
#include "model/decode_cache.h"
#include "model/translator.h"
#include "runtime/memory.h"

namespace saturate::model {

// How much of each there is.
struct TranslatorSizes {
  int64_t places = 0;        // sentences side by side, and parts of the result
  int64_t slots = 0;         // positions of all hypotheses together
  int64_t memory_rows = 0;   // tokens of all their sources together
  int64_t encoder_rows = 0;  // tokens of the sources that begin together
  int64_t longest = 0;       // positions of a translation
  int64_t longest_source = 0;
};

class TranslatorMemory {
 public:
  // All places empty. Errors: out_of_memory.
  TranslatorMemory(std::span<const EnsembleModel> models, const TranslatorOptions& o,
                   const TranslatorSizes& sizes);

  // Empties all places.
  void clear();

  // Sentences that begin together, and what happens to places: the host's side of it, of which there
  // are two, so that one may be filled while the other is still being copied.
  struct Intake {
    std::vector<kernels::BeamPlacement> placements;
    std::vector<int32_t> prefixes;
    std::vector<int32_t> ids, positions, rows;  // of their sources; where each token's memory goes
    std::vector<int32_t> cu = {0};
    bool empty() const { return placements.empty(); }
  };
  // Brings it to the device: sources for an encoder that computes `encoder_rows` of them, and places.
  // `turn` is 0 and 1 in turns; with the same turn as two calls before, that call's copies are done.
  void take_in(const Context& ctx, const Intake& intake, int64_t encoder_rows, int turn);

  // Of result part r, whose search has ended: its hypotheses, the largest score first. Their attention,
  // to `source` tokens, lies by slot: before another sentence gets these.
  std::vector<Hypothesis> result(int64_t part, int64_t prefix, double length_penalty,
                                 int64_t source) const;
  bool is_done(int64_t part) const;
  void expect(int64_t part);  // before a sentence begins that writes it

  const Stream& stream() const noexcept { return stream_; }
  kernels::BeamState state() const;
  kernels::BeamResult results() const;
  // One for each mixer of a model's decoder, for the rows of the first places.
  std::vector<MixerStep> steps(size_t model, int64_t positions_bound, int64_t memory_bound) const;
  void* memory_of(size_t model, size_t mixer) const { return kept_[model].memories[mixer].data(); }
  // Where the models of an ensemble leave their logits, and what comes of them: of all rows; the weights add up
  // to 1. No models where one translates alone.
  const kernels::MeanLogitsArgs& ensemble() const noexcept { return ensemble_; }

  // Where the encoder finds its input, on the device.
  struct EncoderInput {
    int32_t *ids, *positions, *rows, *cu;
  };
  EncoderInput encoder_input(int64_t encoder_rows) const;
  const TranslatorSizes& sizes() const noexcept { return sizes_; }
  int64_t rows() const noexcept { return sizes_.places * beam_; }  // hypotheses

 private:
  // What the steps of one model leave for the next ones.
  struct Kept {
    DecodeCache cache;
    std::vector<Buffer> memories = {};  // by mixer
    Buffer logits = {};                 // of one of several models
  };
  void keep_attention(const Transformer& model, const TranslatorOptions& o);
  void keep_logits(std::span<const EnsembleModel> models);

  struct Row {  // arrays of 32-bit numbers, one for each row
    enum : int64_t {
      ids,
      positions,
      finished,
      lengths,
      starts,
      memory_starts,
      memory_lengths,
      count
    };
  };
  int32_t* row_array(int64_t which) const { return row_words_.as<int32_t>() + which * rows(); }
  int64_t input_words(int64_t encoder_rows) const { return 3 * encoder_rows + sizes_.places + 1; }

  const int64_t beam_;
  const int32_t start_;
  const DType compute_, wide_;
  const TranslatorSizes sizes_;
  Stream stream_;
  Buffer row_words_, scores_, penalties_, sentences_, slots_, tokens_, sums_;
  Buffer placements_, prefixes_, input_;
  HostBuffer host_placements_[2], host_prefixes_[2], host_input_[2];
  HostBuffer done_, result_tokens_, result_sums_;
  HostBuffer weights_, result_slots_;  // of attention; by slot, and as BeamResult::slots
  int64_t weighing_ = -1;              // the mixer whose attention is kept
  int64_t first_head_ = 0, head_count_ = 1;
  std::vector<Kept> kept_;  // by model
  Buffer mean_, log_sums_;  // of several models
  kernels::MeanLogitsArgs ensemble_;
};

}  // namespace saturate::model
