// SPDX-License-Identifier: Apache-2.0
#include "train/run_end.h"

#include <fmt/format.h>

#include <csignal>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "train/run.h"
#include "train/whole_folder.h"

namespace saturate::train {
namespace {

const char* signal_name(int number) {
  switch (number) {
    case SIGINT:
      return "SIGINT";
    case SIGHUP:
      return "SIGHUP";
    case SIGPIPE:
      return "SIGPIPE";
    default:  // 0 when it came to another rank
      return "SIGTERM";
  }
}

// The limit that ended a run which no signal interrupted, as its key.
std::string limit_reached(const RunConfig& config, const RunProgress& progress, int64_t steps,
                          double elapsed_s, TrainEnd end) {
  if (end == TrainEnd::stopped_early) {
    return fmt::format("no better validation in {} (validate.patience = {})",
                       progress.validations_without_gain, config.validate.patience);
  }
  if (config.train.max_steps > 0 && steps >= config.train.max_steps)
    return fmt::format("train.max_steps = {}", config.train.max_steps);
  if (config.train.max_seconds > 0 && elapsed_s >= config.train.max_seconds)
    return fmt::format("train.max_seconds = {:g}", config.train.max_seconds);
  return fmt::format("train.max_epochs = {}", config.train.max_epochs);
}

}  // namespace

std::string shell_word(const std::string& text) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:@%+,=";
  if (!text.empty() && text.find_first_not_of(kPlain) == std::string::npos) return text;
  std::string word = "'";
  for (const char c : text) word += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return word + "'";
}

std::string last_line(const RunSummary& run) {
  const std::string out = shell_word(run.folder);
  const std::string resume = fmt::format("saturate train --resume --out {}", out);
  if (run.end == TrainEnd::interrupted) {
    if (run.steps == 0) {
      return fmt::format("stopped by {} before the first step; the same command starts again",
                         run.reason);
    }
    return fmt::format("stopped by {} at step {} and saved; go on with: {}", run.reason, run.steps,
                       resume);
  }
  const std::string use =
      run.language_model
          ? fmt::format("saturate generate --model {} --prompt \"Once upon a time\"", out)
          : fmt::format("saturate translate --model {} < text > translation", out);
  const bool early = run.end == TrainEnd::stopped_early;
  std::string line;
  if (run.steps == run.began_at) {
    line = fmt::format("nothing to do: this run {} at step {}, {}; raise that to go on",
                       early ? "stopped early" : "finished", run.steps, run.reason);
  } else {
    line = fmt::format("{} at step {} after {}: {}", early ? "stopped early" : "finished",
                       run.steps, format_duration(run.elapsed_s), run.reason);
  }
  if (!run.best.empty()) line += fmt::format("; best {}", run.best);
  return fmt::format("{}. Model: {}/model, report: {}/report.html. Next: {}", line, out, out, use);
}

void Run::finish(TrainEnd end) {
  progress_.finish();
  if (!output_) return;
  join_validation();
  join_best();
  const bool lm = model_config_.kind == model::ModelKind::decoder_only;
  RunSummary summary{.end = end,
                     .reason = end == TrainEnd::interrupted
                                   ? signal_name(signal_)
                                   : limit_reached(config_, progress_state_, done_, elapsed(), end),
                     .began_at = began_at_,
                     .steps = done_,
                     .elapsed_s = elapsed(),
                     .best = {},
                     .folder = config_.out,
                     .language_model = lm};
  if (end != TrainEnd::interrupted) evaluate_tests();
  TextPairs results{{"steps", std::to_string(done_)}};
  if (progress_state_.best_step >= 0) {
    const bool by_loss = lm || config_.validate.metric == "loss";
    const std::string metric = by_loss ? "loss" : config_.validate.metric;
    // A lower loss is better: it is remembered with the other sign.
    const std::string score = by_loss ? fmt::format("{:.4f}", -progress_state_.best_score)
                                      : fmt::format("{:.2f}", progress_state_.best_score);
    results.emplace_back("best step", std::to_string(progress_state_.best_step));
    results.emplace_back("best " + metric, score);
    summary.best = fmt::format("{} {} at step {}", metric, score, progress_state_.best_step);
  }
  if (const data::CacheStats* text = corpora_.train.whole(); text && text->counts.bad > 0)
    results.emplace_back("bad lines left out", std::to_string(text->counts.bad));
  RunOutput::Write write;
  // Weights that no step has touched, or of which no validation could make sense, are no model.
  const bool untouched = done_ == 0 && end == TrainEnd::interrupted;
  const bool diverged =
      progress_state_.best_step < 0 && progress_state_.validations_without_gain > 0;
  if (!untouched && !diverged) {
    write = [&](const std::string& folder) {
      // The last checkpoint holds these weights, by all ranks; a run without a step has none.
      const auto saved = output_->checkpoint_folder(done_);
      if (saved)
        copy_direct_files(*saved, folder);
      else
        write_model(folder, model_config_, config_.translate, store_, corpora_);
    };
  }
  const std::string status = end == TrainEnd::interrupted     ? "interrupted by " + summary.reason
                             : end == TrainEnd::stopped_early ? "stopped early"
                                                              : "finished";
  output_->end({done_, elapsed(), status, results}, {progress_state_.best_step, write});
  if (diverged && end != TrainEnd::interrupted) {
    throw Error(
        Errc::invalid_argument, "train",
        fmt::format("no validation had a finite score ({} in a row): training diverged and leaves "
                    "no model; lower optimizer.lr or optimizer.clip_norm, raise "
                    "schedule.warmup_steps, or use train.precision bf16",
                    progress_state_.validations_without_gain));
  }
  log_line(end == TrainEnd::interrupted ? LogLevel::warning : LogLevel::info, last_line(summary));
}

}  // namespace saturate::train
