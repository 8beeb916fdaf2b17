// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <functional>
#include <future>
#include <optional>
#include <string>

#include "base/config.h"
#include "train/checkpoint_store.h"
#include "train/metrics_log.h"
#include "train/run_lock.h"
#include "train/tensorboard.h"

namespace saturate::train {

// What becomes of a run that cannot write.
enum class Failure { reported, ends_run };

/// The folder of a run, held by the one rank that writes: metrics, checkpoints, the model, the
/// report. While the run goes on, what cannot be written (a full disk) is reported and left out,
/// and what was written before stays; only what a run begins and ends with must succeed.
class RunOutput {
 public:
  using Write = std::function<void(const std::string& folder)>;
  // Told before each report, to leave the line that is being drawn.
  using BeforeReport = std::function<void()>;

  // Locks the folder and removes what a killed writer left. Errors: io; invalid_argument when
  // config.resume is off and it holds a checkpoint or a model, or another process uses it.
  RunOutput(const RunConfig& config, BeforeReport before_report);
  ~RunOutput();  // a folder that it made and that nothing was written to goes

  // Writes config.toml and the head of the metrics; rows after head.step of an earlier part are cut
  // off, and at step 0 kept in another file. Errors: io; invalid_argument for metrics that cannot
  // be read.
  void begin(const RunConfig& config, const RunHeader& head);

  void write(const MetricsRow& row);
  // Saves a checkpoint, whose state calls `best_step` the best, and removes those no longer kept.
  // False when it was not saved: the earlier
  // ones are intact then. Errors: what `write` throws other than io; with Failure::ends_run io too.
  // Collective over `ranks`, of which the others call join_checkpoint().
  bool checkpoint(int64_t step, uint64_t bytes_needed, const Write& write, int64_t best_step,
                  Failure failure, const Together& ranks);
  // The part of the other ranks, which hold no folder.
  static bool join_checkpoint(const std::string& run_folder, int64_t step, const Write& write,
                              Failure failure, const Together& ranks);
  // The model of `step` is the best now: a thread of its own calls `write` to fill its folder in
  // checkpoints/ and makes model/ from that; with keep_best 0 it fills model/. Nothing but metrics
  // may be written until join_model().
  void begin_model(int64_t step, Write write);
  // Waits for what begin_model() began. False when it could not be written, which is reported then; a
  // model that was there before stays. Errors: what `write` throws other than io.
  bool join_model();
  // The same without a word, for who leaves because of an error.
  void await_model() noexcept {
    if (model_.valid()) model_.wait();
  }
  // After a resume: model/ is the model of `best_step` (-1: none is the best yet), written anew
  // from what was kept when it is damaged, missing or of another step. False when that is not whole
  // either: then nothing is known to be the best. Errors: io.
  bool restore_model(int64_t best_step);

  // What a run leaves as its model.
  struct LastModel {
    int64_t best_step = -1;  // -1: nothing was the best; then `write` gives the last weights
    Write write;             // empty: no model is left then
  };
  // The checkpoint of `step`, if it is there.
  std::optional<std::string> checkpoint_folder(int64_t step) const {
    return checkpoints_.folder_of(step);
  }
  // The last row, the model if model/ is not that model yet, and the report. Errors: io.
  void end(const RunEnd& row, const LastModel& model);

 private:
  bool attempt(const char* consequence, const std::function<void()>& action);
  void report(const std::string& failure, const char* consequence);
  void write_row(const MetricsRow& row);
  void open_logs(bool resumed);
  void recover_folder();
  std::string model_folder() const;
  std::optional<std::string> model_fault(int64_t step) const;
  void copy_model(const Checkpoint& from);
  void prune_models(int64_t best_step);

  RunConfig config_;
  const CheckpointConfig& keep_ = config_.checkpoint;
  const std::string& folder_ = config_.out;
  const BeforeReport before_report_;
  std::optional<RunLock> lock_;  // always there after construction
  CheckpointStore checkpoints_;
  std::optional<RunHeader> head_;
  std::optional<MetricsLog> metrics_;
  std::optional<TensorBoardLog> tensorboard_;
  bool rows_missing_ = false;  // the last row could not be written
  // What could not be done: the best model's folder, and model/ made from it.
  struct ModelFailures {
    std::optional<std::string> folder, copy;
  };
  std::future<ModelFailures> model_;  // the last member: it waits before others go
};

}  // namespace saturate::train
