// SPDX-License-Identifier: Apache-2.0
// Encoder-decoder and decoder-only Transformers: stacks of layers, each a list of mixers with their
// norms (mixers/mixer.h).
#pragma once
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "model/mixers/registry.h"
#include "model/model_config.h"
#include "model/stages.h"
#include "ops/cross_entropy.h"
#include "ops/parameters.h"
#include "ops/residual_norm.h"
#include "ops/tape.h"

namespace saturate::model {

class Transformer {
 public:
  // Declares all parameters in `store` (canonical names, forward order): the only place that does,
  // so what needs shapes before there is memory asks a store that is never allocated. The config
  // must be valid. With a layout of several ranks (it outlives the model) the store gets what this
  // rank holds: heads, columns of the feed-forward layers and rows of the vocabulary's tables are
  // cut over tp, and a stage of a pipeline holds what its items use alone, and records no others.
  // Errors: invalid_argument (tp does not divide one of these; names it).
  Transformer(const ModelConfig& config, ParameterStore& store,
              const Layout& layout = Layout::one_rank(), Stages stages = {});
  const ModelConfig& config() const noexcept { return config_; }
  const Layout& layout() const noexcept { return *layout_; }
  const Stages& stages() const noexcept { return stages_; }

  // Rows of the vocabulary's matrices: a multiple of 64 on each of the ranks that share them, so
  // that products over them are aligned. The rows from vocab on never win, lose or learn.
  static int64_t padded_vocab(int64_t vocab, int64_t ranks = 1) noexcept {
    return (vocab + 64 * ranks - 1) / (64 * ranks) * (64 * ranks);
  }

  // Sinusoid table for `device` (max_positions, d_model) in the wide type; empty unless used. Tapes
  // read it while they run, so it lives with the model.
  void make_tables(const ParameterStore& store);

  // In all of these values have this rank's rows of the micro-batch (Layout::row_parts), tokens are
  // whole. Errors: invalid_argument (the ranks do not divide the rows).
  //
  // Packed source tokens to memory (source rows, d_model).
  Value encode(Tape& tape, const PackedSide& source) const;
  // Packed target tokens to hidden states (rows, d_model), after the final norm.
  Value decode(Tape& tape, const PackedSide& target, Value memory, const PackedSide* source) const;
  // One token of each row, by the same layers: steps[i] is what decoder_mixers()[i] keeps and
  // reads. For inference only.
  Value decode_step(Tape& tape, const PackedSide& target, std::span<const MixerStep> steps) const;
  // Whole prompts, by the same layers, for what they leave for decode_step(): prompts[i] is where
  // decoder_mixers()[i], all of which read prompts, stores it. For inference only.
  void read_prompts(Tape& tape, const PackedSide& side, std::span<const MixerPrompt> prompts) const;
  // (rows of all tensor-parallel ranks, this rank's part of the padded vocab)
  Value logits(Tape& tape, Value hidden) const;
  // The loss of the step without them, where that is possible and faster; false: nothing is recorded.
  bool record_output_loss(Tape& tape, Value hidden, const ops::LossSpec& loss) const;
  // The matrix that logits() multiplies with.
  ParameterId output_weight() const noexcept {
    return config_.tied_output ? decoder_.embedding : output_;
  }

  // What passes between items (stages.h). Values that do not pass are none.
  struct State {
    Value stream, branch, memory;
  };
  // Records a range of items on what the items before it leave; returns what the next one is given.
  // The final norm's result is a stream. The output item records nothing: logits() and the loss are
  // the caller's.
  State record(Tape& tape, ItemRange range, State state, const PackedSide& source,
               const PackedSide& target) const;

  // The tables that several chunks use, each with the coordinates of the stages that hold it,
  // ascending: the same on all ranks.
  const std::vector<std::vector<int32_t>>& shared_tables() const noexcept { return shared_tables_; }

  // Mixers of the decoder, layer by layer, in the order in which decode_step() takes their steps.
  std::vector<const Mixer*> decoder_mixers() const;

  // Floating-point operations of one training step (forward and backward: three times the products
  // of forward) for the tokens and attended pairs given; dropout, norms and softmax are not
  // counted.
  double training_flops(double source_tokens, double target_tokens, double source_pairs,
                        double target_pairs, double cross_pairs) const;
  // About what each item takes of them, with the memory traffic of tables and loss as the operations
  // that a GPU makes in that time.
  std::vector<double> item_costs(double source_tokens, double target_tokens, double source_pairs,
                                 double target_pairs, double cross_pairs) const;

 private:
  struct Sublayer {
    NormIds norm, after;  // `after` of a sandwich, on what joins the stream
    std::unique_ptr<const Mixer> mixer;
  };
  struct LayerStack {
    Stack place = Stack::decoder;
    ParameterId embedding, positions;  // an index of -1: there is no table of positions
    NormIds embedding_norm;
    ParameterId relative_bias;  // (buckets, heads)
    std::vector<std::vector<Sublayer>> layers;
    NormIds final_norm;
  };
  // Records a mixer on its input, normalised or not as the model wants. None where nobody reads what
  // it would give: then nothing after it is recorded either.
  using RecordMixer = std::function<Value(const Mixer&, Value x)>;

  // The items of a stack, from the first of the model that is its own.
  struct Part {
    bool embeds = true;
    int64_t first_layer = 0, last_layer = 0;  // [first, last)
    bool ends = true;
    bool empty() const noexcept { return !embeds && first_layer >= last_layer && !ends; }
  };
  Part all_of(const LayerStack& stack) const;
  // Of the stack whose embedding is item `first`.
  Part part_of(const LayerStack& stack, int64_t first, ItemRange range) const;

  LayerStack declare_stack(ParameterStore& store, Stack place, ParameterId embedding) const;
  ParameterId declare_table(ParameterStore& store, const std::string& name, int64_t vocab,
                            int64_t zero_row, std::vector<int64_t> users);
  ops::NormParameters norm(Tape& tape, const NormIds& ids) const;
  // Values recorded from here on have this rank's rows of a side; returns how many. Errors:
  // invalid_argument when ranks that share rows do not divide them.
  int64_t begin_rows(Tape& tape, const PackedSide& side) const;
  Value embed(Tape& tape, const LayerStack& stack, const PackedSide& side) const;
  // What keys add to the scores of queries in a stack with relative positions; else none. Recorded
  // once for all layers: (heads, queries * keys) in the wide type, of query i and key j by the
  // distance sign * j - i.
  Value relative_bias(Tape& tape, const LayerStack& stack, int64_t queries, int64_t keys,
                      int sign) const;
  MixerBatch encoder_batch(Tape& tape, const PackedSide& source) const;
  MixerBatch decoder_batch(Tape& tape, const PackedSide& target, Value memory,
                           const PackedSide* source) const;
  State run(Tape& tape, const LayerStack& stack, const Part& part, State state,
            const PackedSide& side, const RecordMixer& record) const;

  ModelConfig config_;
  const Layout* layout_;
  Stages stages_;
  std::vector<std::vector<int32_t>> shared_tables_;
  LayerStack encoder_, decoder_;  // the encoder has no layers in a decoder-only model
  ParameterId output_, output_bias_;
  Buffer sinusoids_;
  Buffer encoder_buckets_, decoder_buckets_;  // of distances, see relative_bias()
};

}  // namespace saturate::model
