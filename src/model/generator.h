// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "model/token_constraint.h"
#include "model/transformer.h"

namespace saturate::model {

// Of all sequences that one generator gets; memory is planned for it.
struct GeneratorOptions {
  int64_t sequences = 8;      // at most, continued side by side
  int64_t max_length = 1024;  // prompt and continuation together
  // Tokens of prompts that are read together; a longer prompt alone. 0: 2048, or 8192 where the device is
  // large (usual_prompt_rows()).
  int64_t prompt_rows = 0;
  bool graph = true;                     // replay the step as a CUDA graph
  bool same_bits = false;                // as TranslatorOptions::same_bits
  std::vector<int32_t> suppressed = {};  // ids that no continuation may hold
};

constexpr int64_t kMostBiases = 1024;  // of one sequence

// What one sequence wants.
struct SamplingOptions {
  float temperature = 1.0f;  // 0: always the likeliest token
  int64_t top_k = 0;         // draw among the k likeliest tokens; 0: all
  float top_p = 1.0f;        // draw among the likeliest tokens with this share, in (0, 1]
  float min_p = 0.0f;        // and among those at least so many times as likely as the likeliest
  int64_t max_tokens = 128;  // a continuation has no more
  uint64_t seed = 1;
  bool stop_at_eos = true;
  std::vector<int32_t> stop_ids = {};  // end it as well, at most 7
  // Which of the seed's random numbers; else the sequence's number, so that equal prompts differ.
  std::optional<int32_t> stream = {};
  // Changes of the logits before all of the above, of prompt and continuation together, as
  // transformers' and CTranslate2's (kernels/decode/token_rules.h).
  float repetition_penalty = 1.0f;
  float presence_penalty = 0.0f, frequency_penalty = 0.0f;  // of the continuation alone
  int64_t no_repeat_ngram = 0;
  int64_t min_tokens = 0;  // no end before so many
  int32_t adapter = -1;    // of the model's side by side (Lora::side_by_side); -1: none
  bool log_probabilities =
      false;  // of the tokens, from softmax(logits) without temperature and cuts
  // Added to the logits of these ids before all else, each id once, finite, at most kMostBiases.
  std::vector<std::pair<int32_t, float>> biases = {};
  // What the continuation is held to; needs stop_at_eos. Its tokens are looked at before the next step is
  // begun, so that on a GPU all that is under way with it waits for the host at each step.
  std::shared_ptr<TokenConstraint> constraint = {};
};

// not_finite: no token had a score that is a number; no_token: none was allowed.
enum class Ending : uint8_t { stop, length, not_finite, no_token };

// What was added to a prompt.
struct Continuation {
  std::vector<int32_t> ids;              // without the id that ended it
  std::vector<float> log_probabilities;  // of each, if they were asked for
  Ending ending = Ending::length;
};

/// Continues token sequences with a decoder-only model and a key/value cache. Prompts are read in one
/// pass (a model with a mixer that cannot, token by token); sequences are under way side by side, and
/// when one ends the next takes its place. What a sequence becomes does not depend on the others
/// (CPU: bit for bit; GPU: to the rounding of matrix products, or bit for bit with same_bits). The
/// store's weights may change while nothing is under way. One thread at a time.
///
/// A server owns it from one thread, as a Translator (translator.h): add(), step() and cancel(). A
/// stop string is found in the text by the caller, who then cancels (train/text_stream.h).
class Generator {
 public:
  // `store` is allocated and outlives this; `model` declared its parameters in it.
  // Errors: invalid_argument, out_of_memory.
  Generator(const Transformer& model, const ParameterStore& store, const GeneratorOptions& options);
  ~Generator();

  // A prompt joins those that wait; returns the number by which its tokens come, never given before.
  // Errors: invalid_argument naming what is empty, too long, no id, or an option out of its range;
  // nothing is added then.
  int64_t add(std::vector<int32_t> prompt, const SamplingOptions& sampling = {});

  // One token of a sequence, in their order, a step or two after the device made it;
  // log_probability is 0 unless it was asked for.
  using OnToken = std::function<void(int64_t ticket, int32_t id, float log_probability)>;
  // All of them, after the last; by the number.
  using OnEnd = std::function<void(int64_t ticket, Continuation all)>;

  // Lets prompts that wait into places that are free, computes one token of all sequences that are
  // under way, and hands over what has come. Either may be empty, and may call add() and cancel().
  // Returns at once when nothing is held. Errors: out_of_memory, device; what was held is lost then.
  void step(const OnToken& on_token, const OnEnd& on_end);

  // Nothing more comes of the sequence; its place is free at the next step. No effect on one that has
  // ended.
  void cancel(int64_t ticket);

  int64_t held() const noexcept;  // sequences added and not yet ended or cancelled
  int64_t room() const noexcept;  // places that neither a sequence under way nor a waiting one has

  // The continuations of all prompts, in their order. Prompt i draws the numbers of stream i, so that
  // equal prompts differ. Nothing else may be held. Errors: those of add(), naming the prompt;
  // NonFiniteScores (finite.h).
  std::vector<std::vector<int32_t>> generate(
      std::span<const std::vector<int32_t>> prompts, const SamplingOptions& sampling,
      const std::function<void(size_t prompt, int32_t id)>& on_token = {});

  const GeneratorOptions& options() const noexcept;  // as they are used

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace saturate::model
