// SPDX-License-Identifier: Apache-2.0
#include "train/run_output.h"

#include <fmt/format.h>

#include <filesystem>

#include "base/config_keys.h"
#include "base/durable_file.h"
#include "base/error.h"
#include "base/log.h"
#include "train/report.h"

namespace saturate::train {
namespace {

namespace fs = std::filesystem;

RunLock lock_folder(const RunConfig& config) {
  if (config.out.empty()) {
    throw Error(Errc::invalid_argument, "train", "no output folder; give one with --out runs/name");
  }
  RunLock lock(config.out);
  if (!config.resume && fs::exists(config.out + "/metrics.jsonl")) {
    throw Error(
        Errc::invalid_argument, "train",
        fmt::format("{} already holds a run; continue it with --resume or choose another --out",
                    config.out));
  }
  return lock;
}

// Keys that say nothing of what is trained and how.
bool is_of_this_start(std::string_view key) {
  return key == "resume" || key == "out" || key == "quiet";
}

// What the run goes on with that it had not when it was last started: "optimizer.lr 0.001 (was
// 0.002), ...".
std::string changed_settings(const std::string& file, const RunConfig& now) {
  RunConfig before;
  try {
    merge_toml_file(before, file);
  } catch (const Error& e) {
    return std::string("not known, for ") + e.what();
  }
  std::string changed;
  for (const config::Key& key : config::keys()) {
    const std::string was = value_text(key, before), is = value_text(key, now);
    if (was == is || is_of_this_start(key.name)) continue;
    changed += fmt::format("{}{} {} (was {})", changed.empty() ? "" : ", ", key.name,
                           is.empty() ? "the preset's" : is, was.empty() ? "the preset's" : was);
  }
  return changed;
}

}  // namespace

RunOutput::RunOutput(const RunConfig& config, BeforeReport before_report)
    : keep_(config.checkpoint),
      folder_(config.out),
      before_report_(std::move(before_report)),
      lock_(lock_folder(config)),
      checkpoints_(config.out) {
  checkpoints_.remove_leftovers();
}

void RunOutput::begin(const RunConfig& config, const RunHeader& head) {
  const std::string settings = folder_ + "/config.toml";
  if (head.step > 0)
    if (const std::string changed = changed_settings(settings, config); !changed.empty())
      log_info("settings that changed since the run was last started: " + changed);
  write_durable_file(settings, to_toml(config));
  const std::string metrics = folder_ + "/metrics.jsonl", events = folder_ + "/tensorboard";
  if (head.step > 0) {
    metrics_.emplace(metrics, head.step);
    tensorboard_.emplace(events, head.step);
  } else {
    metrics_.emplace(metrics);
    tensorboard_.emplace(events);
  }
  metrics_->write(head);
  tensorboard_->write(head);
}

// Runs `action`; true when it was done. What no disk can be blamed for is thrown on.
bool RunOutput::attempt(const char* consequence, const std::function<void()>& action) {
  const auto report = [&](const char* what) {
    before_report_();
    log_warning(fmt::format("{}. Training goes on; {}", what, consequence));
  };
  try {
    action();
    return true;
  } catch (const Error& e) {
    if (e.code() != Errc::io) throw;
    report(e.what());
  } catch (const fs::filesystem_error& e) {
    report(e.what());
  }
  return false;
}

void RunOutput::write(const MetricsRow& row) {
  const auto both = [&] {
    metrics_->write(row);
    tensorboard_->write(row);
  };
  if (!rows_missing_) {
    rows_missing_ = !attempt("rows are missing until there is room again", both);
    return;
  }
  try {  // told once, not with every row
    both();
    rows_missing_ = false;
  } catch (const Error& e) {
    if (e.code() != Errc::io) throw;
  }
}

bool RunOutput::checkpoint(int64_t step, uint64_t bytes_needed, const Write& write, bool best,
                           Failure failure) {
  const auto save = [&] {
    checkpoints_.save(step, bytes_needed, write);
    if (best && keep_.keep_best > 0) checkpoints_.mark_best(step);
    checkpoints_.prune(keep_.keep_last);
  };
  if (failure == Failure::reported) return attempt("the next checkpoint is tried when due", save);
  save();
  return true;
}

void RunOutput::mark_best(int64_t step) {
  if (keep_.keep_best == 0) return;
  attempt("another checkpoint is marked as the best", [&] { checkpoints_.mark_best(step); });
}

void RunOutput::write_model(const Write& write) {
  const std::string folder = folder_ + "/model";
  fs::create_directories(folder);
  write(folder);
}

bool RunOutput::model(const Write& write) {
  return attempt("the next better model is written", [&] { write_model(write); });
}

void RunOutput::end(const RunEnd& row, const Write& write) {
  metrics_->write(row);
  tensorboard_->write(row);
  if (!fs::exists(folder_ + "/model/config.json")) write_model(write);  // nothing was validated
  write_report(folder_);
}

}  // namespace saturate::train
