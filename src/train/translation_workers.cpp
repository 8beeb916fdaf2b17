// SPDX-License-Identifier: Apache-2.0
#include "train/translation_workers.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "base/error.h"
#include "runtime/long_loops.h"
#include "runtime/parallel_for.h"
#include "runtime/start_threads.h"

namespace saturate::train {

TranslationWorkers::TranslationWorkers(std::vector<model::EnsembleModel> models,
                                       const model::TranslatorOptions& options, int threads,
                                       int64_t few)
    : models_(std::move(models)),
      options_(options),
      count_(threads),
      few_(few),
      shares_(!models_[0].store->device().is_cuda() && threads > 1 && threads <= allowed_cpus()) {
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
  try {
    translate();
  } catch (...) {
    const std::lock_guard lock(mutex_);
    if (!error_) error_ = std::current_exception();
    stop_ = true;
  }
  came_.notify_all();
  done_.notify_one();
}

void TranslationWorkers::translate() {
  std::optional<model::Translator> translator;
  std::map<int64_t, int64_t> lines;  // by ticket
  std::vector<TranslationTask> tasks;
  std::vector<TranslationResult> results;
  for (;;) {
    bool only_one = false;  // with sentences
    {
      std::unique_lock lock(mutex_);
      came_.wait(lock, [&] { return stop_ || !waiting_.empty() || !lines.empty(); });
      if (stop_) return;
      const int64_t share = (std::ssize(waiting_) + under_way_ + count_ - 1) / count_;
      // A translator of a GPU has a queue of its own and encodes from it ahead.
      const int64_t most = models_[0].store->device().is_cuda()
                               ? std::numeric_limits<int64_t>::max()
                               : std::min(options_.sentences, std::max(share, few_));
      while (!waiting_.empty() && std::ssize(lines) + std::ssize(tasks) < most) {
        tasks.push_back(std::move(waiting_.front()));
        waiting_.pop_front();
        ++under_way_;
      }
      only_one = waiting_.empty() && under_way_ == std::ssize(lines) + std::ssize(tasks);
    }
    if (!translator) translator.emplace(models_, options_);
    for (TranslationTask& t : tasks) {
      lines.emplace(translator->add(std::move(t.source), t.search), t.line);
    }
    tasks.clear();
    std::optional<LongLoopsShared> shared;
    if (shares_ && only_one) shared.emplace();
    translator->step([&](int64_t ticket, std::vector<model::Hypothesis> found) {
      results.push_back({lines.extract(ticket).mapped(), std::move(found)});
    });
    if (results.empty()) continue;
    const std::lock_guard lock(mutex_);
    under_way_ -= std::ssize(results);
    for (TranslationResult& r : results) ready_.push_back(std::move(r));
    results.clear();
    done_.notify_one();
  }
}

void TranslationWorkers::give(std::vector<TranslationTask> tasks) {
  held_ += std::ssize(tasks);
  {
    const std::lock_guard lock(mutex_);
    for (TranslationTask& t : tasks) waiting_.push_back(std::move(t));
  }
  came_.notify_all();
}

std::vector<TranslationResult> TranslationWorkers::take() {
  SAT_ASSERT(held_ > 0);
  std::unique_lock lock(mutex_);
  done_.wait(lock, [this] { return error_ || !ready_.empty(); });
  if (error_) std::rethrow_exception(error_);
  std::vector<TranslationResult> results = std::exchange(ready_, {});
  held_ -= std::ssize(results);
  return results;
}

}  // namespace saturate::train
