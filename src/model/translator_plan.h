// SPDX-License-Identifier: Apache-2.0
// What a translator runs, recorded once for a number of rows: an encoder pass of new sentences, and a
// step of those under way.
#pragma once
#include <cstdint>
#include <memory>

#include "model/candidate_output.h"
#include "model/recorded_plan.h"
#include "model/translator_memory.h"

namespace saturate::model {

// Encodes sources of `rows` tokens together and stores what the decoder reads of them. Errors:
// out_of_memory.
std::unique_ptr<RecordedPlan> record_encoder(const Transformer& model, const ParameterStore& store,
                                             const TranslatorMemory& memory,
                                             const TranslatorOptions& o, int64_t rows);

// One token of each hypothesis in the places [0, places). Positions of translations and sources lie
// below `bound`. `suppressed`: in device memory. `candidates` and `phrases`: of every place, read when the step
// runs; null: translations may hold all tokens, and must hold none. Errors: out_of_memory.
std::unique_ptr<RecordedPlan> record_step(const Transformer& model, const ParameterStore& store,
                                          const TranslatorMemory& memory,
                                          const TranslatorOptions& o,
                                          kernels::SuppressedTokens suppressed,
                                          const CandidatePlaces* candidates,
                                          const kernels::TokenPhrases* phrases, int64_t places,
                                          int64_t bound);

}  // namespace saturate::model
