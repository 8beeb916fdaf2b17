// SPDX-License-Identifier: Apache-2.0
#include "train/run_output.h"

#include <fmt/format.h>

#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "base/log.h"
#include "model/adapter_folder.h"
#include "model/folder_manifest.h"
#include "train/checkpoint.h"
#include "train/report.h"
#include "train/run_settings.h"
#include "train/whole_folder.h"

namespace saturate::train {
namespace {

namespace fs = std::filesystem;

// A model, or adapters.
bool holds_model(const std::string& folder) {
  std::error_code unknown;
  return fs::exists(folder + "/config.json", unknown) || model::is_adapter_folder(folder);
}

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
  if (holds_model(config.out + "/model")) {
    throw Error(Errc::invalid_argument, "train",
                fmt::format("{0} already holds a run, whose model in {0}/model would be replaced; "
                            "choose another --out, or start over in this one with --resume",
                            config.out));
  }
  return lock;
}

// Why the file system did not let `action` be done, if it did not.
std::optional<std::string> io_failure(const std::function<void()>& action) {
  try {
    action();
    return std::nullopt;
  } catch (const Error& e) {
    if (e.code() != Errc::io) throw;
    return e.what();
  } catch (const fs::filesystem_error& e) {
    return e.what();
  }
}

constexpr const char* kNoChecksums = "has no checksums";

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
    : config_(config),
      before_report_(std::move(before_report)),
      lock_(lock_folder(config)),
      checkpoints_(config.out) {
  checkpoints_.remove_leftovers();
  std::error_code failed;
  fs::remove_all(unfinished_folder(model_folder()), failed);
}

// Of a run that failed before it kept anything nothing stays.
RunOutput::~RunOutput() {
  await_model();
  std::error_code failed;
  if (lock_->made_folder()) fs::remove(folder_ + "/data", failed);  // where it is empty
}

std::string RunOutput::model_folder() const { return folder_ + "/model"; }

void RunOutput::begin(const RunConfig& config, const RunHeader& head) {
  if (head.step > 0) {
    checkpoints_.set_aside_after(head.step);
    if (const std::string changed = changed_settings(folder_, config); !changed.empty())
      log_info("settings that changed since the run was last started: " + changed);
  }
  config_ = config;
  head_ = head;
  write_run_settings(folder_, config);
  open_logs(head.step > 0);
}

void RunOutput::open_logs(bool resumed) {
  const std::string metrics = folder_ + "/metrics.jsonl", events = folder_ + "/tensorboard";
  if (resumed) {
    metrics_.emplace(metrics, head_->step);
    tensorboard_.emplace(events, head_->step);
  } else {
    keep_earlier(metrics);
    metrics_.emplace(metrics);
    // Told to leave out what an earlier start without a checkpoint wrote.
    tensorboard_.emplace(events, fs::exists(events) ? 0 : -1);
  }
  metrics_->write(*head_);
  tensorboard_->write(*head_);
}

// What others deleted or moved away under a run is made again: the weights, hours of work, are
// still in memory and need a place.
void RunOutput::recover_folder() {
  const bool folder_lost = !lock_->in_place();
  if (!folder_lost && metrics_->in_place()) return;
  const std::string what = folder_lost ? folder_ : folder_ + "/metrics.jsonl";
  try {
    if (folder_lost) {
      RunLock again(folder_);
      lock_.emplace(std::move(again));
    }
    write_run_settings(folder_, config_);
    open_logs(false);
  } catch (const Error& e) {
    throw Error(e.code(), "run",
                fmt::format("{} was deleted or moved while the run goes on and cannot be made "
                            "again: {}",
                            what, e.what()));
  }
  before_report_();
  log_warning(
      fmt::format("{} was deleted or moved while the run goes on; it is made again and "
                  "holds what comes from now on",
                  what));
}

// Runs `action`; true when it was done. What no disk can be blamed for is thrown on.
void RunOutput::report(const std::string& failure, const char* consequence) {
  before_report_();
  log_warning(fmt::format("{}. Training goes on; {}", failure, consequence));
}

bool RunOutput::attempt(const char* consequence, const std::function<void()>& action) {
  const auto failure = io_failure(action);
  if (failure) report(*failure, consequence);
  return !failure;
}

void RunOutput::write_row(const MetricsRow& row) {
  recover_folder();
  metrics_->write(row);
  tensorboard_->write(row);
}

void RunOutput::write(const MetricsRow& row) {
  if (!rows_missing_) {
    rows_missing_ = !attempt("rows are missing until there is room again", [&] { write_row(row); });
    return;
  }
  try {  // told once, not with every row
    write_row(row);
    rows_missing_ = false;
  } catch (const Error& e) {
    if (e.code() != Errc::io) throw;
  }
}

bool RunOutput::checkpoint(int64_t step, uint64_t bytes_needed, const Write& write,
                           int64_t best_step, Failure failure, const Together& ranks) {
  const auto save = [&] {
    ranks.first([&] { recover_folder(); });
    checkpoints_.save(step, bytes_needed, write, ranks);
  };
  const auto prune = [&] {
    checkpoints_.prune(keep_.keep_last);
    prune_models(best_step);
  };
  if (failure == Failure::reported)
    return attempt("the next checkpoint is tried when due", save) &&
           attempt("what is no longer kept is removed later", prune);
  save();
  prune();
  return true;
}

bool RunOutput::join_checkpoint(const std::string& run_folder, int64_t step, const Write& write,
                                Failure failure, const Together& ranks) {
  try {
    ranks.first({});
    CheckpointStore(run_folder).save(step, 0, write, ranks);
    return true;
  } catch (const Error& e) {  // told by the first rank
    if (e.code() != Errc::io || failure == Failure::ends_run) throw;
  } catch (const fs::filesystem_error&) {
    if (failure == Failure::ends_run) throw;
  }
  return false;
}

// Whatever checkpoint a run is resumed from, the model that it calls the best is there.
void RunOutput::prune_models(int64_t best_step) {
  std::vector<int64_t> named{best_step};
  for (const Checkpoint& c : checkpoints_.list()) named.push_back(best_step_of(c.folder));
  checkpoints_.prune_models(named);
}

void RunOutput::begin_model(int64_t step, Write write) {
  SAT_ASSERT(!model_.valid());
  model_ = std::async(std::launch::async, [this, step, write = std::move(write)] {
    ModelFailures f;
    f.folder = io_failure([&] {
      if (keep_.keep_best == 0) return write_whole_folder(model_folder(), step, write);
      checkpoints_.keep_model(step, write);
    });
    if (f.folder || keep_.keep_best == 0) return f;
    f.copy = io_failure([&] {
      if (const auto from = checkpoints_.best()) copy_model(*from);
      prune_models(step);
    });
    return f;
  });
}

bool RunOutput::join_model() {
  if (!model_.valid()) return true;
  const ModelFailures f = model_.get();
  if (f.folder) report(*f.folder, "the next better model is written");
  if (f.copy) report(*f.copy, "model/ is made at the end or after --resume");
  return !f.folder;
}

void RunOutput::copy_model(const Checkpoint& from) {
  write_whole_folder(model_folder(), from.step,
                     [&](const std::string& folder) { copy_direct_files(from.folder, folder); });
}

// Why model/ is not, or not surely, the model of `step`; nothing when it is.
std::optional<std::string> RunOutput::model_fault(int64_t step) const {
  std::error_code unknown;
  if (!holds_model(model_folder())) return "is missing";
  if (!fs::exists(model_folder() + "/manifest.json", unknown)) return kNoChecksums;
  if (const auto damage = model::manifest_damage(model_folder())) return "is damaged: " + *damage;
  const std::optional<int64_t> of = model::manifest_step(model_folder());
  if (of == step) return std::nullopt;
  return of ? fmt::format("is of step {}", *of) : "is of an unknown step";
}

bool RunOutput::restore_model(int64_t best_step) {
  const std::optional<Checkpoint> saved =
      best_step < 0 ? std::nullopt : checkpoints_.whole_model(best_step);
  const auto copy = [&](const std::string& folder) { copy_direct_files(saved->folder, folder); };
  const bool checkpoint = saved && fs::path(saved->folder).filename().string().starts_with("step-");
  if (checkpoint && keep_.keep_best > 0) {
    checkpoints_.keep_model(best_step, copy);  // a checkpoint goes when newer ones come
  }
  checkpoints_.restore_best(best_step);
  if (best_step < 0) return true;
  const std::optional<std::string> fault = model_fault(best_step);
  if (!fault) return true;
  const std::string what =
      fmt::format("{} {}; the best is of step {}", model_folder(), *fault, best_step);
  if (saved) {
    copy_model(*saved);
    log_warning(fmt::format("{}: written anew from {}", what, saved->folder));
    return true;
  }
  if (*fault == kNoChecksums) {  // an earlier version made it: it gets them now
    model::write_manifest(model_folder(), best_step);
    return true;
  }
  log_warning(fmt::format(
      "{}, of which nothing whole is left: the next validation counts as the first", what));
  return false;
}

void RunOutput::end(const RunEnd& row, const LastModel& model) {
  write_row(row);
  if (model.best_step >= 0) {
    if (const auto fault = model_fault(model.best_step)) {
      const std::optional<Checkpoint> saved = checkpoints_.whole_model(model.best_step);
      if (saved) {
        copy_model(*saved);
      } else if (model.write) {
        log_warning(
            fmt::format("{} {}, and the best, of step {}, is lost: it becomes the model of "
                        "the last step",
                        model_folder(), *fault, model.best_step));
        write_whole_folder(model_folder(), row.step, model.write);
      }
    }
  } else if (model.write) {
    write_whole_folder(model_folder(), row.step, model.write);
  }
  write_report(folder_);
}

}  // namespace saturate::train
