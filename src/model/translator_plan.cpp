// SPDX-License-Identifier: Apache-2.0
#include "model/translator_plan.h"

#include <algorithm>

#include "ops/store_rows.h"

namespace saturate::model {

TranslatorPlan::TranslatorPlan(const ParameterStore& store, const TranslatorMemory& memory,
                               bool graph, const char* first, const char* capture)
    : tape_(store, TapeMode::inference, nullptr),
      stream_(memory.stream()),
      replay_(graph, first, capture) {}

void TranslatorPlan::planned() {
  arena_bytes_ = tape_.plan();
  if (!stream_.device().is_cuda()) return;
  arena_ = Buffer(stream_.device(), arena_bytes_);
  fill_bytes(stream_, arena_.data(), 0, arena_.bytes());
}

void TranslatorPlan::run(const Context& ctx, Buffer& shared) {
  if (!ctx.device.is_cuda() && shared.bytes() < arena_bytes_) {
    shared = Buffer(ctx.device, arena_bytes_);
    fill_bytes(stream_, shared.data(), 0, shared.bytes());
  }
  char* arena = ctx.device.is_cuda() ? arena_.as<char>() : shared.as<char>();
  replay_.enqueue(stream_, [&] { tape_.run(ctx, arena, false); });
}

EncoderPlan::EncoderPlan(const Transformer& model, const ParameterStore& store,
                         const TranslatorMemory& memory, const TranslatorOptions& o, int64_t rows,
                         int64_t longest)
    : TranslatorPlan(store, memory, o.graph, "  first encoder of a plan", "  graph of an encoder") {
  const TranslatorMemory::EncoderInput input = memory.encoder_input(rows);
  const PackedSide source{.tokens = {.ids = input.ids,
                                     .positions = input.positions,
                                     .cu = input.cu,
                                     .rows = rows,
                                     .sequences = memory.sizes().places},
                          .max_length = std::min(rows, longest)};
  const Value encoded = model.encode(tape_, source);
  const std::vector<const Mixer*> mixers = model.decoder_mixers();
  for (size_t i = 0; i < mixers.size(); ++i) {
    const Value read = mixers[i]->record_memory(tape_, encoded);
    if (read) ops::store_rows(tape_, read, input.rows, memory.memory_of(i));
  }
  planned();
}

StepPlan::StepPlan(const Transformer& model, const ParameterStore& store,
                   const TranslatorMemory& memory, const TranslatorOptions& o,
                   kernels::SuppressedTokens suppressed, int64_t places, int64_t bound)
    : TranslatorPlan(store, memory, o.graph, "  first step of a plan", "  graph of a plan") {
  const ModelConfig& c = model.config();
  const int64_t rows = places * o.beam;
  const kernels::BeamState state = memory.state();
  const PackedSide target{
      .tokens = {.ids = state.ids, .positions = state.positions, .rows = rows, .sequences = rows},
      .max_length = 1};
  const Value logits =
      model.logits(tape_, model.decode_step(tape_, target, memory.steps(bound, bound)));
  const auto candidates = static_cast<size_t>(rows * o.beam);
  candidate_scores_ = Buffer(store.device(), candidates * size_of(store.wide_type()));
  candidate_ids_ = Buffer(store.device(), candidates * sizeof(int32_t));
  const kernels::BeamStepArgs args{
      .state = state,
      .suppressed = suppressed,
      .candidate_scores = candidate_scores_.data(),
      .candidate_ids = candidate_ids_.as<int32_t>(),
      .result = memory.results(),
      .sentences = places,
      .beam = o.beam,
      .vocab = c.vocab_target,
      .ld = tape_.info(logits).cols,
      .dtype = tape_.compute_type(),
      .eos = static_cast<int32_t>(c.eos_id),
      .banned = static_cast<int32_t>(c.pad_id == c.eos_id ? -1 : c.pad_id)};
  // The rules of sentences change the logits where they lie, the last to read them.
  tape_.record("beam_step", {logits}, {}, [=](const Run& r) {
    kernels::BeamStepArgs a = args;
    a.logits = r(logits);
    kernels::beam_step(r.ctx, a);
  });
  planned();
}

}  // namespace saturate::model
