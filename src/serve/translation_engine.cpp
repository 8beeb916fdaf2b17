// SPDX-License-Identifier: Apache-2.0
#include "serve/translation_engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <optional>

#include "base/error.h"
#include "base/log.h"
#include "runtime/device.h"
#include "runtime/parallel_for.h"
#include "runtime/start_threads.h"
#include "train/ensemble.h"

namespace saturate::serve {

struct TranslationEngine::Open {
  explicit Open(TranslationJob j)
      : job(std::move(j)), found(job.sources.size()), left(found.size()) {}

  TranslationJob job;
  TranslationJob::Lines found;
  size_t given = 0;  // lines that threads have taken; by the engine's mutex
  std::atomic<size_t> left;
  std::atomic<bool> failed{false};

  void fail(const std::string& why, Errc code = Errc::device) {
    if (!failed.exchange(true)) job.failed(code, why);
  }
};

TranslationEngine::TranslationEngine(train::LoadedModel model, const TranslateConfig& decode,
                                     int64_t queue, const train::LineOptions& lines)
    : model_(std::move(model)),
      options_(train::line_translator_options(model_, decode, lines)),
      queue_(queue),
      few_(train::few_lines(decode, options_)),
      thread_count_(model_.store->device().is_cuda() ? 1 : cpu_threads()) {
  start_threads(
      threads_, thread_count_, "translation", [this](int i) { work(i == 0); }, [this] { stop(); });
  std::unique_lock lock(mutex_);
  came_.wait(lock, [this] { return ready_ || counts_.broken; });
  if (!counts_.broken) return;
  lock.unlock();
  stop();
  for (std::thread& t : threads_) t.join();
  throw Error(Errc::out_of_memory, "serve", model_.folder + ": " + error_);
}

TranslationEngine::~TranslationEngine() {
  stop();
  for (std::thread& t : threads_) t.join();
  for (const auto& open : waiting_) open->fail("the server ends");
}

void TranslationEngine::stop() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  came_.notify_all();
}

std::vector<int32_t> TranslationEngine::encode(std::string_view line) const {
  return checked(model_.tokenizers.source.encode_sentence(line));
}

std::vector<int32_t> TranslationEngine::encode(std::string_view line,
                                               const data::TextFrame& frame) const {
  return checked(model_.tokenizers.source.encode_sentence(line, frame));
}

std::vector<int32_t> TranslationEngine::checked(std::vector<int32_t> ids) const {
  if (std::ssize(ids) > options_.max_source) {
    throw Error(Errc::invalid_argument, "translate",
                fmt::format("a line has {} tokens and the model takes {}; give one sentence a line",
                            ids.size(), options_.max_source));
  }
  return ids;
}

std::vector<int32_t> TranslationEngine::encode_phrase(std::string_view phrase,
                                                      const std::string& place) const {
  std::vector<int32_t> ids = train::encode_phrase(model_.tokenizers.target, phrase, place);
  if (!ids.empty()) return ids;
  throw Error(Errc::invalid_argument, "translate",
              fmt::format("{}: the phrase \"{}\" has no token; leave it out", place, phrase));
}

Admission TranslationEngine::submit(TranslationJob job) {
  const int64_t lines = std::ssize(job.sources);
  job.search.nbest = std::clamp(job.search.nbest, 1, options_.beam);
  auto open = std::make_shared<Open>(std::move(job));
  {
    const std::lock_guard lock(mutex_);
    if (counts_.broken || stop_) return Admission::broken;
    if (counts_.waiting + lines > queue_) return Admission::full;
    counts_.waiting += lines;
    waiting_.push_back(std::move(open));
  }
  // Several lines are for several threads.
  lines > 1 ? came_.notify_all() : came_.notify_one();
  return Admission::accepted;
}

EngineCounts TranslationEngine::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

void TranslationEngine::count(int64_t lines, bool done) {
  const std::lock_guard lock(mutex_);
  counts_.running -= lines;
  if (done) counts_.done += static_cast<uint64_t>(lines);
}

// Waits for lines while the thread has none (`held` 0). Its share of all, since a thread with few
// is done sooner.
std::vector<TranslationEngine::Line> TranslationEngine::take(int64_t held) {
  std::vector<Line> lines;
  std::unique_lock lock(mutex_);
  came_.wait(lock, [&] { return stop_ || counts_.broken || held > 0 || !waiting_.empty(); });
  if (stop_ || counts_.broken) return lines;
  ++counts_.steps;
  const int64_t share = (counts_.waiting + counts_.running + thread_count_ - 1) / thread_count_;
  const int64_t most = std::min(options_.sentences, std::max(share, few_));
  while (!waiting_.empty() && held + std::ssize(lines) < most) {
    const std::shared_ptr<Open>& open = waiting_.front();
    const size_t left = open->job.sources.size() - open->given;
    if (open->failed || (open->job.cancelled && open->job.cancelled())) {
      counts_.waiting -= static_cast<int64_t>(left);
      waiting_.pop_front();
      continue;
    }
    counts_.tokens_in += open->job.sources[open->given].size();
    lines.push_back({open, open->given++});
    --counts_.waiting;
    ++counts_.running;
    if (left == 1) waiting_.pop_front();
  }
  return lines;
}

