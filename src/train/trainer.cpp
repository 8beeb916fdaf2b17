// SPDX-License-Identifier: Apache-2.0
#include "train/trainer.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <unistd.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <optional>
#include <utility>

#include "base/durable_file.h"
#include "base/error.h"
#include "base/features.h"
#include "base/log.h"
#include "data/batch_loader.h"
#include "ops/linear.h"
#include "parallel/launch.h"
#include "train/batch_fit.h"
#include "train/checkpoint.h"
#include "train/checkpoint_store.h"
#include "train/metrics_log.h"
#include "train/model_setup.h"
#include "train/progress.h"
#include "train/report.h"
#include "train/run_lock.h"
#include "train/tensorboard.h"
#include "train/throughput.h"
#include "train/validator.h"

namespace saturate::train {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

// Atomic, because any thread may be the one that the signal interrupts.
std::atomic<int> g_signal{0};
static_assert(std::atomic<int>::is_always_lock_free);
void on_signal(int s) { g_signal = s; }

// What this process holds in memory, from /proc; 0 when that cannot be read.
double resident_bytes() {
  std::ifstream in("/proc/self/statm");
  double total = 0, resident = 0;
  in >> total >> resident;
  return resident * static_cast<double>(sysconf(_SC_PAGESIZE));
}

double seconds_since(Clock::time_point t) {
  return std::chrono::duration<double>(Clock::now() - t).count();
}

// One run on one rank. Rank 0 alone writes; every rank decides alike, from shared numbers.
class Run {
 public:
  Run(const RunConfig& config, Device device, parallel::Communicator& ranks);
  TrainEnd train();

 private:
  bool first_rank() const { return ranks_.rank() == 0; }
  double elapsed() const { return progress_state_.elapsed_s + seconds_since(began_); }
  void start_or_resume();
  void start_loader();
  bool submit_step();
  void drain(bool until_idle);
  void account(const StepRecord& record);
  void log_progress();
  void validate();
  void save();
  bool agreed(bool mine);
  bool time_is_over() const;
  bool checkpoint_is_due() const;
  bool epoch_validation_is_due(int64_t& epoch) const;
  void finish(TrainEnd end, const std::string& status);
  RunHeader header() const;
  void write(const MetricsRow& row);

  RunConfig config_;
  const Device device_;
  parallel::Communicator& ranks_;
  std::optional<RunLock> lock_;
  Corpora corpora_;
  ParameterStore store_;
  model::ModelConfig model_config_;
  FittedBatch fitted_;
  std::optional<model::Transformer> model_;
  std::optional<TrainingStep> step_;
  std::optional<Validator> validator_;
  std::optional<data::BatchLoader> loader_;
  CheckpointStore checkpoints_;
  RunProgress progress_state_;
  std::optional<MetricsLog> metrics_;
  std::optional<TensorBoardLog> tensorboard_;
  Progress progress_;
  std::optional<Throughput> throughput_;

