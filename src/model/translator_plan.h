// SPDX-License-Identifier: Apache-2.0
// What a translator runs, recorded once for a number of rows: an encoder pass of new sentences, and a
// step of those under way.
#pragma once
#include <cstdint>

#include "model/translator_memory.h"
#include "ops/tape.h"
#include "runtime/replay.h"

namespace saturate::model {

// Operations with the memory between them, captured as a graph on a GPU.
class TranslatorPlan {
 public:
  virtual ~TranslatorPlan() = default;
  // Enqueues them on the memory's stream. `arena`: arena_bytes() that other plans may use too, when
  // they do not run as graphs; null: its own.
  void run(const Context& ctx, Buffer& shared);

 protected:
  TranslatorPlan(const ParameterStore& store, const TranslatorMemory& memory, bool graph,
                 const char* first, const char* capture);
  void planned();  // after the operations are recorded
  Tape tape_;

 private:
  const Stream& stream_;
  Buffer arena_;  // of a GPU; on the CPU the plans take turns in one
  size_t arena_bytes_ = 0;
  Replay replay_;
};

// Encodes sources of `rows` tokens together and stores what the decoder reads of them.
class EncoderPlan : public TranslatorPlan {
 public:
  // Errors: out_of_memory.
  EncoderPlan(const Transformer& model, const ParameterStore& store, const TranslatorMemory& memory,
              const TranslatorOptions& o, int64_t rows, int64_t longest);
};

// One token of each hypothesis in the places [0, places).
class StepPlan : public TranslatorPlan {
 public:
  // Positions of translations and sources lie below `bound`. `suppressed`: in device memory.
  // Errors: out_of_memory.
  StepPlan(const Transformer& model, const ParameterStore& store, const TranslatorMemory& memory,
           const TranslatorOptions& o, kernels::SuppressedTokens suppressed, int64_t places,
           int64_t bound);

 private:
  Buffer candidate_scores_, candidate_ids_;
};

}  // namespace saturate::model
