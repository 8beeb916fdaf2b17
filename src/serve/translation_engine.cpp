// SPDX-License-Identifier: Apache-2.0
#include "serve/translation_engine.h"

#include <fmt/format.h>

#include <exception>

#include "base/error.h"
#include "base/log.h"
#include "runtime/device.h"

namespace saturate::serve {
namespace {

// Lines handed to the translator, which chooses among them those of like length. Those of a request
// that was cancelled can be taken back only before.
constexpr int64_t kChooseAmong = 1024;

}  // namespace

struct TranslationEngine::Open {
  TranslationJob job;
  TranslationJob::Lines found;
  size_t given = 0, left = 0;
  bool failed = false;
};

TranslationEngine::TranslationEngine(train::LoadedModel model, const TranslateConfig& decode,
                                     int64_t queue)
    : model_(std::move(model)), decode_(decode), queue_(queue) {
  if (model_.config.kind != model::ModelKind::encoder_decoder)
    throw Error(Errc::invalid_argument, "serve", model_.folder + " is a language model");
  make_translator();
  thread_ = std::thread([this] { work(); });
}

TranslationEngine::~TranslationEngine() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  came_.notify_all();
  thread_.join();
}

void TranslationEngine::make_translator() {
  translator_.emplace(model_, decode_,
                      train::LineOptions{.search = {.nbest = static_cast<int>(decode_.beam)}});
  if (model_.store->device().is_cuda()) translator_->warm_up(1);
}

std::vector<int32_t> TranslationEngine::encode(std::string_view line) const {
  std::vector<int32_t> ids = model_.tokenizers.source.encode_sentence(line);
  if (std::ssize(ids) > model_.config.max_positions) {
    throw Error(Errc::invalid_argument, "translate",
                fmt::format("a line has {} tokens and the model takes {}; give one sentence a line",
                            ids.size(), model_.config.max_positions));
  }
  return ids;
}

Admission TranslationEngine::submit(TranslationJob job) {
  const int64_t lines = std::ssize(job.sources);
  auto open = std::make_shared<Open>();
  open->job = std::move(job);
  open->found.resize(open->job.sources.size());
  open->left = open->job.sources.size();
  {
    const std::lock_guard lock(mutex_);
    if (counts_.broken || stop_) return Admission::broken;
    if (counts_.waiting + lines > queue_) return Admission::full;
    counts_.waiting += lines;
    waiting_.push_back(std::move(open));
  }
  came_.notify_one();
  return Admission::accepted;
}

EngineCounts TranslationEngine::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

void TranslationEngine::work() {
  use_device(model_.store->device());
  bool failed_before = false;
  while (true) {
    try {
      if (!translator_) make_translator();
      if (!take()) break;
      translate();
      failed_before = false;
    } catch (const std::exception& e) {
      log_error(fmt::format("{}: {}", model_.folder, e.what()));
      fail_all(e.what());
      translator_.reset();
      if (!failed_before) {
        failed_before = true;
        continue;
      }
      log_error(model_.folder + " failed twice in a row and is served no more");
      const std::lock_guard lock(mutex_);
      counts_.broken = true;
      break;
    }
  }
  fail_all("the server ends");
  translator_.reset();
}

// Hands over what waits; waits for something to do. False: to end.
bool TranslationEngine::take() {
  std::unique_lock lock(mutex_);
  came_.wait(lock, [&] { return stop_ || !waiting_.empty() || !running_.empty(); });
  if (stop_) return false;
  while (!waiting_.empty() && std::ssize(running_) < kChooseAmong) {
    const std::shared_ptr<Open>& open = waiting_.front();
    std::vector<std::vector<int32_t>>& sources = open->job.sources;
    if (open->given == 0 && open->job.cancelled && open->job.cancelled()) {
      counts_.waiting -= std::ssize(sources);
      waiting_.pop_front();
      continue;
    }
    counts_.tokens_in += sources[open->given].size();
    running_.push_back({open, open->given});
    --counts_.waiting;
    translator_->add(std::move(sources[open->given++]));
    if (open->given == sources.size()) waiting_.pop_front();
  }
  counts_.running = std::ssize(running_);
  return true;
}

void TranslationEngine::translate() {
  uint64_t lines = 0;
  translator_->advance([&](std::span<const train::Translation> best) {
    const Line line = std::move(running_.front());
    running_.pop_front();
    ++lines;
    Open& open = *line.job;
    open.found[line.number].assign(best.begin(), best.end());
    if (--open.left == 0 && !open.failed) open.job.done(std::move(open.found));
  });
  const std::lock_guard lock(mutex_);
  counts_.done += lines;
  ++counts_.batches;
  counts_.running = std::ssize(running_);
}

void TranslationEngine::fail_all(const std::string& why) {
  std::deque<std::shared_ptr<Open>> waiting;
  {
    const std::lock_guard lock(mutex_);
    waiting.swap(waiting_);
    counts_.waiting = counts_.running = 0;
  }
  const auto fail = [&](Open& open) {
    if (!std::exchange(open.failed, true)) open.job.failed(why);
  };
  for (const Line& line : running_) fail(*line.job);
  running_.clear();
  for (const auto& open : waiting) fail(*open);
}

}  // namespace saturate::serve