  Clock::time_point began_ = Clock::now(), last_save_ = Clock::now();
  std::vector<int64_t> held_;  // slots given by the loader, oldest first
  int64_t first_slot_ = 0;
  int64_t epoch_ = 0, done_ = 0, logged_ = 0, validated_ = -1, saved_ = -1;
  double loss_sum_ = 0, tokens_ = 0;  // since the last row
  StepRecord last_{};
  int64_t bad_steps_ = 0;
  bool stop_early_ = false;
  double pairs_per_token_ = 0;
};

ProgressOptions progress_options(const RunConfig& config, bool first_rank) {
  return {.style = detect_progress_style(2, config.quiet || !first_rank), .color = detect_color()};
}

std::optional<RunLock> lock_folder(const RunConfig& config, parallel::Communicator& ranks) {
  if (ranks.rank() != 0) return {};
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

Run::Run(const RunConfig& config, Device device, parallel::Communicator& ranks)
    : config_(config),
      device_(device),
      ranks_(ranks),
      lock_(lock_folder(config, ranks)),
      corpora_(prepare_corpora(config, config.out, ranks)),
      store_(device, resolve_precision(config.train.precision, device)),
      model_config_(resolve_model(config, corpora_.source, corpora_.target)),
      fitted_(fit_batch(config, corpora_.train, model_config_, store_.compute_type(), device)),
      checkpoints_(config.out),
      progress_(progress_options(config, ranks.rank() == 0)) {
  ops::allow_tf32(config.train.tf32);
  config_.batch = fitted_.batch;
  const StepMemory& plan = fitted_.memory;
  model_.emplace(model_config_, store_);
  store_.allocate(ParameterStore::Purpose::training);
  model_->make_tables(store_);
  step_.emplace(*model_, store_, resolve_step(config_, fitted_.shape), ranks);
  log_info(fmt::format(
      "{} parameters, {} on {}, batch of {} target tokens x {} in {} sequences; {} for the step, "
      "{} of it "
      "activations ({} without sharing)",
      format_count(static_cast<double>(store_.count())), name_of(store_.compute_type()),
      to_string(device), fitted_.shape.target_rows, config_.batch.accumulate * ranks.size(),
      fitted_.shape.sequences, format_bytes(static_cast<double>(plan.total())),
      format_bytes(static_cast<double>(plan.activations)),
      format_bytes(static_cast<double>(plan.activations_unshared))));
  start_or_resume();
  if (first_rank() && corpora_.valid) {
    validator_.emplace(config_, model_config_, corpora_, store_, fitted_.shape);
  }
  throughput_.emplace(matmul_ceiling(device, store_.compute_type()));
  // Mean keys per token: a sentence of n tokens has n^2 pairs; the mean length stands for n.
  const data::CacheStats& stats = corpora_.train.stats();
  const bool whole = pack_unit(config_) == data::PackUnit::stream;
  pairs_per_token_ =
      whole ? static_cast<double>(fitted_.shape.max_target)
            : static_cast<double>(stats.target_tokens) / static_cast<double>(stats.counts.kept);
  start_loader();
}

void Run::start_or_resume() {
  std::optional<Checkpoint> from;
  if (config_.resume) {
    std::vector<std::string> problems;
    if (first_rank()) checkpoints_.remove_leftovers();
    ranks_.barrier();
    from = checkpoints_.newest_valid(problems);
    for (const std::string& p : problems) log_warning("damaged checkpoint passed over: " + p);
    if (!from && !problems.empty()) {
      throw Error(
          Errc::io, "resume",
          fmt::format("no checkpoint in {} is whole; restore one of them, or start a new run "
                      "in another folder",
                      config_.out));
    }
    if (!from) log_warning("nothing to resume in " + config_.out + "; starting from the beginning");
  }
  int64_t done = 0;
  if (from) {
    check_continues(from->folder, model_config_, corpora_);
    progress_state_ = read_checkpoint(from->folder, *step_, store_);
    done = from->step;
    log_info(fmt::format("resumed from {} at step {}", from->folder, done));
  } else {
    store_.initialise(step_->stream(), static_cast<uint64_t>(config_.train.seed));
    step_->reset_average();
    step_->synchronize();
  }
  done_ = logged_ = saved_ = validated_ = done;
  epoch_ = progress_state_.loader.epoch;
  if (!first_rank()) return;
  write_durable_file(config_.out + "/config.toml", to_toml(config_));
  const std::string path = config_.out + "/metrics.jsonl";
  if (from) {
    metrics_.emplace(path, done);
    tensorboard_.emplace(config_.out + "/tensorboard", done);
  } else {
    metrics_.emplace(path);
    tensorboard_.emplace(config_.out + "/tensorboard");
  }
  write(header());
}

RunHeader Run::header() const {
  RunHeader h;
  h.step = done_;
  h.started = fmt::format("{:%FT%TZ}", fmt::gmtime(std::time(nullptr)));
  const std::string toml = to_toml(config_);
  std::string section;
  for (size_t at = 0; at < toml.size();) {  // "key = value" lines under [section]
    const size_t end = std::min(toml.find('\n', at), toml.size());
    const std::string line = toml.substr(at, end - at);
    at = end + 1;
    if (line.starts_with("[")) {
      section = line.substr(1, line.find(']') - 1) + ".";
    } else if (const size_t eq = line.find(" = ");
               eq != std::string::npos && !line.starts_with("#")) {
      h.config.emplace_back(section + line.substr(0, eq), line.substr(eq + 3));
    }
  }
  const DeviceInfo info = device_info(device_);
  h.environment = {{"version", SATURATE_VERSION},
                   {"device", to_string(device_) + " " + info.name},
                   {"ranks", std::to_string(ranks_.size())},
                   {"precision", std::string(name_of(store_.compute_type()))},
                   {"parameters", std::to_string(store_.count())}};
  return h;
}

void Run::write(const MetricsRow& row) {
  if (!metrics_) return;
  metrics_->write(row);
  tensorboard_->write(row);
}

void Run::start_loader() {
  data::BatchLoader::Setup setup;
  setup.packing = {
      .shape = fitted_.shape,
      .unit = pack_unit(config_),
      .padding = config_.train.packing ? data::Padding::none : data::Padding::to_longest,
      .seed = static_cast<uint64_t>(config_.train.seed),
      .epochs = config_.train.max_epochs};
  setup.rank = ranks_.rank();
  setup.ranks = ranks_.size();
  setup.threads = static_cast<int>(config_.data.workers);
  setup.state = progress_state_.loader;
  // The device takes micro-batch m from slot m % slots; the loader starts with its first slot.
  const int64_t slots = step_->slots();
  first_slot_ = step_->next_slot();
  for (int64_t i = 0; i < slots; ++i)
    setup.slots.push_back(step_->host_slot((first_slot_ + i) % slots));
  loader_.emplace(corpora_.train, setup);
}

bool Run::submit_step() {
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
    throughput_->add_batch(
        source, target,
        model_->training_flops(source, target, source * pairs_per_token_,
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
    ++bad_steps_;
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
  const double ranks = ranks_.size();
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
               .target_tokens_per_s = rates.target_tokens_per_s * ranks,
               .data_wait = rates.data_wait,
               .device_busy = device_.is_cuda()
                                  ? std::min(1.0, step_->take_device_ms() / (1e3 * rates.seconds))
                                  : kNotMeasured,
               .flop_utilisation = rates.flop_utilisation,
               .memory_bytes = memory};
  write(row);
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

void Run::validate() {
  drain(true);
  if (validated_ == done_) return;
  validated_ = done_;
  throughput_->pause();
  double gained = 0;  // agreed by all ranks below
  if (validator_) {
    validator_->take_weights(*step_, store_);
    const ValidationResult v = validator_->run();
    ValidRow row{.step = done_, .epoch = epoch_, .elapsed_s = elapsed(), .loss = v.loss};
    std::string line = fmt::format("valid at step {}: loss {:.4f}", done_, v.loss);
    if (v.translated) {
      row.bleu = v.bleu;
      row.chrf = v.chrf;
      line += fmt::format(", BLEU {:.2f}, chrF {:.2f}", v.bleu, v.chrf);
      for (size_t i = 0; i < v.hypotheses.size() && i < 8; ++i) {
        write(SampleRow{done_, static_cast<int64_t>(i), corpora_.valid_source[i], v.hypotheses[i],
                        corpora_.valid_reference[i]});
      }
    }
    write(row);
    const double score = !v.translated || config_.validate.metric == "loss" ? -v.loss
                         : config_.validate.metric == "chrf"                ? v.chrf
                                                                            : v.bleu;
    if (progress_state_.best_step < 0 || score > progress_state_.best_score) {
      progress_state_.best_score = score;
      progress_state_.best_step = done_;
      progress_state_.validations_without_gain = 0;
      gained = 1;
      fs::create_directories(config_.out + "/model");
      write_model(config_.out + "/model", model_config_, validator_->weights(),
                  validator_->weights().masters(), corpora_);
      line += " (best)";
    } else {
      ++progress_state_.validations_without_gain;
    }
    progress_.message(fmt::format("{}, {:.1f} s", line, elapsed()));
  }
  const bool patience_over = config_.validate.patience > 0 &&
                             progress_state_.validations_without_gain >= config_.validate.patience;
  stop_early_ = ranks_.all_reduce_max(patience_over ? 1 : 0) > 0;
  if (gained > 0 && config_.checkpoint.keep_best > 0 && saved_ == done_)
    checkpoints_.mark_best(done_);
  throughput_->resume();
}

void Run::save() {
  drain(true);
  if (saved_ == done_) return;
  saved_ = done_;
  last_save_ = Clock::now();
  if (!first_rank()) return;
  throughput_->pause();
  RunProgress p = progress_state_;
  p.loader = loader_->state();
  p.elapsed_s = elapsed();
  checkpoints_.save(done_, checkpoint_bytes(store_, step_->average().data() != nullptr),
                    [&](const std::string& folder) {
                      write_checkpoint(folder, model_config_, *step_, store_, corpora_, p);
                    });
  if (p.best_step == done_ && config_.checkpoint.keep_best > 0) checkpoints_.mark_best(done_);
  checkpoints_.prune(config_.checkpoint.keep_last);
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
  return g_signal != 0 || (config_.train.max_seconds > 0 && elapsed() >= config_.train.max_seconds);
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
  while (!stop_early_) {
    if (config_.train.max_steps > 0 && step_->submitted() >= config_.train.max_steps) break;
    if ((stopped = agreed(time_is_over()))) break;
    if (!submit_step()) break;  // the last epoch has ended
    drain(!config_.train.prefetch);
    const int64_t at = step_->submitted();
    if (epoch_validation_is_due(epoch) || every(config_.validate.every_steps, at)) validate();
    if (agreed(checkpoint_is_due()) || every(config_.checkpoint.every_steps, at)) save();
  }
  drain(true);
  if (done_ > logged_) log_progress();
  const bool interrupted = stopped && ranks_.all_reduce_max(g_signal != 0 ? 1 : 0) > 0;
  if (!interrupted) validate();
  save();
  const TrainEnd end = interrupted   ? TrainEnd::interrupted
                       : stop_early_ ? TrainEnd::stopped_early
                                     : TrainEnd::finished;
  finish(end, interrupted
                  ? fmt::format("interrupted by {}", g_signal == SIGINT ? "SIGINT" : "SIGTERM")
              : stop_early_ ? "stopped early"
                            : "finished");
  return end;
}

void Run::finish(TrainEnd end, const std::string& status) {
  if (!first_rank()) return;
  progress_.finish();
  TextPairs results{{"steps", std::to_string(done_)}};
  if (progress_state_.best_step >= 0) {
    results.emplace_back("best step", std::to_string(progress_state_.best_step));
    results.emplace_back("best " + config_.validate.metric,
                         fmt::format("{:.2f}", progress_state_.best_score));
  }
  write(RunEnd{done_, elapsed(), status, results});
  if (!fs::exists(config_.out +
                  "/model/config.json")) {  // nothing was validated: ship what there is
    fs::create_directories(config_.out + "/model");
    const Buffer& weights = step_->average().data() ? step_->average() : store_.masters();
    write_model(config_.out + "/model", model_config_, store_, weights, corpora_);
  }
  write_report(config_.out);
  if (end == TrainEnd::interrupted) log_warning("stopped by a signal; continue with --resume");
}

}  // namespace

TrainEnd run_training(const RunConfig& config) {
  g_signal = 0;
  std::signal(SIGINT, on_signal);
  std::signal(SIGTERM, on_signal);
  const parallel::LaunchInfo launch = parallel::current_launch();
  Device device = parse_device(config.train.device);
  if (device.is_cuda() && launch.size > 1) device.index = launch.local_rank;
  // Mistakes that need no text are found before any of it is read.
  resolve_precision(config.train.precision, device);
  resolve_model(config, data::Tokenizer::bytes(), data::Tokenizer::bytes());
  if (launch.rank != 0) set_log_level(LogLevel::warning);
  const auto ranks = parallel::make_communicator(device, launch);
  try {
    use_device(device);
    return Run(config, device, *ranks).train();
  } catch (const std::exception& e) {
    ranks->report_failure(e);
    throw;
  }
}

}  // namespace saturate::train
