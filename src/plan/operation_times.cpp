// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>

#include "kernels/gemm/matmul.h"
#include "kernels/optimizer/step_state.h"
#include "parallel/planning.h"
#include "plan/cost.h"
#include "plan/measure.h"
#include "runtime/replay.h"
#include "train/frozen.h"
#include "train/loss_tape.h"
#include "train/model_setup.h"
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
        tape_(store_, TapeMode::training, state_.as<StepState>()->rng) {
    train::freeze_parameters(store_, config.optimizer.freeze);
    store_.allocate(Purpose::training);
    model_.make_tables(store_);
    store_.initialise(stream_, 1);
    std::vector<int32_t> words(static_cast<size_t>(batch_layout_.words));
    train::fill_timed_batch(shape, length, 1, words.data());
    copy_to_device(stream_, batch_.data(), words.data(), batch_.bytes());
    const StepState state;
    copy_to_device(stream_, state_.data(), &state, sizeof state);
    tape_.set_workspace_bytes(workspace_.bytes());
    record(train::resolve_step(config, shape.batch, ranks));
    arena_ = Buffer(device, tape_.plan());
    fill_bytes(stream_, arena_.data(), 0, arena_.bytes());
    stream_.synchronize();
  }

  std::vector<MeasuredOperation> run() {
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
      more = std::max(0.0, (sum - graph_us()) / static_cast<double>(n));
    std::vector<MeasuredOperation> out;
    for (size_t i = 0; i < n; ++i) {
      if (tape_.operation(i).traits.kind != OperationKind::compute) continue;
      const double alone = std::max(us[i] - more, 0.2 * us[i]);
      const std::string key = operation_key(tape_, tape_.operation(i));
      const auto known =
          std::ranges::find_if(out, [&](const MeasuredOperation& o) { return o.key == key; });
      if (known == out.end()) {
        out.push_back({key, 1, alone});
      } else {
        known->us += (alone - known->us) / static_cast<double>(++known->count);
      }
    }
    return out;
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
    tape_.run(context(), arena_.data(), false, after);
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

  double graph_us() {
    Replay replay(true);
    std::vector<double> times;
    for (int i = 0; i < 3 + kRounds; ++i) {
      stream_.synchronize();
      const Clock::time_point begin = Clock::now();
      replay.enqueue(stream_, [&] { pass(); });
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
  Tape tape_;
  std::vector<Event> events_;
};

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

}  // namespace saturate::plan
