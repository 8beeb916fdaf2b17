// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/error.h"
#include "serve/engine.h"
#include "train/line_translator.h"
#include "train/translation.h"

namespace saturate::serve {

// Lines that one request wants translated. The functions are called once, one of the two, from a
// thread of the engine's.
struct TranslationJob {
  using Lines = std::vector<std::vector<train::Translation>>;  // of each line, the best first
  std::vector<std::vector<int32_t>> sources;                   // from encode(); at least one
  // Of every line; its nbest is cut to the beam, and its prefix comes before that of the line.
  model::SearchOptions search = {};
  std::vector<std::vector<int32_t>> prefixes = {};  // of each line, or none
  // That each line's translation holds (model::SearchOptions), or none.
  std::vector<std::vector<std::vector<int32_t>>> phrases = {};
  std::function<bool()> cancelled;
  std::function<void(Lines)> done;
  // With invalid_argument a line asks for what no line may have; else the machine's fault.
  std::function<void(Errc code, const std::string& why)> failed;
};

/// One translation model and the threads that translate: one on a GPU, cpu_threads() on the CPU. Lines
/// wait in a bounded queue and begin as soon as a place is free, in the middle of others. What a line
/// becomes depends neither on what came with it nor on when it came (GPU: to rounding, unless
/// same_bits).
class TranslationEngine {
 public:
  // `queue`: lines that may wait. Returns when it is ready, on a GPU down to the kernels. Errors: those
  // of model::Translator; invalid_argument for a language model.
  TranslationEngine(train::LoadedModel model, const TranslateConfig& decode, int64_t queue,
                    const train::LineOptions& lines = {});
  ~TranslationEngine();  // cuts off what is being translated
  TranslationEngine(const TranslationEngine&) = delete;
  TranslationEngine& operator=(const TranslationEngine&) = delete;

  // Ids of a line, with end-of-sentence. From any thread. Errors: invalid_argument, with both
  // numbers, for more tokens than the model takes.
  std::vector<int32_t> encode(std::string_view line) const;
  // The same between other ids, of a multilingual model.
  std::vector<int32_t> encode(std::string_view line, const data::TextFrame& frame) const;
  // Ids of a phrase that a translation is to hold; `place` is where it was given. From any thread. Errors:
  // invalid_argument as train::encode_phrase(), and for one without text.
  std::vector<int32_t> encode_phrase(std::string_view phrase, const std::string& place) const;
  // From any thread. A job that is not accepted is dropped; none of its functions is called.
  Admission submit(TranslationJob job);

  int64_t queue() const noexcept { return queue_; }
  EngineCounts counts() const;
  const train::LoadedModel& model() const noexcept { return model_; }

 private:
  struct Open;  // a job that was accepted
  struct Line {
    std::shared_ptr<Open> job;
    size_t number;
  };
  using UnderWay = std::map<int64_t, Line>;  // by the translator's tickets
  std::vector<int32_t> checked(std::vector<int32_t> ids) const;
  void work(bool first);
  void translate(model::Translator& translator, UnderWay& lines);
  std::vector<Line> take(int64_t held);
  void ended(const Line& line, std::vector<model::Hypothesis> found) const;
  void count(int64_t lines, bool done);
  void stop();

  const train::LoadedModel model_;
  const model::TranslatorOptions options_;
  const int64_t queue_, few_;
  const int thread_count_;

  mutable std::mutex mutex_;  // of everything below but the threads
  std::condition_variable came_;
  std::deque<std::shared_ptr<Open>> waiting_;
  EngineCounts counts_;
  bool stop_ = false, ready_ = false;
  std::string error_;  // why it is broken
  std::vector<std::thread> threads_;
};

}  // namespace saturate::serve
