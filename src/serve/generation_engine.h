// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "model/generator.h"
#include "serve/engine.h"
#include "train/token_scorer.h"
#include "train/translation.h"

namespace saturate::serve {

// Continuations that one request wants. The functions are called from the engine's thread; after
// done() or failed(), one of which comes once, none is.
struct GenerationJob {
  std::vector<std::vector<int32_t>> prompts;  // at least one, none empty
  model::SamplingOptions sampling;
  std::function<bool()> cancelled;
  // The next token of a continuation; false: it needs no more. None where sampling.max_tokens is 0. The
  // last is 0 unless sampling.log_probabilities asks for it.
  std::function<bool(size_t prompt, int32_t id, float log_probability)> token;
  // Log-probabilities that are wanted: of what is added, of the prompts as well; with so many of the
  // likeliest tokens of each place.
  struct Scores {
    bool of_prompts = false;
    int64_t likeliest = 0;
    bool while_made = false;  // in parts: after 1, 2, 4, ... tokens, from 64 on after each 64
  };
  std::optional<Scores> scores = {};
  // Then, once for each prompt, when its continuation has ended: all ids, and the scores of the last of
  // them. Those of a prompt lack its first token, which follows nothing. In parts, the ids so far and the
  // scores of those that are new.
  std::function<void(size_t prompt, std::span<const int32_t> ids,
                     std::span<const train::TokenScore> scores)>
      scored = {};
  std::function<void()> done;
  std::function<void(const std::string& why)> failed;
};

/// One language model and the thread that continues texts with it. Sequences wait in a bounded queue and
/// begin as soon as a place is free, in the middle of others; none depends on those beside it (GPU: to
/// rounding, unless same_bits).
class GenerationEngine {
 public:
  struct Options {
    int64_t queue = 256;        // sequences that may wait
    int64_t sequences = 8;      // continued side by side
    bool same_bits = false;     // as model::GeneratorOptions
    int64_t max_length = 2048;  // prompt and continuation; at most what the model takes
  };
  // Errors: those of Generator; invalid_argument for a translation model.
  GenerationEngine(train::LoadedModel model, const Options& options);
  ~GenerationEngine();  // cuts off what runs
  GenerationEngine(const GenerationEngine&) = delete;
  GenerationEngine& operator=(const GenerationEngine&) = delete;

  // From any thread. A job that is not accepted is dropped; none of its functions is called.
  Admission submit(GenerationJob job);
  EngineCounts counts() const;
  int64_t queue() const noexcept { return options_.queue; }
  int64_t max_length() const noexcept { return options_.max_length; }
  const train::LoadedModel& model() const noexcept { return model_; }

 private:
  struct Open;  // a job that was accepted
  struct Sequence {
    std::shared_ptr<Open> open;
    size_t number;
    std::vector<int32_t> added = {};  // where scores are wanted
    size_t scored = 0;                // of them, in parts
  };
  model::GeneratorOptions generator_options() const;
  void work();  // the thread, as the next
  bool take(std::vector<Sequence>& sequences);
  void begin(Sequence sequence);
  void step();
  void token(int64_t ticket, int32_t id, float log_probability);
  void end(int64_t ticket);
  void close(const Sequence& sequence);
  void score(Sequence& sequence);
  void fail_under_way(const std::string& why);

  const train::LoadedModel model_;
  const Options options_;
  std::unique_ptr<model::Generator> generator_;
  std::unique_ptr<train::TokenScorer> scorer_;  // once it was asked for
  std::vector<Sequence> to_score_;              // of one step
  std::map<int64_t, Sequence> under_way_;       // by the generator's tickets
  uint64_t ended_ = 0, tokens_ = 0;             // of one step

  mutable std::mutex mutex_;  // of everything below but the thread
  std::condition_variable came_;
  std::deque<std::shared_ptr<Open>> waiting_;
  EngineCounts counts_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace saturate::serve
