// SPDX-License-Identifier: Apache-2.0
// What a translator runs, recorded once for a number of rows: an encoder pass of new sentences, and a
// step of those under way.
#pragma once
#include <cstdint>
#include <memory>
#include <span>

#include "model/candidate_output.h"
#include "model/recorded_plan.h"
#include "model/translator_memory.h"

namespace saturate::model {

// Encodes sources of `rows` tokens together and stores what the decoder of models[model] reads of them. Errors:
// out_of_memory.
std::unique_ptr<RecordedPlan> record_encoder(std::span<const EnsembleModel> models, size_t model,
                                             const TranslatorMemory& memory,
                                             const TranslatorOptions& o, int64_t rows);

// What all steps of a translator look at, when they run. `suppressed`: in device memory. `candidates`, those of
// each model, and `phrases`: of every place; empty and null: translations may hold all tokens, and must hold none.
struct StepWishes {
  kernels::SuppressedTokens suppressed = {};
  std::span<const CandidatePlaces> candidates = {};
  const kernels::TokenPhrases* phrases = nullptr;
};

// One token of each hypothesis in the places [0, places), as far as models[model] goes: the last one ends with
// the step of the search. Positions of translations and sources lie below `bound`. Errors: out_of_memory.
std::unique_ptr<RecordedPlan> record_step(std::span<const EnsembleModel> models, size_t model,
                                          const TranslatorMemory& memory,
                                          const TranslatorOptions& o, const StepWishes& wishes,
                                          int64_t places, int64_t bound);

}  // namespace saturate::model
