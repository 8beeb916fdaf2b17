// SPDX-License-Identifier: Apache-2.0
#include "serve/generation_engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>

#include "base/error.h"
#include "base/log.h"
#include "runtime/device.h"

namespace saturate::serve {
namespace {

// Leaves Generator::generate() early.
struct Enough {};

}  // namespace

GenerationEngine::GenerationEngine(train::LoadedModel model, const Options& options)
    : model_(std::move(model)), options_([&] {
        Options o = options;
        o.max_length = std::min(o.max_length, model_.config.max_positions);
        return o;
      }()) {
  generator_.emplace(
      *model_.transformer, *model_.store,
      model::GeneratorOptions{.sequences = options_.sequences, .max_length = options_.max_length});
  thread_ = std::thread([this] { work(); });
}

GenerationEngine::~GenerationEngine() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  came_.notify_all();
  thread_.join();
}

Admission GenerationEngine::submit(GenerationJob job) {
  {
    const std::lock_guard lock(mutex_);
    if (counts_.broken || stop_) return Admission::broken;
    if (counts_.waiting + std::ssize(job.prompts) > options_.queue) return Admission::full;
    counts_.waiting += std::ssize(job.prompts);
    waiting_.push_back(std::move(job));
  }
  came_.notify_one();
  return Admission::accepted;
}

EngineCounts GenerationEngine::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

void GenerationEngine::work() {
  use_device(model_.store->device());
  while (true) {
    std::unique_lock lock(mutex_);
    came_.wait(lock, [&] { return stop_ || !waiting_.empty(); });
    if (stop_) break;
    GenerationJob job = std::move(waiting_.front());
    waiting_.pop_front();
    counts_.waiting -= std::ssize(job.prompts);
    if (job.cancelled && job.cancelled()) continue;
    counts_.running = std::ssize(job.prompts);
    lock.unlock();
    run(job);
    lock.lock();
    counts_.running = 0;
    counts_.done += job.prompts.size();
    ++counts_.steps;
  }
  const std::lock_guard lock(mutex_);
  for (GenerationJob& job : waiting_) job.failed("the server ends");
  waiting_.clear();
}

void GenerationEngine::run(GenerationJob& job) {
  std::vector<bool> open(job.prompts.size(), true);
  size_t left = open.size();
  uint64_t tokens = 0, prompt_tokens = 0;
  for (const auto& prompt : job.prompts) prompt_tokens += prompt.size();
  const auto on_token = [&](size_t prompt, int32_t id) {
    if (stop_ || (job.cancelled && job.cancelled())) throw Enough();
    if (!open[prompt]) return;
    ++tokens;
    if (job.token(prompt, id)) return;
    open[prompt] = false;
    if (--left == 0) throw Enough();
  };
  try {
    generator_->generate(job.prompts, job.sampling, on_token);
    job.done();
  } catch (const Enough&) {
    job.done();
  } catch (const std::exception& e) {
    log_error(fmt::format("{}: {}", model_.folder, e.what()));
    job.failed(e.what());
  }
  const std::lock_guard lock(mutex_);
  counts_.tokens_in += prompt_tokens;
  counts_.tokens_out += tokens;
}

}  // namespace saturate::serve
