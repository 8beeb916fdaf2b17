// SPDX-License-Identifier: Apache-2.0
#include "model/translator_plan.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "kernels/gemm/packed/packed_linear.h"
#include "ops/computed_rows.h"
#include "ops/store_rows.h"

namespace saturate::model {
namespace {

// How many rows a step may extend, then these: the others have ended, or have no score yet, as all
// but the first of a sentence at its first token. beam_step() does not look at their logits.
void list_rows(const kernels::BeamState& state, int64_t rows, int32_t* list) {
  const auto* const scores = static_cast<const float*>(state.scores);
  int32_t count = 0;
  for (int64_t r = 0; r < rows; ++r) {
    if (state.finished[r] == 0 && scores[r] > -std::numeric_limits<float>::infinity())
      list[++count] = static_cast<int32_t>(r);
  }
  list[0] = count;
}

}  // namespace

std::unique_ptr<RecordedPlan> record_encoder(std::span<const EnsembleModel> models, size_t at,
                                             const TranslatorMemory& memory,
                                             const TranslatorOptions& o, int64_t rows) {
  const Transformer& model = *models[at].model;
  const ParameterStore& store = *models[at].store;
  auto plan = std::make_unique<RecordedPlan>(store, memory.stream(), o.graph,
                                             "  first encoder of a plan", "  graph of an encoder");
  Tape& tape = plan->tape();
  const TranslatorMemory::EncoderInput input = memory.encoder_input(rows);
  const PackedSide source{.tokens = {.ids = input.ids,
                                     .positions = input.positions,
                                     .cu = input.cu,
                                     .valid = input.cu + memory.sizes().places,
                                     .rows = rows,
                                     .sequences = memory.sizes().places},
                          .max_length = std::min(rows, o.max_source)};
  const Value encoded = model.encode(tape, source);
  const std::vector<const Mixer*> mixers = model.decoder_mixers();
  for (size_t i = 0; i < mixers.size(); ++i) {
    const Value read = mixers[i]->record_memory(tape, encoded);
    if (!read) continue;
    ops::store_rows(tape, read, tape.info(read).cols, input.rows, memory.memory_of(at, i));
  }
  plan->finish();
  return plan;
}

std::unique_ptr<RecordedPlan> record_step(std::span<const EnsembleModel> models, size_t at,
                                          const TranslatorMemory& memory,
                                          const TranslatorOptions& o, const StepWishes& wishes,
                                          int64_t places, int64_t bound) {
  const Transformer& model = *models[at].model;
  const ParameterStore& store = *models[at].store;
  auto plan = std::make_unique<RecordedPlan>(store, memory.stream(), o.graph,
                                             "  first step of a plan", "  graph of a plan");
  Tape& tape = plan->tape();
  const ModelConfig& c = model.config();
  const int64_t rows = places * o.beam;
  const kernels::BeamState state = memory.state();
  const PackedSide target{
      .tokens = {.ids = state.ids, .positions = state.positions, .rows = rows, .sequences = rows},
      .max_length = 1};
  // Experts are chosen for every row, which therefore must be numbers.
  std::optional<ops::ComputedRows> computed;
  if (store.packs() && o.beam > 1 && c.experts == 0) {
    auto* const list =
        static_cast<int32_t*>(plan->scratch(static_cast<size_t>(rows + 1) * sizeof(int32_t)));
    tape.record("rows_under_way", {}, {}, [=](const Run&) { list_rows(state, rows, list); });
    computed.emplace(list, rows);
  }
  const Value hidden = model.decode_step(tape, target, memory.steps(at, bound, bound));
  const CandidatePlaces* const chosen =
      wishes.candidates.empty() ? nullptr : &wishes.candidates[at];
  const Value logits = chosen == nullptr ? model.logits(tape, hidden)
                                         : candidate_logits(tape, model, hidden, o.beam, *chosen);
  kernels::MeanLogitsArgs ensemble = memory.ensemble();
  if (ensemble.models > 0) tape.put_at({tape.storage_of(logits)}, ensemble.logits[at]);
  if (at + 1 < models.size()) {
    plan->finish();
    return plan;
  }
  ensemble.state = state;
  ensemble.columns = chosen == nullptr ? nullptr : chosen->columns.data();
  ensemble.suppressed = wishes.suppressed;
  ensemble.sentences = places;
  ensemble.beam = o.beam;
  ensemble.vocab = c.vocab_target;
  ensemble.ld = tape.info(logits).cols;
  ensemble.dtype = tape.compute_type();
  ensemble.eos = static_cast<int32_t>(c.eos_id);
  ensemble.level = std::min(kernels::cpu_level(), store.kernels().cpu);
  const auto candidates = static_cast<size_t>(rows * o.beam);
  const kernels::BeamStepArgs args{
      .logits = ensemble.mean,
      .state = state,
      .columns = ensemble.columns,
      .phrases = wishes.phrases,
      .log_sums = ensemble.log_sums,
      .suppressed = wishes.suppressed,
      .candidate_scores = plan->scratch(candidates * size_of(store.wide_type())),
      .candidate_ids = static_cast<int32_t*>(plan->scratch(candidates * sizeof(int32_t))),
      .result = memory.results(),
      .sentences = places,
      .beam = o.beam,
      .vocab = c.vocab_target,
      .ld = ensemble.ld,
      .dtype = ensemble.models > 0 ? store.wide_type() : tape.compute_type(),
      .eos = ensemble.eos,
      .banned = static_cast<int32_t>(c.pad_id == c.eos_id ? -1 : c.pad_id),
      .draws = o.sampling,
      .level = ensemble.level};
  // The rules of sentences change the logits where they lie, the last to read them.
  tape.record("beam_step", {logits}, {}, [=](const Run& r) {
    if (ensemble.models > 0) {
      kernels::mean_logits(r.ctx, ensemble);
      return kernels::beam_step(r.ctx, args);
    }
    kernels::BeamStepArgs a = args;
    a.logits = r(logits);
    kernels::beam_step(r.ctx, a);
  });
  plan->finish();
  return plan;
}

}  // namespace saturate::model
