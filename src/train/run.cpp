// SPDX-License-Identifier: Apache-2.0
#include "train/run.h"

#include <fmt/format.h>
#include <unistd.h>

#include <fstream>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/timed_part.h"
#include "train/rank_action.h"

namespace saturate::train {
namespace {

// What this process holds in memory, from /proc; 0 when that cannot be read.
double resident_bytes() {
  std::ifstream in("/proc/self/statm");
  double total = 0, resident = 0;
  in >> total >> resident;
  return resident * static_cast<double>(sysconf(_SC_PAGESIZE));
}

double seconds_since(std::chrono::steady_clock::time_point t) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - t).count();
}

}  // namespace

double Run::elapsed() const { return progress_state_.elapsed_s + seconds_since(began_); }

// Also ends the run at the first line that cannot be used, wherever training is.
void Run::tell_when_text_is_whole() {
  if (text_told_) return;
  const data::CacheStats* stats = corpora_.train.whole();
  if (stats == nullptr) return;
  text_told_ = true;
  progress_.message(text_summary("training text", *stats));
  progress_.clear();
  report_bad_lines("training text", corpora_.train.bad_lines());
}

bool Run::submit_step() {
  tell_when_text_is_whole();
  // Slots whose copies have left go back to the loader. With prefetch one step's worth may stay on
  // its way meanwhile; without, the device has finished (train() saw to it) and all of them are
  // free.
  const size_t keep = config_.train.prefetch ? static_cast<size_t>(config_.batch.accumulate) : 0;
  while (held_.size() > keep) {
    step_->wait_slot(held_.front());
    loader_->release();
    held_.erase(held_.begin());
  }
  for (int64_t a = 0; a < config_.batch.accumulate; ++a) {
    const bool starving = step_->device_idle();
    const Clock::time_point begin = Clock::now();
    data::LoadedBatch batch;
    if (!loader_->next(batch)) return false;
    if (starving) throughput_->add_wait(seconds_since(begin));
    const int64_t slots = step_->slots();
    held_.push_back((first_slot_ + batch.slot) % slots);
    epoch_ = batch.stats.epoch;
    const auto source = static_cast<double>(batch.stats.source_tokens);
    const auto target = static_cast<double>(batch.stats.target_tokens);
    // Ranks of one dp coordinate share the work of their batch.
    const double share = layout_.extent(Layout::Axis::dp) / static_cast<double>(ranks_.size());
    throughput_->add_batch(
        source, target,
        share * model_->training_flops(source, target, source * pairs_per_token_,
                                       target * pairs_per_token_ / 2, target * pairs_per_token_));
  }
  step_->submit();
  return true;
}

void Run::account(const StepRecord& r) {
  last_ = r;
  done_ = r.step;
  ranks_.set_step(done_);
  if (r.skipped) {
    if (store_.compute_type() != DType::f16) {
      progress_.message(
          fmt::format("step {}: non-finite gradient, weights left as they were", r.step));
    }
  } else {
    loss_sum_ += r.nll_sum;
    tokens_ += r.target_tokens;
  }
  if (r.bad_steps_in_row >= config_.train.stop_after_bad_steps) {
    throw Error(
        Errc::invalid_argument, "train",
        fmt::format(
            "{} steps in a row had non-finite gradients (last: step {}, lr {:.3g}); lower "
            "optimizer.lr, raise schedule.warmup_steps, or use train.precision bf16. The last "
            "checkpoint is whole",
            r.bad_steps_in_row, r.step, r.lr));
  }
}

void Run::drain(bool until_idle) {
  if (until_idle) step_->synchronize();
  for (StepRecord r; step_->poll(&r);) {
    account(r);
    if (r.step % config_.train.log_every == 0) log_progress();
  }
}

void Run::log_progress() {
  if (tokens_ <= 0) return;
  const Throughput::Rates rates = throughput_->take();
  // The count of operations is that of a step in which everything trains.
  const bool all_train = store_.trainable_count() == store_.count();
  const DeviceInfo info = device_info(device_);
  const double memory = device_.is_cuda() ? static_cast<double>(info.memory_bytes - info.free_bytes)
                                          : resident_bytes();
  TrainRow row{.step = done_,
               .epoch = epoch_,
               .elapsed_s = elapsed(),
               .loss = loss_sum_ / tokens_,
               .learning_rate = last_.lr,
               .grad_norm = last_.grad_norm,
               .loss_scale = last_.loss_scale,
               .target_tokens_per_s = rates.target_tokens_per_s * layout_.extent(Layout::Axis::dp),
               .data_wait = rates.data_wait,
               .device_busy = device_.is_cuda()
                                  ? std::min(1.0, step_->take_device_ms() / (1e3 * rates.seconds))
                                  : kNotMeasured,
               .flop_utilisation = all_train ? rates.flop_utilisation : kNotMeasured,
               .memory_bytes = memory};
  if (output_) output_->write(row);
  progress_.update({.step = done_,
                    .total_steps = config_.train.max_steps,
                    .epoch = epoch_,
                    .loss = row.loss,
                    .target_tokens_per_s = row.target_tokens_per_s,
                    .data_wait = row.data_wait,
                    .device_busy = row.device_busy,
                    .flop_utilisation = row.flop_utilisation,
                    .memory_bytes = memory,
                    .memory_total_bytes = static_cast<double>(info.memory_bytes)});
  loss_sum_ = tokens_ = 0;
  logged_ = done_;
}

