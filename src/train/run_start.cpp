// SPDX-License-Identifier: Apache-2.0
// From a configuration to a run that can take its next step.
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <fstream>

#include "base/config_keys.h"
#include "base/error.h"
#include "base/features.h"
#include "base/log.h"
#include "base/text.h"
#include "base/timed_part.h"
#include "kernels/gemm/matmul.h"
#include "train/checkpoint_store.h"
#include "train/frozen.h"
#include "train/model_setup.h"
#include "train/quantize.h"
#include "train/rank_agreement.h"
#include "train/run.h"
#include "train/run_settings.h"
#include "train/tuned_tables.h"
#include "train/whole_folder.h"

namespace saturate::train {
namespace {

ProgressOptions progress_options(const RunConfig& config, bool first_rank) {
  return {.style = detect_progress_style(2, config.quiet || !first_rank), .color = detect_color()};
}

// Opens the device in a thread of its own, which takes as long as a small text.
std::future<void> open_device(Device device) {
  return std::async(std::launch::async, [device] {
    const TimedPart part("device: driver, context and its library of products");
    use_device(device);
    try {
      kernels::load_matmul_library(device);
    } catch (const Error&) {  // who needs it says so
    }
  });
}
Device opened(std::future<void>& opening, Device device) {
  opening.get();
  use_device(device);
  return device;
}

// Tables first: how much memory a step takes depends on the kernels that they choose.
FittedBatch fit_with_tables(const RunConfig& config, const data::TokenCache& cache,
                            const model::ModelConfig& model, ParameterStore& store,
                            parallel::Communicator& ranks, const Layout& layout) {
  const TimedPart part("tables and the batch that fits");
  store.set_kernels(kernel_options_of_run(config, store.device(), ranks));
  const auto rows_of = [&](const RunConfig& c) { return resolve_shape(c, cache, model); };
  return fit_batch(config, rows_of, model, store, layout, ranks);
}

// A language model's preset is named for its size with its own vocabulary; another one is told.
void tell_size(const RunConfig& config, const model::ModelConfig& model, int64_t parameters) {
  const model::ModelConfig preset = model_with(config);
  if (preset.kind != model::ModelKind::decoder_only || preset.vocab_target == model.vocab_target)
    return;
  const int64_t rows = (preset.vocab_target - model.vocab_target) * (model.tied_output ? 1 : 2);
  log_info(fmt::format(
      "{} has {} parameters with its vocabulary of {}; with one of {} it has {}",
      config.model.preset, format_count(static_cast<double>(parameters + rows * model.d_model)),
      preset.vocab_target, model.vocab_target, format_count(static_cast<double>(parameters))));
}

bool trains_language_model(const RunConfig& config, const std::optional<InitialModel>& initial) {
  return initial ? initial->config.kind == model::ModelKind::decoder_only
                 : is_language_model(config);
}

// What every rank of the pipeline does, for people and for Perfetto.
void tell_pipeline(const std::string& folder, const Pipeline& pipeline) {
  namespace lists = parallel::pipeline;
  const auto write = [&](const char* name, const std::string& text) {
    const std::string path = folder + "/" + name;
    std::ofstream file(path);
    if (!(file << text) || !file.flush())
      throw Error(Errc::io, "run", fmt::format("{} cannot be written: is the disk full?", path));
  };
  write("pipeline.csv", lists::to_text(pipeline.schedule));
  write("pipeline.json", lists::to_timeline(pipeline.schedule, pipeline.times));
  log_info(fmt::format(
      "pipeline of {} chunks on {} ranks; by estimate they are idle {:.1f}% of a step "
      "(pipeline.csv: what each rank does; pipeline.json: the same in time, for Perfetto)",
      pipeline.schedule.chunks(), pipeline.schedule.ranks(),
      100 * lists::simulate(pipeline.schedule, pipeline.times).bubble));
}

}  // namespace

Run::Run(const RunConfig& config, std::optional<InitialModel> initial, Device device,
         parallel::Communicator& ranks, const std::atomic<int>& signal)
    : config_(config),
      asked_batch_(config.batch),
      device_(device),
      ranks_(ranks),
      together_(ranks),
      layout_(ranks, mesh_extents(config.parallel, ranks.size()),
              transfer_options(config.parallel)),
      signal_(signal),
      progress_(progress_options(config, ranks.rank() == 0)),
      output_(ranks.rank() == 0
                  ? std::make_unique<RunOutput>(config, [this] { progress_.finish(); })
                  : nullptr),
      initial_(std::move(initial)),
      opening_(open_device(device)),
      corpora_((require_shared_folder(config.out, together_),
                prepare_corpora(config, config.out, trains_language_model(config, initial_),
                                initial_ ? &initial_->tokenizers : nullptr, ranks,
                                Interrupt(signal), progress_))),
      store_(opened(opening_, device), resolve_precision(config.train.precision, device)),
      all_(device, store_.compute_type()),
      model_config_(initial_ ? resolve_initial(config, *initial_)
                             : resolve_model(config, corpora_.source, corpora_.target)),
      fitted_(fit_with_tables(config, corpora_.train, model_config_, store_, ranks, layout_)) {
  require_agreement(plan_of(corpora_, fitted_), ranks);
  config_.batch = fitted_.batch;
  std::optional<TimedPart> part;
  part.emplace("memory and plan of the step");
  const StepMemory& plan = fitted_.memory;
  StepOptions options = resolve_step(config_, fitted_.rows.shape, ranks.size());
  options.recompute_units = fitted_.recompute_units;
  if (!config_.train.label_smoothing && model_config_.kind == model::ModelKind::decoder_only)
    options.label_smoothing = 0;  // one that init.from gives as well
  model_.emplace(
      model_config_, store_, layout_,
      plan_pipeline(model_config_, options.shape, options.accumulate, options.parallel, layout_)
          .stages);
  freeze_parameters(store_, config_.optimizer.freeze);
  const model::Transformer declared(model_config_, all_);
  freeze_parameters(all_, config_.optimizer.freeze);
  all_.update_by(options.optimizer.kind);
  if (options.fp8) all_.multiply_in_fp8();
  allocate_for_steps(store_, options, layout_);
  model_->make_tables(store_);
  step_.emplace(*model_, store_, options, ranks, layout_);
  const auto count = [](int64_t n) { return format_count(static_cast<double>(n)); };
  const bool all = store_.trainable_count() == store_.count();
  log_info(fmt::format(
      "{}{} parameters, {}{} on {}, batch of {} target tokens x {} in {} sequences; {} for the "
      "step, "
      "{} of it "
      "activations ({} without sharing){}{}",
      all ? "" : count(store_.trainable_count()) + " trainable of ", count(store_.count()),
      precision_name(store_),
      rounds_operands(config_.train.precision)
          ? " with products of layers in " + config_.train.precision
          : "",
      to_string(device), fitted_.rows.shape.target_rows,
      config_.batch.accumulate * layout_.extent(Layout::Axis::dp), fitted_.rows.shape.sequences,
      format_bytes(static_cast<double>(plan.total())),
      format_bytes(static_cast<double>(plan.activations)),
      format_bytes(static_cast<double>(plan.activations_unshared)),
      plan.host == 0 ? ""
                     : fmt::format("; {} of state in host memory",
                                   format_bytes(static_cast<double>(plan.host))),
      ranks.size() == 1 ? "" : fmt::format("; {} ranks as {}", ranks.size(), layout_text())));
  if (!fitted_.recompute_units && plan.recompute.units > 0) log_info(text_of(plan.recompute));
  tell_size(config_, model_config_, store_.count());
  if (output_ && layout_.extent(Layout::Axis::pp) > 1)
    tell_pipeline(config_.out, step_->pipeline());
  part.emplace("weights");
  const bool resumed = start_or_resume();
  part.emplace("validator");
  start_validator();
  part.emplace("ceiling of products");
  // Cores of a CPU belong to others too: what 0.3 s measure at the start is no ceiling of the run.
  throughput_.emplace(
      device.is_cuda() ? matmul_ceiling(device, store_.compute_type(), store_.kernels()) : 0);
  // Mean keys per token: a sentence of n tokens has n^2 pairs; the mean length stands for n.
  const data::CacheStats& stats = corpora_.train.head();
  const bool whole = pack_unit(config_) == data::PackUnit::stream;
  pairs_per_token_ =
      whole ? static_cast<double>(fitted_.rows.shape.max_target)
            : static_cast<double>(stats.target_tokens) / static_cast<double>(stats.counts.kept);
  part.reset();
  text_told_ = corpora_.train.whole() != nullptr;
  start_loader();
  begin_output(resumed);  // what is refused until here changes nothing of the run's folder
}

// The first rank judges whole weights. Where the layout cuts them for want of room they may not fit
// beside its part of the training.
void Run::start_validator() {
  if (ranks_.all_reduce_max(corpora_.valid ? 1 : 0) == 0) return;
  using Axis = Layout::Axis;
  const bool cut =
      layout_.extent(Axis::tp) > 1 || layout_.extent(Axis::pp) > 1 || layout_.extent(Axis::ep) > 1;
  if (cut) gathered_.emplace(state_of_ranks(), ranks_);
  if (output_ && corpora_.valid) {
    try {
      validator_.emplace(config_, model_config_, corpora_, store_, fitted_.rows.shape,
                         ValidatorOptions{.sets = validation_sets(corpora_),
                                          .beam = config_.validate.beam,
                                          .translate = config_.validate.metric != "loss"});
    } catch (const Error& e) {
      if (!cut || e.code() != Errc::out_of_memory) throw;
      log_warning(
          fmt::format("no validation, only the loss of training: the whole weights do not fit {} "
                      "beside its part of the training ({}). saturate eval judges the checkpoints",
                      to_string(device_), e.what()));
    }
  }
  validates_ = ranks_.all_reduce_max(validator_ ? 1 : 0) > 0;
}

bool Run::start_or_resume() {
  std::optional<Checkpoint> from;
  if (config_.resume) {
    std::vector<std::string> problems;
    from = CheckpointStore(config_.out).newest_valid(problems, together_);
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
  texts_ = text_identity(config_);
  if (from) {
    check_continues(from->folder, model_config_, corpora_);
    if (!initial_) check_tokenizer_settings(config_.out, config_);
    if (!model_config_.lora.empty()) load_initial_weights(*initial_, store_, ranks_);
    progress_state_ = read_checkpoint(from->folder, *step_, store_);
    check_same_text(progress_state_.texts, texts_, config_);
    if (progress_state_.texts.train.empty())
      progress_state_.texts = texts_;  // an earlier version's
    progress_state_.texts.train = texts_.train;
    done = from->step;
    log_info(fmt::format("resumed from {} at step {}", from->folder, done));
  } else {
    if (initial_) {
      if (!model_config_.lora.empty())
        store_.initialise_trained(step_->stream(), static_cast<uint64_t>(config_.train.seed));
      load_initial_weights(*initial_, store_, ranks_);
      if (output_) keep_initial_model(config_.out, *initial_);
      log_info(fmt::format("starting from {} (weights {})", initial_->folder, initial_->weights));
      if (output_ && is_quantized(initial_->folder)) {
        log_warning(
            fmt::format("{} was quantized to 8 bits: the run begins with weights as they were "
                        "rounded; to begin with what they were before, give the folder that was "
                        "quantized",
                        initial_->folder));
      }
    } else {
      store_.initialise(step_->stream(), static_cast<uint64_t>(config_.train.seed));
    }
    store_.reset_average(step_->stream());
    step_->synchronize();
    progress_state_.texts = texts_;
  }
  if (initial_) progress_state_.origin = {initial_->from, initial_->weights};
  done_ = logged_ = saved_ = validated_ = began_at_ = done;
  if (initial_ && done == 0) validated_ = -1;  // train() validates what it starts from
  epoch_ = progress_state_.loader.epoch;
  return from.has_value();
}

void Run::begin_output(bool resumed) {
  if (output_) {
    // A resumed run fits its batch anew, from what was asked for.
    RunConfig asked = config_;
    asked.batch = asked_batch_;
    output_->begin(asked, header());
  }
  if (!resumed) return;
  const bool lost = output_ && !output_->restore_model(progress_state_.best_step);
  if (ranks_.all_reduce_max(lost ? 1 : 0) == 0) return;
  progress_state_.best_step = -1;
  progress_state_.validations_without_gain = 0;
}

std::string Run::layout_text() const { return train::layout_text(config_.parallel, ranks_.size()); }

RunHeader Run::header() const {
  RunHeader h;
  h.step = done_;
  h.started = fmt::format("{:%FT%TZ}", fmt::gmtime(std::time(nullptr)));
  for (const config::Key& key : config::keys()) {
    const std::string value = value_text(key, config_);
    const bool of_this_start =
        std::string_view(key.name) == "resume" || std::string_view(key.name) == "quiet";
    if (!value.empty() && !of_this_start) h.config.emplace_back(key.name, value);
  }
  const DeviceInfo info = device_info(device_);
  h.environment = {{"version", SATURATE_VERSION},
                   {"device", to_string(device_) + " " + info.name},
                   {"ranks", std::to_string(ranks_.size())},
                   {"layout", layout_text()},
                   {"precision", precision_name(store_)},
                   {"parameters", std::to_string(store_.count())}};
  if (store_.trainable_count() != store_.count())
    h.environment.emplace_back("trainable", std::to_string(store_.trainable_count()));
  if (const RunOrigin& o = progress_state_.origin; !o.from.empty())
    h.environment.emplace_back("started from", fmt::format("{} (weights {})", o.from, o.weights));
  return h;
}

void Run::start_loader() {
  data::BatchLoader::Setup setup;
  setup.packing = {
      .shape = fitted_.rows.shape,
      .source_padding = fitted_.rows.source_padding,
      .target_padding = fitted_.rows.target_padding,
      .unit = pack_unit(config_),
      .padding = config_.train.packing ? data::Padding::none : data::Padding::to_longest,
      .seed = static_cast<uint64_t>(config_.train.seed),
      .epochs = config_.train.max_epochs};
  setup.rank = layout_.coordinate(Layout::Axis::dp);
  setup.ranks = layout_.extent(Layout::Axis::dp);
  setup.threads = static_cast<int>(config_.data.workers);
  setup.state = progress_state_.loader;
  // The device takes micro-batch m from slot m % slots; the loader starts with its first slot.
  const int64_t slots = step_->slots();
  first_slot_ = step_->next_slot();
  for (int64_t i = 0; i < slots; ++i)
    setup.slots.push_back(step_->host_slot((first_slot_ + i) % slots));
  loader_.emplace(corpora_.train, setup);
}

}  // namespace saturate::train
