// SPDX-License-Identifier: Apache-2.0
// Translators that work side by side on the CPU.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "model/translator.h"

namespace saturate::train {

// Sentences that are translated together, and what became of them.
struct TranslationBatch {
  std::vector<int64_t> lines;                 // the caller's numbers
  std::vector<std::vector<int32_t>> sources;  // of these lines
  // By line, the best first; the best alone, without its scores, unless all were asked for.
  std::vector<std::vector<model::Hypothesis>> found;
};

// All hypotheses of a batch's sources, or (`all` false) the best alone into `found`. Errors: the
// translator's.
void translate(model::Translator& translator, bool all, TranslationBatch& batch);

/// Translates batches side by side: each thread has a translator of its own on the same weights and
/// computes alone, since the operations of one small batch are too short to be shared between
/// cores. A thread's memory is made with its first batch. Its methods: from one thread.
class TranslationWorkers {
 public:
  // `options` are of each translator's batches. Errors: out_of_memory where the system gives no
  // more threads.
  TranslationWorkers(const model::Transformer& model, const ParameterStore& store,
                     const model::TranslatorOptions& options, int threads, bool all);
  ~TranslationWorkers();  // ends after the batches that are being translated
  TranslationWorkers(const TranslationWorkers&) = delete;
  TranslationWorkers& operator=(const TranslationWorkers&) = delete;

  int threads() const noexcept { return static_cast<int>(threads_.size()); }
  // Batches given and not yet taken.
  int64_t held() const noexcept { return held_; }
  void give(TranslationBatch batch);
  // The next that is done, waiting for it; at least one is held. Errors: what a batch met, the
  // first that failed.
  TranslationBatch take();

 private:
  void work();
  void stop();

  const model::Transformer& model_;
  const ParameterStore& store_;
  const model::TranslatorOptions options_;
  const bool all_;
  int64_t held_ = 0;  // the caller's
  std::mutex mutex_;  // of everything below but the threads
  std::condition_variable came_, done_;
  std::deque<TranslationBatch> waiting_, ready_;
  std::exception_ptr error_;
  bool stop_ = false;
  std::vector<std::thread> threads_;  // the last: they use the others
};

}  // namespace saturate::train