void TranslationEngine::ended(const Line& line, std::vector<model::Hypothesis> found) const {
  Open& open = *line.job;
  if (found.empty())
    return open.fail("the scores of a line are no numbers: weights or sums are too large");
  const size_t tokens = open.job.sources[line.number].size();
  std::vector<train::Translation>& out = open.found[line.number];
  const size_t most = std::min(found.size(), static_cast<size_t>(open.job.search.nbest));
  for (model::Hypothesis& h : std::span(found).first(most)) {
    out.push_back({.text = train::decode_translation(model_.tokenizers.target, tokens, h.ids),
                   .log_probability = h.log_probability,
                   .score = h.score,
                   .ids = std::move(h.ids),
                   .token_log_probabilities = std::move(h.token_log_probabilities)});
  }
  if (open.left.fetch_sub(1) == 1 && !open.failed) open.job.done(std::move(open.found));
}

namespace {

// Without a wish it begins as all translations of the model do; a prefix that is text begins so already.
model::SearchOptions search_of(const TranslationJob& job, size_t line,
                               std::span<const int32_t> begin) {
  model::SearchOptions search = job.search;
  const std::vector<int32_t> own =
      job.prefixes.empty() ? std::vector<int32_t>() : job.prefixes[line];
  if (own.empty() && search.prefix.empty()) search.prefix.assign(begin.begin(), begin.end());
  search.prefix.insert(search.prefix.end(), own.begin(), own.end());
  if (!job.phrases.empty()) search.phrases = job.phrases[line];
  return search;
}

}  // namespace

// A step of what is under way, and what can begin with it.
void TranslationEngine::translate(model::Translator& translator, UnderWay& lines) {
  for (Line& line : take(std::ssize(lines))) {
    try {
      const int64_t ticket = translator.add(
          line.job->job.sources[line.number],
          search_of(line.job->job, line.number, model_.tokenizers.target.sentence_begin()));
      lines.emplace(ticket, std::move(line));
    } catch (const Error& e) {
      line.job->fail(e.what(), e.code());
      count(1, false);
    }
  }
  for (auto at = lines.begin(); at != lines.end();) {
    const Open& open = *at->second.job;
    if (!open.failed && !(open.job.cancelled && open.job.cancelled())) {
      ++at;
      continue;
    }
    translator.cancel(at->first);
    at = lines.erase(at);
    count(1, false);
  }
  translator.step([&](int64_t ticket, std::vector<model::Hypothesis> found) {
    const Line line = std::move(lines.extract(ticket).mapped());
    ended(line, std::move(found));
    count(1, true);
  });
}

void TranslationEngine::work(bool first) {
  const Device device = model_.store->device();
  use_device(device);
  std::optional<InOneThread> alone;
  if (!device.is_cuda()) alone.emplace();
  std::optional<model::Translator> translator;
  UnderWay lines;
  bool failed_before = first;  // what cannot begin is not tried twice
  while (true) {
    try {
      if (first && !translator) {
        translator.emplace(train::ensemble_of(model_), options_);
        const int32_t eos = model_.tokenizers.source.eos_id();
        if (device.is_cuda()) translator->translate(std::vector<std::vector<int32_t>>{{eos, eos}});
        {
          const std::lock_guard lock(mutex_);
          ready_ = true;
        }
        came_.notify_all();
      }
      {
        std::unique_lock lock(mutex_);
        came_.wait(lock,
                   [&] { return stop_ || counts_.broken || !lines.empty() || !waiting_.empty(); });
        if (stop_ || counts_.broken) break;
      }
      if (!translator) translator.emplace(train::ensemble_of(model_), options_);
      translate(*translator, lines);
      failed_before = false;
    } catch (const std::exception& e) {
      log_error(fmt::format("{}: {}", model_.folder, e.what()));
      for (const auto& [ticket, line] : lines) line.job->fail(e.what());
      count(std::ssize(lines), false);
      lines.clear();
      translator.reset();
      if (!std::exchange(failed_before, true)) continue;
      const std::lock_guard lock(mutex_);
      counts_.broken = true;
      error_ = e.what();
      for (const auto& open : waiting_) open->fail(error_);
      waiting_.clear();
      counts_.waiting = 0;
      came_.notify_all();
      break;
    }
  }
  for (const auto& [ticket, line] : lines) line.job->fail("the server ends");
}

}  // namespace saturate::serve
