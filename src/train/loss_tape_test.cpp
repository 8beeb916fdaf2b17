// SPDX-License-Identifier: Apache-2.0
#include "train/loss_tape.h"

#include <gtest/gtest.h>

namespace saturate::train {
namespace {

struct Case {
  model::ModelKind kind;
  model::NormPosition norm;
  model::PositionKind positions;
  bool gated;
};
constexpr Case kCases[] = {
    {model::ModelKind::encoder_decoder, model::NormPosition::pre, model::PositionKind::sinusoidal,
     false},
    {model::ModelKind::encoder_decoder, model::NormPosition::post, model::PositionKind::learned,
     false},
    {model::ModelKind::decoder_only, model::NormPosition::pre, model::PositionKind::rotary, true},
    {model::ModelKind::decoder_only, model::NormPosition::post, model::PositionKind::learned,
     false},
};

model::ModelConfig config_of(const Case& c) {
  model::ModelConfig m;
  m.kind = c.kind;
  m.norm_position = c.norm;
  m.positions = c.positions;
  m.gated = c.gated;
  m.final_norm = c.norm == model::NormPosition::pre;
  m.d_model = 32;
  m.encoder_layers = c.kind == model::ModelKind::encoder_decoder ? 2 : 0;
  m.decoder_layers = 3;
  m.heads = m.kv_heads = 2;
  m.head_size = 16;
  m.ffn = 64;
  m.vocab_source = m.encoder_layers > 0 ? 100 : 0;
  m.vocab_target = 100;
  m.max_positions = 40;
  m.dropout = m.attention_dropout = m.activation_dropout = 0.1f;
  return m;
}

// Every architecture's tape, as training, several micro-batches in flight and validation plan it;
// and no two of its operations share their masks, which recording would refuse.
TEST(LossTape, PlansAreSound) {
  for (const Case& c : kCases) {
    const model::ModelConfig config = config_of(c);
    ParameterStore store({}, DType::f32);
    const model::Transformer transformer(config, store);
    store.allocate(ParameterStore::Purpose::training);
    data::BatchShape shape{.source_rows = config.encoder_layers > 0 ? 64 : 0,
                           .target_rows = 64,
                           .sequences = 4,
                           .max_source = 32,
                           .max_target = 32};
    const data::BatchLayout layout(shape);
    std::vector<int32_t> batch(static_cast<size_t>(layout.words));
    for (const TapeMode mode : {TapeMode::training, TapeMode::inference}) {
      for (const int32_t slots : {1, 2, 4}) {
        Tape tape(store, mode, nullptr);
        record_loss(tape, transformer, layout, batch.data(), {});
        if (mode == TapeMode::training) tape.backward();
        tape.plan(slots);
        EXPECT_EQ(flaw_of(tape, tape.layout()), "");
        EXPECT_EQ(tape.layout().stash_bytes > 0, mode == TapeMode::training && slots > 1);
      }
    }
  }
}

}  // namespace
}  // namespace saturate::train
