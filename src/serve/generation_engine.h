// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "model/generator.h"
#include "serve/engine.h"
#include "train/translation.h"

namespace saturate::serve {

// Continuations that one request wants. The functions are called from the engine's thread; after
// done() or failed(), one of which comes once, none is.
struct GenerationJob {
  std::vector<std::vector<int32_t>> prompts;  // at least one, none empty
  model::SamplingOptions sampling;
  std::function<bool()> cancelled;
  // The next token of a continuation; false: it needs no more.
  std::function<bool(size_t prompt, int32_t id)> token;
  std::function<void()> done;
  std::function<void(const std::string& why)> failed;
};

/// One language model and the thread that feeds it; requests wait in a bounded queue.
class GenerationEngine {
 public:
  struct Options {
    int64_t queue = 256;        // sequences that may wait
    int64_t sequences = 8;      // continued side by side
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
  void work();
  void run(GenerationJob& job);

  const train::LoadedModel model_;
  const Options options_;
  std::optional<model::Generator> generator_;  // the thread's

  mutable std::mutex mutex_;  // of everything below but the thread
  std::condition_variable came_;
  std::deque<GenerationJob> waiting_;
  EngineCounts counts_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace saturate::serve
