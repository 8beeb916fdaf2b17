// SPDX-License-Identifier: Apache-2.0
#include "train/translation_workers.h"

#include <utility>

#include "base/error.h"
#include "runtime/parallel_for.h"
#include "runtime/start_threads.h"

namespace saturate::train {

void translate(model::Translator& translator, bool all, TranslationBatch& batch) {
  if (all) {
    batch.found = translator.search(batch.sources);
    return;
  }
  batch.found.clear();
  for (std::vector<int32_t>& ids : translator.translate(batch.sources)) {
    batch.found.emplace_back().push_back({.ids = std::move(ids)});
  }
}

TranslationWorkers::TranslationWorkers(const model::Transformer& model, const ParameterStore& store,
                                       const model::TranslatorOptions& options, int threads,
                                       bool all)
    : model_(model), store_(store), options_(options), all_(all) {
  start_threads(
      threads_, threads, "translation", [this](int) { work(); }, [this] { stop(); });
}

TranslationWorkers::~TranslationWorkers() {
  stop();
  for (std::thread& t : threads_) t.join();
}

void TranslationWorkers::stop() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  came_.notify_all();
}

void TranslationWorkers::work() {
  const InOneThread alone;
  std::optional<model::Translator> translator;
  std::unique_lock lock(mutex_);
  for (;;) {
    came_.wait(lock, [this] { return stop_ || !waiting_.empty(); });
    if (stop_) return;
    TranslationBatch batch = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    std::exception_ptr error;
    try {
      if (!translator) translator.emplace(model_, store_, options_);
      translate(*translator, all_, batch);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    if (error && !error_) error_ = error;
    ready_.push_back(std::move(batch));
    done_.notify_one();
  }
}

void TranslationWorkers::give(TranslationBatch batch) {
  {
    const std::lock_guard lock(mutex_);
    waiting_.push_back(std::move(batch));
  }
  ++held_;
  came_.notify_one();
}

TranslationBatch TranslationWorkers::take() {
  SAT_ASSERT(held_ > 0);
  std::unique_lock lock(mutex_);
  done_.wait(lock, [this] { return error_ || !ready_.empty(); });
  if (error_) std::rethrow_exception(error_);
  TranslationBatch batch = std::move(ready_.front());
  ready_.pop_front();
  --held_;
  return batch;
}

}  // namespace saturate::train
