// SPDX-License-Identifier: Apache-2.0
// Translators in threads of their own: side by side on the CPU, one on a GPU.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "model/translator.h"

namespace saturate::train {

// A source and what it wants, under the caller's number.
struct TranslationTask {
  int64_t line = 0;
  std::vector<int32_t> source;
  model::SearchOptions search = {};
};
struct TranslationResult {
  int64_t line = 0;
  std::vector<model::Hypothesis> found;  // as Translator::OnDone
};

/// Translates side by side: each thread has a translator of its own on the same weights and
/// computes alone, since most operations of a few sentences are too short to be shared between
/// cores; only while no other thread has a sentence, and there is a core for each, are its products
/// shared. It takes new sentences from the queue of all while others of its own are under way, as many
/// as are its share. A thread's memory is made with its first sentence. Its methods: from one thread.
///
/// On a GPU there is one thread, which takes all sentences and does nothing but keep the device at
/// work: what becomes of results is the caller's, beside it. What is translated together depends on
/// the calls of give() alone, as long as so many sentences wait that none of them is needed at once.
class TranslationWorkers {
 public:
  // `models` translate together (model::Translator); what they point to outlives this. `options` are of each translator; on a GPU `threads` is 1. Threads that have fewer than `few`
  // sentences take more while others have none: a step costs nearly as much. Errors: out_of_memory
  // where the system gives no more threads.
  TranslationWorkers(std::vector<model::EnsembleModel> models,
                     const model::TranslatorOptions& options, int threads, int64_t few);
  ~TranslationWorkers();  // ends after the steps that are being computed
  TranslationWorkers(const TranslationWorkers&) = delete;
  TranslationWorkers& operator=(const TranslationWorkers&) = delete;

  // Tasks given whose results have not been taken.
  int64_t held() const noexcept { return held_; }
  void give(std::vector<TranslationTask> tasks);
  // What has been done since, waiting for at least one; at least one is held. Errors: what a thread
  // met, the first.
  std::vector<TranslationResult> take();

 private:
  void work();
  void translate();
  void stop();

  const std::vector<model::EnsembleModel> models_;
  const model::TranslatorOptions options_;
  const int64_t count_, few_;  // threads; see the constructor
  const bool shares_;          // products, while a thread is alone
  int64_t held_ = 0;           // the caller's
  std::mutex mutex_;           // of everything below but the threads
  std::condition_variable came_, done_;
  std::deque<TranslationTask> waiting_;
  std::vector<TranslationResult> ready_;
  int64_t under_way_ = 0;
  std::exception_ptr error_;
  bool stop_ = false;
  std::vector<std::thread> threads_;  // the last: they use the others
};

}  // namespace saturate::train
