// SPDX-License-Identifier: Apache-2.0
#include "train/run_output.h"

#include <fmt/format.h>

#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "base/log.h"
#include "train/report.h"
#include "train/run_settings.h"

namespace saturate::train {
namespace {

namespace fs = std::filesystem;

RunLock lock_folder(const RunConfig& config) {
  if (config.out.empty()) {
    throw Error(Errc::invalid_argument, "train", "no output folder; give one with --out runs/name");
  }
  RunLock lock(config.out);
  if (config.resume) return lock;
  // What ended before it left anything to continue or to use is no run yet: it may start again.
  if (!CheckpointStore(config.out).list().empty()) {
    throw Error(
        Errc::invalid_argument, "train",
        fmt::format("{} already holds a run; continue it with --resume or choose another --out",
                    config.out));
  }
  if (fs::exists(config.out + "/model/config.json")) {
    throw Error(Errc::invalid_argument, "train",
                fmt::format("{0} already holds a run, whose model in {0}/model would be replaced; "
                            "choose another --out, or start over in this one with --resume",
                            config.out));
  }
  return lock;
}

// Metrics of a run that ended before its first checkpoint are kept under another name when it is
// started again, unless they measured nothing.
void keep_earlier(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  bool measured = false;
  for (std::string line; !measured && std::getline(in, line);)
    measured = !line.starts_with("{\"kind\":\"run\"") && !line.starts_with("{\"kind\":\"end\"");
  if (!measured) return;
  int number = 1;
  while (fs::exists(fmt::format("{}.{}", file, number))) ++number;
  const std::string kept = fmt::format("{}.{}", file, number);
  std::error_code failed;
  fs::rename(file, kept, failed);
  if (failed) throw Error(Errc::io, "run", fmt::format("{}: {}", file, failed.message()));
  log_info("metrics of an earlier run without a checkpoint are kept in " + kept);
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
  if (head.step > 0)
    if (const std::string changed = changed_settings(folder_, config); !changed.empty())
      log_info("settings that changed since the run was last started: " + changed);
  write_run_settings(folder_, config);
  const std::string metrics = folder_ + "/metrics.jsonl", events = folder_ + "/tensorboard";
  if (head.step > 0) {
    metrics_.emplace(metrics, head.step);
    tensorboard_.emplace(events, head.step);
  } else {
    keep_earlier(metrics);
    metrics_.emplace(metrics);
    // Told to leave out what an earlier start without a checkpoint wrote.
    tensorboard_.emplace(events, fs::exists(events) ? 0 : -1);
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
  if (write && !fs::exists(folder_ + "/model/config.json")) write_model(write);
  write_report(folder_);
}

}  // namespace saturate::train
