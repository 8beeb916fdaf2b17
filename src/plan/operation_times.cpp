// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>

#include "kernels/gemm/matmul.h"
#include "kernels/optimizer/step_state.h"
#include "parallel/planning.h"
#include "plan/cost.h"
#include "plan/measure.h"
#include "plan/roofline.h"
#include "runtime/replay.h"
#include "train/fp8_scales.h"
#include "train/frozen.h"
#include "train/loss_tape.h"
#include "train/model_setup.h"
#include "train/optimizer_step.h"
#include "train/parallel_setup.h"
#include "train/recompute.h"
#include "train/step_timing.h"
#include "train/training_step.h"
#include "train/tuned_tables.h"

namespace saturate::plan {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kRounds = 5;

double us_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

double median(std::vector<double> v) {
  std::nth_element(v.begin(), v.begin() + static_cast<std::ptrdiff_t>(v.size() / 2), v.end());
  return v[v.size() / 2];
}

// One rank's list with memory to run in.
class Bench {
 public:
  Bench(const RunConfig& config, const train::TimedShape& shape, int64_t length, int ranks,
        int rank, Device device)
      : ranks_(device, rank, ranks),
        layout_(ranks_, train::mesh_extents(config.parallel, ranks),
                train::transfer_options(config.parallel)),
        store_(device, train::resolve_precision(config.train.precision, device)),
        model_(shape.model, kernels_set(config), layout_),
        batch_layout_(shape.batch),
        stream_(device),
        workspace_(device, kernels::matmul_workspace_bytes(device, store_.compute_type())),
        batch_(device, static_cast<size_t>(batch_layout_.words) * sizeof(int32_t)),
        state_(device, sizeof(StepState)),
        options_(train::resolve_step(config, shape.batch, ranks)),
        tape_(store_, TapeMode::training, state_.as<StepState>()->rng) {
    train::freeze_parameters(store_, config.optimizer.freeze);
    store_.update_by(options_.optimizer.kind);
    if (options_.fp8) store_.multiply_in_fp8();
    if (options_.blocks) store_.multiply_in_blocks(*options_.blocks);
    store_.hold_moments(options_.optimizer.moments);
    store_.allocate(options_.optimizer.purpose());
    model_.make_tables(store_);
    store_.initialise(stream_, 1);
    std::vector<int32_t> words(static_cast<size_t>(batch_layout_.words));
    train::fill_timed_batch(shape, length, 1, words.data());
    copy_to_device(stream_, batch_.data(), words.data(), batch_.bytes());
    const StepState state;
    copy_to_device(stream_, state_.data(), &state, sizeof state);
    tape_.set_workspace_bytes(workspace_.bytes());
    record(options_);
    arena_ = Buffer(device, tape_.plan());
    fill_bytes(stream_, arena_.data(), 0, arena_.bytes());
    end_first_step();
  }

  const Tape& tape() const noexcept { return tape_; }

  // Microseconds of each operation of the list, alone.
  std::vector<double> times() {
    const size_t n = tape_.operations();
    std::vector<std::vector<double>> times(n);
    pass();
    for (int i = 0; i < kRounds; ++i) {
      store_.device().is_cuda() ? time_by_events(times) : time_by_clock(times);
    }
    std::vector<double> us;
    double sum = 0;
    for (const auto& t : times) sum += us.emplace_back(median(t));
    // Events take time of their own, which a graph of the list does not have.
    double more = 0;
    if (store_.device().is_cuda())
      more = std::max(0.0, (sum - replayed_us([&] { pass(); })) / static_cast<double>(n));
    for (double& t : us) t = std::max(t - more, 0.2 * t);
    return us;
  }

  std::vector<MeasuredOperation> run() {
    const std::vector<double> us = times();
    std::vector<MeasuredOperation> out;
    for (size_t i = 0; i < us.size(); ++i) {
      if (tape_.operation(i).traits.kind != OperationKind::compute) continue;
      const std::string key = operation_key(tape_, tape_.operation(i));
      const auto known =
          std::ranges::find_if(out, [&](const MeasuredOperation& o) { return o.key == key; });
      if (known == out.end()) {
        out.push_back({key, 1, us[i]});
      } else {
        known->us += (us[i] - known->us) / static_cast<double>(++known->count);
      }
    }
    return out;
  }

  // What follows the list: norm of the gradients, AdamW, the step's record.
  double optimizer_us() {
    constexpr int64_t kSlots = 4;
    const Buffer ring(store_.device(), kSlots * sizeof(StepRecord));
    const train::OptimizerStep step(store_, options_.optimizer, 1.0f, stream_, ranks_, layout_);
    pass();
    stream_.synchronize();
    // A step begins with the tokens that its list has counted; without them it changes nothing.
    const Buffer begin(store_.device(), sizeof(StepState));
    copy_on_device(stream_, begin.data(), state_.data(), sizeof(StepState));
    return replayed_us([&] {
      copy_on_device(stream_, state_.data(), begin.data(), sizeof(StepState));
      step.enqueue(context(), stream_, state_.as<StepState>(), ring.as<StepRecord>(), kSlots);
    });
  }
  // Master and moments in and out, the gradient for its norm and once more, the compute copy out.
  double optimizer_bytes() const {
    const auto wide = static_cast<double>(size_of(store_.wide_type()));
    const bool rounds = store_.compute_type() != store_.wide_type();
    const auto moment = static_cast<double>(kernels::moment_bytes(
        options_.optimizer.moments, static_cast<int64_t>(size_of(store_.wide_type()))));
    const double each = 4 * wide + 4 * moment +
                        (rounds ? static_cast<double>(size_of(store_.compute_type())) : 0.0);
    double elements = 0;
    for (const ParameterSpec& p : store_.specs())
      if (!p.frozen) elements += static_cast<double>(p.size());
    return elements * each;
  }