void Run::save(Failure failure) {
  drain(true);
  const RankAction saving(ranks_, "saving a checkpoint");  // the others wait while this rank joins
  join_validation();
  join_best();
  last_save_ = Clock::now();
  // The first rank alone knows of a validation since.
  if (ranks_.all_reduce_max(saved_ != done_ ? 1 : 0) == 0) return;
  throughput_->pause();
  RunProgress p = progress_state_;
  p.loader = resume_from_ ? *resume_from_ : loader_->state();
  p.elapsed_s = elapsed();
  const auto write = [&](const std::string& folder) {
    write_checkpoint(folder, model_config_, config_.translate, *step_, state_of_ranks(), corpora_,
                     p, together_);
  };
  const uint64_t bytes = checkpoint_bytes(model_config_, state_of_ranks(), corpora_);
  const bool saved =
      output_ ? output_->checkpoint(done_, bytes, write, p.best_step, failure, together_)
              : RunOutput::join_checkpoint(config_.out, done_, write, failure, together_);
  if (saved) saved_ = done_;
  throughput_->resume();
}

// Signals and clocks differ between ranks: all do it when one wants to. Asked every few steps only,
// since it waits for the slowest rank.
bool Run::agreed(bool mine) {
  if (ranks_.size() == 1) return mine;
  if (step_->submitted() % 16 != 0) return false;
  return ranks_.all_reduce_max(mine ? 1 : 0) > 0;
}

bool Run::time_is_over() const {
  return signal_ != 0 || (config_.train.max_seconds > 0 && elapsed() >= config_.train.max_seconds);
}

bool Run::checkpoint_is_due() const {
  return config_.checkpoint.every_minutes > 0 &&
         seconds_since(last_save_) > 60 * config_.checkpoint.every_minutes;
}

// The global sequence's epoch: a rank's own batches cross its border at different steps.
bool Run::epoch_validation_is_due(int64_t& epoch) const {
  if (config_.validate.every_epochs == 0) return false;
  const int64_t now = loader_->state().epoch;
  return std::exchange(epoch, now) != now && now % config_.validate.every_epochs == 0;
}

TrainEnd Run::train() {
  const auto every = [](int64_t n, int64_t step) { return n > 0 && step > 0 && step % n == 0; };
  bool stopped = false;
  int64_t epoch = progress_state_.loader.epoch;
  if (initial_ && done_ == 0) validate();
  stop_early_ = began_at_ > 0 && patience_is_over();  // every rank has read the same checkpoint
  ranks_.set_action(RankAction::kTraining, parallel::Pace::steady);
  std::optional<TimedPart> first(std::in_place, "first step, as the host sees it");
  while (!stop_early_) {
    if (config_.train.max_steps > 0 && step_->submitted() >= config_.train.max_steps) break;
    if ((stopped = agreed(time_is_over()))) break;
    const data::PackerState before = loader_->state();
    try {
      if (!submit_step()) break;  // the last epoch has ended
    } catch (const Interrupted&) {
      // While it waited for text: of this step some micro-batches may have been taken.
      resume_from_ = before;
      stopped = true;
      break;
    }
    first.reset();
    drain(!config_.train.prefetch);
    tell_validation_when_done();
    const int64_t at = step_->submitted();
    if (epoch_validation_is_due(epoch) || every(config_.validate.every_steps, at)) validate();
    if (agreed(checkpoint_is_due()) || every(config_.checkpoint.every_steps, at)) {
      save(Failure::reported);
    }
  }
  drain(true);
  if (done_ > logged_) log_progress();
  const bool interrupted = stopped && ranks_.all_reduce_max(signal_ != 0 ? 1 : 0) > 0;
  if (!interrupted) validate();
  save(Failure::ends_run);
  const TrainEnd end = interrupted   ? TrainEnd::interrupted
                       : stop_early_ ? TrainEnd::stopped_early
                                     : TrainEnd::finished;
  ranks_.set_action("ending", parallel::Pace::any);
  finish(end);
  return end;
}

}  // namespace saturate::train
