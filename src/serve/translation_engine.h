// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "train/line_translator.h"
#include "train/translation.h"

namespace saturate::serve {

enum class Admission { accepted, full, broken };

// What an engine has done and has before it.
struct EngineCounts {
  int64_t waiting = 0, running = 0;  // lines or sequences
  uint64_t done = 0, tokens_in = 0, tokens_out = 0, batches = 0;
  bool broken = false;
};

// Lines that one request wants translated. The functions are called once, one of the two, from the
// engine's thread.
struct TranslationJob {
  using Lines = std::vector<std::vector<train::Translation>>;  // of each line, the best first
  std::vector<std::vector<int32_t>> sources;                   // from encode(); at least one
  std::function<bool()> cancelled;
  std::function<void(Lines)> done;
  std::function<void(const std::string& why)> failed;
};

/// One translation model and the thread that feeds it: requests wait in a bounded queue, whatever
/// waits is translated together. What a line becomes depends neither on what came with it nor on
/// when it came.
class TranslationEngine {
 public:
  // Loads the model and makes it ready, on the GPU down to the kernels. `queue`: lines that may wait.
  // Errors: those of load_model and LineTranslator; invalid_argument for a language model.
  TranslationEngine(train::LoadedModel model, const TranslateConfig& decode, int64_t queue);
  ~TranslationEngine();  // after the batch that is being translated; what waits then fails
  TranslationEngine(const TranslationEngine&) = delete;
  TranslationEngine& operator=(const TranslationEngine&) = delete;

  // Ids of a line, with end-of-sentence. From any thread. Errors: invalid_argument, with both
  // numbers, for more tokens than the model takes.
  std::vector<int32_t> encode(std::string_view line) const;
  // From any thread. A job that is not accepted is dropped; none of its functions is called.
  Admission submit(TranslationJob job);

  int64_t queue() const noexcept { return queue_; }
  EngineCounts counts() const;
  const train::LoadedModel& model() const noexcept { return model_; }

 private:
  struct Open;  // a job of which lines are out
  struct Line {
    std::shared_ptr<Open> job;
    size_t number;
  };
  void work();
  void make_translator();
  bool take();
  void translate();
  void fail_all(const std::string& why);

  const train::LoadedModel model_;
  const TranslateConfig decode_;
  const int64_t queue_;
  std::optional<train::LineTranslator> translator_;  // the thread's, as the next
  std::deque<Line> running_;                         // in the order of the translator

  mutable std::mutex mutex_;  // of everything below but the thread
  std::condition_variable came_;
  std::deque<std::shared_ptr<Open>> waiting_;
  EngineCounts counts_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace saturate::serve