 private:
  ParameterStore& kernels_set(const RunConfig& config) {
    store_.set_kernels(train::kernel_options(config, store_.device()));
    return store_;
  }
  void record(const train::StepOptions& options) {
    auto* const state = state_.as<StepState>();
    const auto forward = [&](Tape& t) {
      train::record_loss(t, model_, batch_layout_, batch_.as<int32_t>(),
                         {.label_smoothing = options.label_smoothing,
                          .grad_scale = 1.0f / static_cast<float>(options.shape.target_rows),
                          .device_scale = &state->loss_scale,
                          .totals = state->totals});
    };
    forward(tape_);
    train::choose_recomputation(tape_, options.parallel.recompute, options.recompute_units,
                                forward);
    tape_.backward();
  }
  Context context() const {
    return {store_.device(), stream_.native(), workspace_.data(), workspace_.bytes()};
  }
  void pass(const std::function<void(int32_t)>& after = {}) {
    tape_.run(context(), arena_.data(),
              {.range = tape_.range(), .scales_known = scales_known_, .after = after});
  }
  // Operands in fp8 are looked through for a scale in the first step alone.
  void end_first_step() {
    pass();
    train::Fp8Scales(store_, ranks_, layout_).enqueue(context(), 1.0f, state_.as<StepState>());
    scales_known_ = true;
    stream_.synchronize();
  }

  void time_by_clock(std::vector<std::vector<double>>& times) {
    Clock::time_point last = Clock::now();
    pass([&](int32_t i) {
      times[static_cast<size_t>(i)].push_back(us_since(last));
      last = Clock::now();
    });
  }

  void time_by_events(std::vector<std::vector<double>>& times) {
    const size_t n = tape_.operations();
    while (events_.size() <= n) events_.emplace_back(store_.device(), Event::Timing::on);
    pass();  // keeps the device busy while the host enqueues ahead of it
    events_[0].record(stream_);
    pass([&](int32_t i) { events_[static_cast<size_t>(i) + 1].record(stream_); });
    stream_.synchronize();
    for (size_t i = 0; i < n; ++i)
      times[i].push_back(Event::elapsed_ms(events_[i], events_[i + 1]) * 1e3);
  }

  double replayed_us(const std::function<void()>& body) {
    Replay replay(true);
    std::vector<double> times;
    for (int i = 0; i < 3 + kRounds; ++i) {
      stream_.synchronize();
      const Clock::time_point begin = Clock::now();
      replay.enqueue(stream_, body);
      stream_.synchronize();
      if (i >= 3) times.push_back(us_since(begin));
    }
    return median(times);
  }

  parallel::PlanningCommunicator ranks_;
  Layout layout_;
  ParameterStore store_;
  model::Transformer model_;
  data::BatchLayout batch_layout_;
  Stream stream_;
  Buffer workspace_, batch_, state_, arena_;
  train::StepOptions options_;
  Tape tape_;
  std::vector<Event> events_;
  bool scales_known_ = false;
};

// Rows of one key, or of one class, become one.
void add(std::vector<RooflineRow>& rows, RooflineRow row) {
  const auto known =
      std::ranges::find_if(rows, [&](const RooflineRow& r) { return r.key == row.key; });
  if (known == rows.end()) return rows.push_back(std::move(row));
  known->count += row.count;
  known->us += row.us;
  known->floor_us += row.floor_us;
}

}  // namespace

std::vector<MeasuredOperation> measure_operations(const RunConfig& config, int64_t length,
                                                  int ranks, int rank, Device device) {
  RunConfig stage = config;
  const auto pp = static_cast<int>(config.parallel.pp);
  if (pp > 1) {  // all stages' operations, on as many layers as one of them has
    const model::ModelConfig whole = train::timed_shape(config, length).model;
    const auto part = [&](int64_t layers) { return (layers + pp - 1) / pp; };
    if (whole.encoder_layers > 0) stage.model.encoder_layers = part(whole.encoder_layers);
    stage.model.decoder_layers = part(whole.decoder_layers);
    stage.parallel.pp = stage.parallel.chunks = 1;
    ranks /= pp;
    rank %= ranks;
  }
  const train::TimedShape shape = train::timed_shape(stage, length);
  train::check_layout(stage, shape.model, ranks);
  return Bench(stage, shape, length, ranks, rank, device).run();
}

Roofline measure_roofline(const Machine& machine, const RunConfig& config, int64_t length,
                          Device device) {
  const train::TimedShape shape = train::timed_shape(config, length);
  train::check_layout(config, shape.model, 1);
  Bench bench(config, shape, length, 1, 0, device);
  const Tape& tape = bench.tape();
  const std::vector<double> us = bench.times(), floors = floors_us(machine, tape);
  Roofline out;
  out.target_tokens = shape.batch.sequences * length;
  const auto take = [&](RooflineRow row) {
    out.us += row.us, out.floor_us += row.floor_us;
    RooflineRow of_class = row;
    of_class.key = row.kind;
    add(out.operations, std::move(row));
    add(out.classes, std::move(of_class));
  };
  for (size_t i = 0; i < us.size(); ++i) {
    const Tape::Operation& o = tape.operation(i);
    take({operation_key(tape, o), class_of(o.name), 1, us[i], floors[i]});
  }
  take({"optimizer", class_of("optimizer"), 1, bench.optimizer_us(),
        bench.optimizer_bytes() / (machine.compute.bandwidth_gbs * 1e3)});
  for (auto* rows : {&out.operations, &out.classes})
    std::ranges::stable_sort(*rows, std::greater{}, &RooflineRow::gap_us);
  return out;
}

}  // namespace saturate::plan
