// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "model/transformer.h"

namespace saturate::model {

struct GeneratorOptions {
  int64_t sequences = 8;      // continued side by side
  int64_t max_length = 1024;  // prompt and continuation together
  bool graph = true;          // replay the step as a CUDA graph
};

struct SamplingOptions {
  float temperature = 1.0f;  // 0: always the likeliest token
  int64_t top_k = 0;         // draw among the k likeliest tokens; 0: all
  float top_p = 1.0f;        // draw among the likeliest tokens with this share, in (0, 1]
  int64_t max_tokens = 128;  // a continuation has no more
  uint64_t seed = 1;
  bool stop_at_eos = true;
};

/// Continues token sequences with a decoder-only model and a key/value cache. Planned once for the
/// options' shapes. The store's weights may change between calls; nothing of them is kept. One
/// thread at a time.
class Generator {
 public:
  // `store` is allocated and outlives this; `model` declared its parameters in it.
  // Errors: invalid_argument, out_of_memory.
  Generator(const Transformer& model, const ParameterStore& store, const GeneratorOptions& options);
  ~Generator();

  // Called in order for each prompt while tokens come, a few steps after the device made them.
  using OnToken = std::function<void(size_t prompt, int32_t id)>;

  // The continuations, without prompt and end-of-sentence. What prompt i gets depends on its ids, i
  // and the seed, not on the others (CPU: exactly; GPU: to the rounding of matrix products). Equal
  // prompts draw different numbers. Errors: invalid_argument naming the prompt that is empty, too
  // long or holds an unknown id, or the option; NonFiniteScores (finite.h).
  std::vector<std::vector<int32_t>> generate(std::span<const std::vector<int32_t>> prompts,
                                             const SamplingOptions& sampling,
                                             const OnToken& on_token = {});

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace saturate::model
