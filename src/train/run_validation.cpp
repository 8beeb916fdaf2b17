// SPDX-License-Identifier: Apache-2.0
// Validations of a run and what they decide: which model is the best, and when patience ends.
//
// A validation may run beside the steps that follow it (validate.beside): it has a copy of the
// weights, a stream and a thread of its own, and decoding a few sentences leaves most of a GPU free. Its results
// are told and judged by the run's thread, at the latest before the next validation or checkpoint,
// so neither the weights nor the best model depend on how long it took.
#include <fmt/format.h>

#include <cmath>

#include "base/error.h"
#include "base/log.h"
#include "train/rank_action.h"
#include "train/run.h"

namespace saturate::train {

void Run::validate() {
  drain(true);
  if (validated_ == done_) return;
  const RankAction validation(ranks_, "validating");  // the others wait while this rank joins
  join_validation();
  join_best();
  validated_ = done_;
  throughput_->pause();
  const std::vector<RoutingRow> routing = step_->take_routing();
  if (output_ && !routing.empty()) {
    for (const RoutingRow& row : routing) output_->write(row);
    progress_.message(fmt::format("experts up to step {}: {}", done_, routing_text(routing)));
  }
  if (validator_) {
    // On a CPU training and validation share the same cores.
    const bool beside =
        config_.validate.beside == "auto" ? device_.is_cuda() : config_.validate.beside == "on";
    if (gathered_)
      validator_->take_weights(*step_, *gathered_);
    else
      validator_->take_weights(*step_, store_);
    begin_validation();
    // One that may end the run is waited for: the step at which a run ends must not depend on time.
    if (!beside || patience_may_end()) join_validation();
  }
  if (!validator_ && validates_) {  // what the first rank takes
    if (gathered_)
      gathered_->gather(step_->stream(), {});
    else
      store_.visit(step_->stream(), store_.shipped(), {});
  }
  // The first rank alone knows the scores.
  stop_early_ = ranks_.all_reduce_max(output_ && patience_is_over() ? 1 : 0) > 0;
  throughput_->resume();
}

void Run::begin_validation() {
  const auto judge = [this] {
    use_device(device_);
    std::vector<ValidationResult> all;
    for (const ValidationSet& set : validator_->sets()) all.push_back(validator_->run(set));
    return all;
  };
  validation_ = {.step = done_, .epoch = epoch_, .results = std::async(std::launch::async, judge)};
}

void Run::tell_validation_when_done() {
  if (validation_.results.valid() &&
      validation_.results.wait_for(std::chrono::seconds(0)) == std::future_status::ready)
    join_validation();
}

void Run::join_validation() {
  if (!validation_.results.valid()) return;
  const std::vector<ValidationResult> results = validation_.results.get();
  for (size_t i = 0; i < results.size(); ++i) tell_validation(i, results[i]);
}

void Run::tell_validation(size_t set, const ValidationResult& v) {
  const int64_t step = validation_.step;
  ValidRow row{.step = step, .epoch = validation_.epoch, .elapsed_s = elapsed(), .loss = v.loss};
  row.set = set == 0 ? config_.data.valid_name : corpora_.more_valid[set - 1].name;
  std::string line = fmt::format("{} at step {}: loss {:.4f}", row.set, step, v.loss);
  if (v.translated) {
    row.bleu = v.bleu;
    row.chrf = v.chrf;
    line += fmt::format(", BLEU {:.2f}, chrF {:.2f}", v.bleu, v.chrf);
  }
  if (set > 0) {  // sets after the first judge nothing
    output_->write(row);
    progress_.message(line);
    return;
  }
  for (size_t i = 0; i < v.hypotheses.size() && i < 8; ++i) {
    output_->write(SampleRow{step, static_cast<int64_t>(i), corpora_.valid_source[i],
                             v.hypotheses[i], corpora_.valid_reference[i]});
  }
  output_->write(row);
  const std::string& metric = config_.validate.metric;
  const double score = !v.translated || metric == "loss" ? -v.loss
                       : metric == "chrf"                ? v.chrf
                                                         : v.bleu;
  if (!std::isfinite(score)) line += " (not finite: never the best)";
  // What the run starts from is shown, so that one sees what is gained or forgotten; it is no
  // candidate for the best.
  if (step == 0) {
    line += " (before training)";
  } else if (take_if_best(step, score)) {
    line += " (best)";
  }
  progress_.message(fmt::format("{}, {:.1f} s", line, row.elapsed_s));
}

bool Run::patience_is_over() const {
  return config_.validate.patience > 0 &&
         progress_state_.validations_without_gain >= config_.validate.patience;
}

// Whether the validation that runs ends the run if it is no gain.
bool Run::patience_may_end() const {
  return config_.validate.patience > 0 &&
         progress_state_.validations_without_gain + 1 >= config_.validate.patience;
}

// The best model is written while training goes on, from the validator's copy of the weights.
void Run::join_best() {
  if (!output_ || output_->join_model() || !before_best_) return;
  progress_state_.best_score = before_best_->best_score;
  progress_state_.best_step = before_best_->best_step;
  progress_state_.texts = before_best_->texts;
  progress_state_.validations_without_gain = before_best_->validations_without_gain;
}

// Joins a validation's score to the run's. True when it is the best so far; its model is being
// written then, until join_best().
bool Run::take_if_best(int64_t step, double score) {
  if (saved_ == done_) saved_ = -1;  // that checkpoint does not know of this validation
  RunProgress& p = progress_state_;
  const bool comparable = judges_alike(p.texts, texts_);
  if (!std::isfinite(score) || (p.best_step >= 0 && comparable && score <= p.best_score)) {
    ++p.validations_without_gain;
    return false;
  }
  const auto write = [this](const std::string& folder) {
    write_model(folder, model_config_, config_.translate, validator_->weights(), corpora_);
  };
  before_best_ = p;
  output_->begin_model(step, write);
  if (!comparable && p.best_step >= 0)
    log_info(
        fmt::format("the best of step {} was judged by another text or metric: scores begin anew",
                    p.best_step));
  p.texts = texts_;
  p.best_score = score;
  p.best_step = step;
  p.validations_without_gain = 0;
  return true;
}

}  // namespace saturate::train
