// SPDX-License-Identifier: Apache-2.0
// Encoder-decoder and decoder-only Transformers: stacks of layers, each a list of mixers with their
// norms (mixers/mixer.h).
#pragma once
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "model/mixers/registry.h"
#include "model/model_config.h"
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
  // cut over tp. Errors: invalid_argument (tp does not divide one of these; names it).
  Transformer(const ModelConfig& config, ParameterStore& store,
              const Layout& layout = Layout::one_rank());
  const ModelConfig& config() const noexcept { return config_; }
  const Layout& layout() const noexcept { return *layout_; }

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
  // (rows of all tensor-parallel ranks, this rank's part of the padded vocab)
  Value logits(Tape& tape, Value hidden) const;

  // Mixers of the decoder, layer by layer, in the order in which decode_step() takes their steps.
  std::vector<const Mixer*> decoder_mixers() const;

  // Floating-point operations of one training step (forward and backward: three times the products
  // of forward) for the tokens and attended pairs given; dropout, norms and softmax are not
  // counted.
  double training_flops(double source_tokens, double target_tokens, double source_pairs,
                        double target_pairs, double cross_pairs) const;

 private:
  struct Sublayer {
    NormIds norm;
    std::unique_ptr<const Mixer> mixer;
  };
  struct LayerStack {
    Stack place = Stack::decoder;
    ParameterId embedding, positions;  // an index of -1: there is no table of positions
    std::vector<std::vector<Sublayer>> layers;
    NormIds final_norm;
  };
  // Records a mixer on its input, normalised or not as the model wants.
  using RecordMixer = std::function<Value(const Mixer&, Value x)>;

  LayerStack declare_stack(ParameterStore& store, Stack place, ParameterId embedding) const;
  ops::NormParameters norm(Tape& tape, const NormIds& ids) const;
  Value embed(Tape& tape, const LayerStack& stack, const PackedSide& side) const;
  Value run(Tape& tape, const LayerStack& stack, const PackedSide& side,
            const RecordMixer& record) const;

  ModelConfig config_;
  const Layout* layout_;
  LayerStack encoder_, decoder_;  // the encoder has no layers in a decoder-only model
  ParameterId output_;
  Buffer sinusoids_;
};

}  // namespace saturate::model
