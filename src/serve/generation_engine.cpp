// SPDX-License-Identifier: Apache-2.0
#include "serve/generation_engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <optional>

#include "base/error.h"
#include "base/log.h"
#include "runtime/device.h"

namespace saturate::serve {

struct GenerationEngine::Open {
  GenerationJob job;
  size_t given = 0, left = 0;  // sequences that were begun; that have not ended
  bool failed = false;

  bool cancelled() const { return failed || (job.cancelled && job.cancelled()); }
  void fail(const std::string& why) {
    if (!std::exchange(failed, true)) job.failed(why);
  }
};

GenerationEngine::GenerationEngine(train::LoadedModel model, const Options& options)
    : model_(std::move(model)),
      options_([&] {
        Options o = options;
        o.max_length = std::min(o.max_length, model_.config.max_positions);
        return o;
      }()),
      generator_(std::make_unique<model::Generator>(*model_.transformer, *model_.store,
                                                    generator_options())) {
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

model::GeneratorOptions GenerationEngine::generator_options() const {
  return {.sequences = options_.sequences,
          .max_length = options_.max_length,
          .same_bits = options_.same_bits};
}

Admission GenerationEngine::submit(GenerationJob job) {
  {
    const std::lock_guard lock(mutex_);
    const int64_t sequences = std::ssize(job.prompts);
    if (counts_.broken || stop_) return Admission::broken;
    if (counts_.waiting + sequences > options_.queue) return Admission::full;
    counts_.waiting += sequences;
    waiting_.push_back(std::make_shared<Open>(
        Open{.job = std::move(job), .left = static_cast<size_t>(sequences)}));
  }
  came_.notify_one();
  return Admission::accepted;
}

EngineCounts GenerationEngine::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

// Sequences that can begin with the next step; waits while there is nothing to do. False: to end.
bool GenerationEngine::take(std::vector<Sequence>& sequences) {
  std::unique_lock lock(mutex_);
  counts_.running = std::ssize(under_way_);
  came_.wait(lock, [this] { return stop_ || !waiting_.empty() || !under_way_.empty(); });
  if (stop_) return false;
  while (!waiting_.empty() && std::ssize(sequences) < generator_->room()) {
    Open& open = *waiting_.front();
    const size_t left = open.job.prompts.size() - open.given;
    if (open.cancelled()) {
      counts_.waiting -= static_cast<int64_t>(left);
      waiting_.pop_front();
      continue;
    }
    counts_.tokens_in += open.job.prompts[open.given].size();
    sequences.push_back({waiting_.front(), open.given++});
    --counts_.waiting;
    if (left == 1) waiting_.pop_front();
  }
  counts_.running += std::ssize(sequences);
  ++counts_.steps;
  return true;
}

void GenerationEngine::begin(Sequence sequence) {
  Open& open = *sequence.open;
  if (open.job.sampling.max_tokens == 0) return close(sequence);
  model::SamplingOptions sampling = open.job.sampling;
  sampling.stream = static_cast<int32_t>(sequence.number);
  try {
    const int64_t ticket = generator_->add(open.job.prompts[sequence.number], sampling);
    under_way_.emplace(ticket, std::move(sequence));
  } catch (const Error& e) {
    open.fail(e.what());
  }
}

void GenerationEngine::token(int64_t ticket, int32_t id, float log_probability) {
  const auto at = under_way_.find(ticket);
  if (at == under_way_.end()) return;
  ++tokens_;
  Open& open = *at->second.open;
  if (open.job.scores) at->second.added.push_back(id);
  if (!open.cancelled() && open.job.token(at->second.number, id, log_probability)) return;
  generator_->cancel(ticket);
  end(ticket);
}

void GenerationEngine::end(int64_t ticket) { close(under_way_.extract(ticket).mapped()); }

void GenerationEngine::close(const Sequence& sequence) {
  Open& open = *sequence.open;
  if (open.job.scores && !open.cancelled()) return to_score_.push_back(sequence);
  ++ended_;
  if (--open.left == 0 && !open.failed) open.job.done();
}

// What was read and made once, again in one pass: so prompts have scores too, and the step none to hand
// over. In parts a pass is over all that is there; their lengths double, so that a text of n tokens is read
// some log n times, or n / 64.
void GenerationEngine::score(Sequence& sequence) {
  Open& open = *sequence.open;
  if (sequence.scored > 0 && sequence.scored == sequence.added.size()) return;
  try {
    if (!scorer_) scorer_ = std::make_unique<train::TokenScorer>(model_);
    const GenerationJob::Scores& wanted = *open.job.scores;
    std::vector<int32_t> ids = open.job.prompts[sequence.number];
    const size_t from =
        wanted.of_prompts && sequence.scored == 0 ? 1 : ids.size() + sequence.scored;
    ids.insert(ids.end(), sequence.added.begin(), sequence.added.end());
    const std::vector<train::TokenScore> scores =
        scorer_->score(ids, from, wanted.likeliest, open.job.sampling.adapter);
    sequence.scored = sequence.added.size();
    open.job.scored(sequence.number, ids, scores);
  } catch (const std::exception& e) {  // of any kind: the others to score go on
    open.fail(e.what());
  }
}

void GenerationEngine::step() {
  generator_->step(
      [this](int64_t ticket, int32_t id, float log_probability) {
        token(ticket, id, log_probability);
      },
      [this](int64_t ticket, const model::Continuation& all) {
        if (!under_way_.contains(ticket)) return;
        if (all.ending == model::Ending::not_finite) {
          under_way_.at(ticket).open->fail(
              "the scores of a token are no numbers: weights or sums are too large");
        }
        if (all.ending == model::Ending::no_token) {
          under_way_.at(ticket).open->fail(
              "no token of this model goes on with the form that is asked for; ask for text");
        }
        end(ticket);
      });
  for (auto& [ticket, s] : under_way_) {
    const auto& wanted = s.open->job.scores;
    const size_t fresh = s.added.size() - s.scored;
    if (wanted && wanted->while_made && fresh >= std::clamp<size_t>(s.scored, 1, 64) &&
        !s.open->cancelled())
      score(s);
  }
  for (Sequence& s : std::exchange(to_score_, {})) {
    score(s);
    ++ended_;
    if (--s.open->left == 0 && !s.open->failed) s.open->job.done();
  }
  const std::lock_guard lock(mutex_);
  counts_.done += std::exchange(ended_, 0);
  counts_.tokens_out += std::exchange(tokens_, 0);
}

void GenerationEngine::work() {
  use_device(model_.store->device());
  bool failed_before = false;
  while (true) {
    try {
      if (!generator_) {
        generator_ = std::make_unique<model::Generator>(*model_.transformer, *model_.store,
                                                        generator_options());
      }
      std::vector<Sequence> sequences;
      if (!take(sequences)) break;
      for (Sequence& s : sequences) begin(std::move(s));
      step();
      failed_before = false;
    } catch (const std::exception& e) {
      log_error(fmt::format("{}: {}", model_.folder, e.what()));
      fail_under_way(e.what());
      generator_.reset();
      scorer_.reset();
      if (!std::exchange(failed_before, true)) continue;
      log_error(model_.folder + " failed twice in a row and is served no more");
      const std::lock_guard lock(mutex_);
      counts_.broken = true;
      break;
    }
  }
  fail_under_way("the server ends");
  const std::lock_guard lock(mutex_);
  for (const auto& open : waiting_) open->fail("the server ends");
  waiting_.clear();
  counts_.waiting = counts_.running = 0;
  generator_.reset();
  scorer_.reset();
}

void GenerationEngine::fail_under_way(const std::string& why) {
  for (const auto& [ticket, sequence] : under_way_) sequence.open->fail(why);
  under_way_.clear();
  for (const Sequence& s : std::exchange(to_score_, {})) s.open->fail(why);
}

}  // namespace saturate::serve
