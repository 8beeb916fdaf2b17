// SPDX-License-Identifier: Apache-2.0
// What the sequences of one generator have in memory, and what is recorded to run on it.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "kernels/decode/sample_step.h"
#include "model/decode_cache.h"
#include "model/generator.h"
#include "model/recorded_plan.h"
#include "runtime/memory.h"

namespace saturate::model {

class GeneratorMemory {
 public:
  // All rows empty. `prompt_rows`: tokens of prompts that are read together. Errors: out_of_memory.
  GeneratorMemory(const Transformer& model, const ParameterStore& store, const GeneratorOptions& o,
                  int64_t prompt_rows);

  // Sequences that begin together, and what happens to rows.
  struct Intake {
    std::vector<kernels::SamplePlacement> placements;
    std::vector<int32_t> prompts;         // all ids, one prompt after the other
    std::vector<int32_t> ids, positions;  // of what is read in one pass
    std::vector<int32_t> slots;           // where its keys and values go
    std::vector<int32_t> adapters;        // which each has
    std::vector<int32_t> cu = {0};
    bool empty() const { return placements.empty(); }
  };
  // As TranslatorMemory::take_in.
  void take_in(const Context& ctx, const Intake& intake, int64_t prompt_rows, int turn);
  void clear();  // empties all rows

  // Of one part of the result.
  void expect(int64_t part);
  int32_t ending(int64_t part) const;  // 0: it goes on; to be read before drawn()
  int32_t drawn(int64_t part) const;   // so many tokens are there
  int32_t token(int64_t part, int64_t i) const { return tokens_of(part)[2 + i]; }
  float log_probability(int64_t part, int64_t i) const;
  // What the sequence of a part asks by id, while no step that reads it runs. Words behind those given
  // allow nothing.
  void set_biases(int64_t part, std::span<const std::pair<int32_t, float>> biases);
  void set_allowed(int64_t part, std::span<const uint32_t> words);

  const Stream& stream() const noexcept { return stream_; }
  const Transformer& model() const noexcept { return model_; }
  int64_t rows() const noexcept { return rows_; }
  kernels::SampleState state() const;
  kernels::SampleResult result() const;
  kernels::SampleChoices choices() const;
  std::vector<MixerStep> steps(int64_t bound) const;

  // The pieces that a row of queries, keys and values is stored in: keys and values lie behind the
  // queries, and both are whole numbers of pieces.
  struct Pieces {
    int64_t width = 1, of_queries = 0, of_keys = 0;
    int64_t all() const { return of_queries + of_keys; }
  };
  const Pieces& pieces() const noexcept { return pieces_; }
  struct PromptInput {
    int32_t *ids, *positions, *adapters, *places, *cu;
  };
  PromptInput prompt_input(int64_t prompt_rows) const;

 private:
  enum Row : int64_t { ids, positions, finished, starts, row_arrays };
  int32_t* row_array(Row which) const {
    return row_words_.as<int32_t>() + static_cast<int64_t>(which) * rows_;
  }
  int32_t* tokens_of(int64_t part) const { return tokens_drawn_.as<int32_t>() + part * stride_; }
  int64_t input_words(int64_t rows) const { return (3 + pieces_.all()) * rows + rows_ + 1; }

  const Transformer& model_;
  const int64_t rows_, stride_, words_;
  const Pieces pieces_;
  Stream stream_;
  Buffer row_words_, sequences_, tokens_;
  Buffer placements_, prompts_, input_;
  HostBuffer host_placements_[2], host_prompts_[2], host_input_[2];
  HostBuffer tokens_drawn_, log_probabilities_;
  HostBuffer biases_, allowed_;  // the device reads them where they lie
  DecodeCache cache_;
};

// Reads prompts of `rows` tokens together. Errors: out_of_memory.
std::unique_ptr<RecordedPlan> record_prompts(const ParameterStore& store,
                                             const GeneratorMemory& memory,
                                             const GeneratorOptions& o, int64_t rows);
// One token of each of the first `rows` sequences, whose positions lie below `bound`. Errors:
// out_of_memory.
std::unique_ptr<RecordedPlan> record_step(const ParameterStore& store,
                                          const GeneratorMemory& memory, const GeneratorOptions& o,
                                          kernels::SuppressedTokens suppressed, int64_t rows,
                                          int64_t bound);

}  // namespace saturate::model
