// SPDX-License-Identifier: Apache-2.0
#include "train/step_timing.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>
#include <vector>

#include "base/philox.h"
#include "model/model_config.h"
#include "parallel/launch.h"
#include "runtime/memory_use.h"
#include "train/batch_fit.h"
#include "train/frozen.h"
#include "train/model_setup.h"
#include "train/rank_agreement.h"
#include "train/skewed_routing.h"
#include "train/throughput.h"
#include "train/training_step.h"
#include "train/tuned_tables.h"

namespace saturate::train {
namespace {

using Clock = std::chrono::steady_clock;
constexpr double kEnoughWarming_s = 5;

// Sentences of `length` random ids fill `rows`; `order` as batch.h wants it.
void fill_side(const data::SideLayout& l, int32_t* words, int64_t rows, int64_t sequences,
               int64_t length, int64_t vocab, uint64_t key) {
  for (int64_t i = 0; i < rows; ++i) {
    words[l.ids + i] = static_cast<int32_t>(philox4x32(key, static_cast<uint64_t>(i), 0).x[0] %
                                            static_cast<uint32_t>(vocab));
    words[l.positions + i] = static_cast<int32_t>(i % length);
    words[l.order + i] = static_cast<int32_t>(i);
  }
  for (int64_t s = 0; s <= sequences; ++s) {
    words[l.cu + s] = static_cast<int32_t>(std::min(s * length, rows));
  }
  int32_t* order = words + l.order;
  const int32_t* ids = words + l.ids;
  std::stable_sort(order, order + rows, [&](int32_t a, int32_t b) { return ids[a] < ids[b]; });
  words[l.valid] = static_cast<int32_t>(rows);
}

// Between the two nearest of sorted values, by how near they are.
double percentile(const std::vector<double>& sorted, double p) {
  const double at = p * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(at);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return std::lerp(sorted[below], sorted[above], at - static_cast<double>(below));
}

// Milliseconds between the ends of `repeats` + 1 consecutive steps, sorted. As in training, the
// next step is always enqueued before the one before it ends.
std::vector<double> time_steps(TrainingStep& step, int64_t repeats) {
  StepRecord record;
  const auto end_of_next = [&] {
    while (!step.poll(&record)) std::this_thread::yield();
    return Clock::now();
  };
  step.submit();
  step.submit();
  Clock::time_point last = end_of_next();
  std::vector<double> times;
  for (int64_t i = 0; i < repeats; ++i) {
    step.submit();
    const Clock::time_point now = end_of_next();
    times.push_back(std::chrono::duration<double, std::milli>(now - last).count());
    last = now;
  }
  step.synchronize();
  std::sort(times.begin(), times.end());
  return times;
}

// Joules of a step on the devices of all ranks while steps run back to back; 0 where a driver does
// not count. Every rank runs the same number of steps.
double step_joules(TrainingStep& step, double step_ms, const EnergyCounter& counter,
                   parallel::Communicator& ranks) {
  constexpr double kStretch_ms = 1200;  // some twelve periods of the driver's counter
  const auto steps = static_cast<int>(std::ceil(kStretch_ms / ranks.all_reduce_max(step_ms)));
  PowerMeter meter;
  const Clock::time_point begin = Clock::now();
  Clock::time_point read;
  const auto look = [&] {
    const Clock::time_point now = Clock::now();
    if (!counter || now - read < std::chrono::milliseconds(4)) return std::this_thread::yield();
    read = now;
    const std::optional<double> joules = counter();
    if (joules) meter.add(std::chrono::duration<double>(Clock::now() - begin).count(), *joules);
  };
  StepRecord record;
  step.submit();
  for (int i = 0; i < steps; ++i) {
    step.submit();
    while (!step.poll(&record)) look();
  }
  step.synchronize();
  const double watts = meter.watts().value_or(0);
  const double all = ranks.all_reduce_sum(watts);
  return ranks.all_reduce_max(watts > 0 ? 0.0 : 1.0) > 0 ? 0.0 : all * step_ms * 1e-3;
}

StepTiming time_step(RunConfig config, const TimingOptions& timing, Device device,
                     parallel::Communicator& ranks) {
  const int64_t length = timing.length, repeats = timing.repeats;
  Settings settings = settings_of(config, device);
  settings.emplace_back("--length", fmt::format("{}", length));
  settings.emplace_back("--repeats", fmt::format("{}", repeats));
  settings.emplace_back("--skew", fmt::format("{}", timing.skew));
  require_agreement(settings, ranks);
  const kernels::KernelOptions kernel_choices = kernel_options(config, device);

  const model::ModelConfig model_config = timed_shape(config, length).model;
  check_layout(config, model_config, ranks.size());
  const bool lm = model_config.kind == model::ModelKind::decoder_only;
  ParameterStore store(device, resolve_precision(config.train.precision, device));
  store.set_kernels(kernel_choices);
  const Layout layout(ranks, mesh_extents(config.parallel, ranks.size()),
                      transfer_options(config.parallel));
  std::optional<int64_t> recompute_units;
  if (config.train.memory.value > 0) {
    const auto rows_of = [&](const RunConfig& c) {
      return FittedRows{.shape = timed_shape(c, length).batch};
    };
    const FittedBatch fitted = fit_batch(config, rows_of, model_config, store, layout, ranks);
    config.batch = fitted.batch;
    recompute_units = fitted.recompute_units;
  }
  const data::BatchShape shape = timed_shape(config, length).batch;
  const int64_t rows = shape.sequences * length;
  StepOptions options = resolve_step(config, shape, ranks.size());
  options.recompute_units = recompute_units;
  model::Transformer model(
      model_config, store, layout,
      plan_pipeline(model_config, shape, options.accumulate, options.parallel, layout).stages);
  freeze_parameters(store, config.optimizer.freeze);
  allocate_for_steps(store, options, layout);
  model.make_tables(store);
  const double ceiling = matmul_ceiling(device, store.compute_type(), store.kernels());
  TrainingStep step(model, store, options, ranks, layout);
  store.initialise(step.stream(), 1);
  if (timing.skew > 0) skew_routing(store, step.stream(), timing.skew);
  store.reset_average(step.stream());
  for (int64_t i = 0; i < step.slots(); ++i) {
    const auto key = static_cast<uint64_t>(layout.coordinate(Layout::Axis::dp) * 1000 + i);
    fill_timed_batch({model_config, shape}, length, key, step.host_slot(i));
  }

  StepRecord record;
  // The first two load kernels, pick algorithms and capture; short ones take more for the clocks.
  const Clock::time_point begin = Clock::now();
  step.submit();
  step.submit();
  step.synchronize();
  const double warming_s = std::chrono::duration<double>(Clock::now() - begin).count();
  for (int i = 0; i < 3 && ranks.all_reduce_max(warming_s) < kEnoughWarming_s; ++i) step.submit();
  step.synchronize();
  while (step.poll(&record)) {
  }
  step.take_routing();
  ranks.barrier();
  const std::vector<double> times = time_steps(step, repeats);
  const double median_ms = percentile(times, 0.5);
  const double sustained_ms = step.last_step_ms();
  const double joules =
      timing.energy ? step_joules(step, median_ms, timing.energy(device), ranks) : 0.0;
  double largest_share = 0;
  const std::vector<RoutingRow> routing = step.take_routing();
  for (const RoutingRow& row : routing)
    largest_share += std::ranges::max(row.shares) / static_cast<double>(routing.size());

  const DeviceInfo info = device_info(device);
  const auto tokens = static_cast<double>(rows * config.batch.accumulate);
  const auto n = static_cast<double>(length);
  StepTiming b;
  b.model = preset_name(config);
  b.device = info.name;
  b.precision = config.train.precision == "fp8" ? "fp8" : precision_name(store);
  b.ranks = ranks.size();
  b.layout = layout_text(config.parallel, ranks.size());
  b.parameters = store.count();
  const int dp = layout.extent(Layout::Axis::dp);
  b.target_tokens = static_cast<int64_t>(tokens) * dp;
  b.step_ms = median_ms;
  b.step_ms_p10 = percentile(times, 0.1);
  b.step_ms_p90 = percentile(times, 0.9);
  b.tokens_per_s = tokens * dp / median_ms * 1e3;
  b.ceiling_tflops = ceiling / 1e12;
  b.model_tflops =
      model.training_flops(lm ? 0 : tokens, tokens, tokens * n, tokens * n / 2, tokens * n) /
      median_ms / 1e9 * dp / ranks.size();
  b.busy = device.is_cuda() ? std::min(1.0, sustained_ms / median_ms) : 0;
  b.peak_bytes = device.is_cuda() ? static_cast<int64_t>(info.memory_bytes - info.free_bytes)
                                  : static_cast<int64_t>(step.arena_bytes());
  b.taken_bytes = static_cast<int64_t>(buffer_bytes());
  b.bubble = simulate(step.pipeline().schedule, step.pipeline().times).bubble;
  b.operations = static_cast<int64_t>(step.operations());
  b.graph_nodes = static_cast<int64_t>(step.graph_nodes());
  b.graph = options.graph && device.is_cuda();
  b.largest_share = largest_share;
  b.joules_per_1000_tokens = joules / static_cast<double>(b.target_tokens) * 1e3;
  return b;
}

}  // namespace

void fill_timed_batch(const TimedShape& s, int64_t length, uint64_t key, int32_t* words) {
  const data::BatchLayout layout(s.batch);
  const int64_t rows = s.batch.sequences * length, vocab = s.model.vocab_target;
  std::fill_n(words, layout.words, 0);
  if (s.batch.source_rows > 0)
    fill_side(layout.source, words, rows, s.batch.sequences, length, vocab, key * 2);
  fill_side(layout.target, words, rows, s.batch.sequences, length, vocab, key * 2 + 1);
  for (int64_t t = 0; t < s.batch.target_rows; ++t)
    words[layout.labels + t] = t < rows ? words[layout.target.ids + (t + 1) % rows] : -1;
}

TimedShape timed_shape(const RunConfig& config, int64_t length) {
  model::ModelConfig m = model_with(config);
  const bool lm = m.kind == model::ModelKind::decoder_only;
  const int64_t vocab = vocabulary_size(config);
  m.vocab_target = vocab;
  m.vocab_source = lm ? 0 : vocab;
  m.pad_id = m.decoder_start_id = vocab - 1;
  m.eos_id = m.bos_id = 0;
  m.max_positions = std::max(m.max_positions, length);
  model::validate(m);
  m.lora = adapters_of(config, model::hf_tensor_mapping(m), "");
  const int64_t rows = std::max(length, config.batch.target_tokens / length * length);
  const int64_t unit = row_multiple(config.parallel);  // one rank needs no padding
  const int64_t padded = unit == 8 ? rows : (rows + unit - 1) / unit * unit;
  return {.model = m,
          .batch = {.source_rows = lm ? 0 : padded,
                    .target_rows = padded,
                    .sequences = rows / length,
                    .max_source = lm ? 0 : length,
                    .max_target = length}};
}

StepTiming time_step(const RunConfig& given, const TimingOptions& options,
                     const ChooseLayout& choose) {
  const parallel::LaunchInfo launch = parallel::current_launch();
  Device device = parse_device(given.train.device);
  if (device.is_cuda() && launch.size > 1) device.index = launch.local_rank;
  use_device(device);
  const auto ranks = parallel::make_communicator(device, launch);
  try {
    RunConfig config = given;
    if (choose) choose(config, *ranks, device);
    return time_step(config, options, device, *ranks);
  } catch (const std::exception& e) {
    ranks->report_failure(e);
    throw;
  }
}

std::string to_json(const StepTiming& b) {
  return fmt::format(
      R"({{"what":"step","model":"{}","device":"{}","precision":"{}","ranks":{},"layout":"{}","parameters":{},)"
      R"("target_tokens":{},"step_ms":{:.3f},"p10_ms":{:.3f},"p90_ms":{:.3f},"tokens_per_s":{:.0f},)"
      R"("ceiling_tflops":{:.1f},"model_tflops":{:.1f},"utilisation":{:.4f},"busy":{:.4f},)"
      R"("bubble":{:.4f},"memory_bytes":{},"taken_bytes":{},"operations":{},"graph_nodes":{},"largest_share":{:.3f},"joules_per_1000_tokens":{:.3f},"graph":{}}})",
      b.model, b.device, b.precision, b.ranks, b.layout, b.parameters, b.target_tokens, b.step_ms,
      b.step_ms_p10, b.step_ms_p90, b.tokens_per_s, b.ceiling_tflops, b.model_tflops,
      b.ceiling_tflops > 0 ? b.model_tflops / b.ceiling_tflops : 0.0, b.busy, b.bubble,
      b.peak_bytes, b.taken_bytes, b.operations, b.graph_nodes, b.largest_share,
      b.joules_per_1000_tokens, b.graph);
}

}  // namespace saturate::train
