// SPDX-License-Identifier: Apache-2.0
#include "train/layout_compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "base/philox.h"
#include "parallel/launch.h"
#include "parallel/lockstep.h"
#include "train/model_setup.h"
#include "train/rank_agreement.h"
#include "train/tuned_tables.h"

namespace saturate::train {
namespace {

// kNoise: how much farther from the reference than A's own noise B may lie.
constexpr double kBoundF64 = 1e-11, kBoundF32 = 1e-4, kNoise = 2;

// A sum of 1,000 products in fp32 in another order differs by sqrt(1,000) roundings of 2^-24.
constexpr float kAnotherOrder = 0x1p-19f;

struct Place {
  parallel::LaunchInfo launch;
  Device device;
  parallel::Communicator* all = nullptr;
};

ParallelConfig layout_named(const RunConfig& config, const std::string& text) {
  RunConfig c = config;
  set_parallel(c, text);
  return c.parallel;
}

int ranks_of(const ParallelConfig& p, int at_hand) {
  const int64_t cuts = p.tp * p.cp * p.pp;
  if (p.dp > 0) return static_cast<int>(cuts * p.dp);
  return static_cast<int>(at_hand > 1 ? at_hand : cuts);
}

// Sentences of up to `length` tokens, and a few rows that none has.
void fill_side(const data::SideLayout& l, int64_t rows, int64_t sequences, int64_t length,
               int64_t vocab, uint64_t key, uint64_t number, int32_t* words) {
  const auto draw = [&](uint64_t at, uint64_t kind) {
    return static_cast<int64_t>(philox4x32(key * 2 + kind, number, at).x[0]);
  };
  int64_t row = 0;
  for (int64_t s = 0; s < sequences; ++s) {
    words[l.cu + s] = static_cast<int32_t>(row);
    const int64_t n = std::min(1 + draw(static_cast<uint64_t>(s), 0) % length, rows - 1 - row);
    for (int64_t i = 0; i < n; ++i, ++row) {
      words[l.ids + row] = static_cast<int32_t>(draw(static_cast<uint64_t>(row), 1) % vocab);
      words[l.positions + row] = static_cast<int32_t>(i);
    }
  }
  words[l.cu + sequences] = words[l.valid] = static_cast<int32_t>(row);
  int32_t* const order = words + l.order;
  std::iota(order, order + rows, 0);
  std::stable_sort(order, order + row,
                   [&](int32_t a, int32_t b) { return words[l.ids + a] < words[l.ids + b]; });
}

void fill(const model::ModelConfig& m, const data::BatchLayout& layout, int64_t number,
          int32_t* words) {
  std::fill_n(words, layout.words, 0);
  const data::BatchShape& s = layout.shape;
  const auto n = static_cast<uint64_t>(number);
  if (s.source_rows > 0) {
    fill_side(layout.source, s.source_rows, s.sequences, s.max_source, m.vocab_source - 1, 1, n,
              words);
  }
  fill_side(layout.target, s.target_rows, s.sequences, s.max_target, m.vocab_target - 1, 2, n,
            words);
  const int32_t valid = words[layout.target.valid];
  for (int64_t i = 0; i < s.target_rows; ++i)
    words[layout.labels + i] = i < valid ? words[layout.target.ids + (i + 1) % valid] : -1;
}

// What both layouts run.
LayoutTask common_task(const RunConfig& config, Device device, int64_t length, int64_t unit) {
  LayoutTask t;
  t.model = model_with(config);
  const bool lm = t.model.kind == model::ModelKind::decoder_only;
  const int64_t vocab = vocabulary_size(config);
  t.model.vocab_target = vocab;
  t.model.vocab_source = lm ? 0 : vocab;
  t.model.pad_id = t.model.decoder_start_id = vocab - 1;
  t.model.eos_id = t.model.bos_id = 0;
  t.model.max_positions = std::max(t.model.max_positions, length);
  model::validate(t.model);
  t.model.lora = adapters_of(config, model::hf_tensor_mapping(t.model), "");
  const int64_t rows = (std::max(length, config.batch.target_tokens) + unit - 1) / unit * unit;
  const data::BatchShape shape{.source_rows = lm ? 0 : rows,
                               .target_rows = rows,
                               .sequences = std::max<int64_t>(1, 2 * rows / length),
                               .max_source = lm ? 0 : length,
                               .max_target = length};
  t.options = resolve_step(config, shape, 1);
  t.options.optimizer.schedule = {.kind = ScheduleKind::constant,
                                  .peak_lr = t.options.optimizer.schedule.peak_lr,
                                  .warmup_steps = 0};
  t.options.optimizer.eps = std::max(t.options.optimizer.eps, 1e-3f);
  t.device = device;
  const bool exact = !device.is_cuda() && config.train.precision == "auto";
  t.type = exact ? DType::f64 : resolve_precision(config.train.precision, device);
  t.kernels = kernel_options(config, device);
  t.seed = static_cast<uint64_t>(config.train.seed);
  t.fill = [m = t.model](const data::BatchLayout& l, int64_t number, int32_t* words) {
    fill(m, l, number, words);
  };
  return t;
}

// Of the first rank; empty on others.
LayoutResult run(const Place& place, const LayoutTask& task, int ranks) {
  LayoutResult result;
  if (ranks == 1) {
    if (place.launch.rank == 0)
      result = run_layout(*parallel::make_communicator(place.device, {}), task);
    place.all->barrier();
  } else if (place.launch.size == 1) {
    parallel::run_lockstep(ranks, [&](parallel::Communicator& c) {
      LayoutResult mine = run_layout(c, task);
      if (c.rank() == 0) result = std::move(mine);
    });
  } else {
    LayoutResult mine = run_layout(*place.all, task);
    if (place.launch.rank == 0) result = std::move(mine);
  }
  return result;
}

// "gradient" of "gradient of decoder.layers.0.ffn.in.weight".
std::string kind_of(const std::string& what) { return what.substr(0, what.find(' ')); }

double median_of_kind(const std::vector<LayoutDistance>& all, const std::string& kind) {
  std::vector<double> found;
  for (const LayoutDistance& d : all)
    if (kind_of(d.what) == kind) found.push_back(d.relative);
  const auto middle = found.begin() + std::ssize(found) / 2;
  std::nth_element(found.begin(), middle, found.end());
  return *middle;
}

// What rounding may do to value i: what it did to A, or to a typical value of its kind. By how much it
// changes a single number is chance, so those kinds that have one value go by another: a sum of squares
// differs by up to twice what its terms do.
double noise_of(const std::vector<LayoutDistance>& noise, size_t i) {
  const std::string kind = kind_of(noise[i].what);
  const double typical =
      kind == "square" ? 2 * median_of_kind(noise, "gradient") : median_of_kind(noise, kind);
  return std::max(noise[i].relative, typical);
}

LayoutComparison compare(const RunConfig& config, const std::string& a, const std::string& b,
                         int64_t length, int64_t steps, const Place& place) {
  Settings settings = settings_of(config, place.device);
  for (const auto& [name, value] : {std::pair{"--layout A", a},
                                    {"--layout B", b},
                                    {"--length", fmt::format("{}", length)},
                                    {"--steps", fmt::format("{}", steps)}})
    settings.emplace_back(name, value);
  require_agreement(settings, *place.all);
  const ParallelConfig layouts[2] = {layout_named(config, a), layout_named(config, b)};
  int ranks[2];
  for (int i = 0; i < 2; ++i) {
    ranks[i] = ranks_of(layouts[i], place.launch.size);
    if (ranks[i] == 1 || place.launch.size == 1 || ranks[i] == place.launch.size) continue;
    throw Error(
        Errc::invalid_argument, "compare",
        fmt::format("--layout {} takes {} ranks, and {} are at hand; start as many, or none "
                    "(without a launcher they run in one process)",
                    i == 0 ? a : b, ranks[i], place.launch.size));
  }
  const int64_t unit = std::lcm(row_multiple(layouts[0]), row_multiple(layouts[1]));
  LayoutTask task = common_task(config, place.device, length, unit);
  const bool lockstep = place.launch.size == 1 && (ranks[0] > 1 || ranks[1] > 1);
  if (lockstep && place.device.is_cuda()) {
    throw Error(Errc::invalid_argument, "compare",
                "a process without a launcher runs layouts of several ranks on its CPU; give "
                "--device cpu, or start the ranks (torchrun --nproc-per-node, mpirun -n, srun -n)");
  }
  const int dp[2] = {mesh_extents(layouts[0], ranks[0]).dp, mesh_extents(layouts[1], ranks[1]).dp};
  task.micro_batches = std::lcm(dp[0], dp[1]) * config.batch.accumulate;
  task.steps = steps;

  LayoutComparison out;
  out.a = layout_text(layouts[0], ranks[0]);
  out.b = layout_text(layouts[1], ranks[1]);
  task.parallel = layouts[0];
  const LayoutResult first = run(place, task, ranks[0]);
  // What rounding does to A: its distance to itself in fp32 where it rounds to less, and in fp32 to
  // itself with weights that differ by as much as another order of sums makes.
  const bool rounds = size_of(task.type) < 4 || task.kernels.allow_bf16 ||
                      (config.train.tf32 && place.device.is_cuda());
  LayoutTask other = task;
  other.type = DType::f32;
  other.kernels.allow_tf32 = other.kernels.allow_bf16 = false;
  if (!rounds) other.perturbation = kAnotherOrder;
  LayoutResult reference;
  if (task.type != DType::f64) reference = run(place, other, ranks[0]);
  task.parallel = layouts[1];
  const LayoutResult second = run(place, task, ranks[1]);
  if (place.launch.rank != 0) return {};

  out.where =
      fmt::format("{}, {}",
                  lockstep ? "ranks of one process"
                           : fmt::format("{} rank{} over {}", place.launch.size,
                                         place.launch.size == 1 ? "" : "s", place.all->name()),
                  name_of(task.type));
  out.work = fmt::format("{}, {} steps of {} micro-batches of {} rows", preset_name(config), steps,
                         task.micro_batches, task.options.shape.target_rows);
  for (const auto& [result, losses] : {std::pair{&first, &out.loss_a}, {&second, &out.loss_b}})
    for (const StepRecord& r : result->steps)
      losses->push_back(r.target_tokens > 0 ? r.loss_sum / r.target_tokens : 0);
  const std::vector<LayoutDistance> d = distances(rounds ? reference : first, second);
  if (task.type == DType::f64) {
    for (const LayoutDistance& v : d) out.values.push_back({v.what, v.relative, kBoundF64});
    return out;
  }
  const std::vector<LayoutDistance> noise = distances(reference, first);
  for (size_t i = 0; i < d.size(); ++i)
    out.values.push_back(
        {d[i].what, d[i].relative, std::max(kBoundF32, kNoise * noise_of(noise, i))});
  return out;
}

}  // namespace

bool LayoutComparison::agree() const {
  return std::ranges::all_of(values, [](const auto& v) { return v.distance <= v.bound; });
}

LayoutComparison compare_layouts(const RunConfig& config, const std::string& a,
                                 const std::string& b, int64_t length, int64_t steps) {
  Place place{.launch = parallel::current_launch(), .device = parse_device(config.train.device)};
  if (place.device.is_cuda() && place.launch.size > 1) place.device.index = place.launch.local_rank;
  use_device(place.device);
  const auto all = parallel::make_communicator(place.device, place.launch);
  place.all = all.get();
  try {
    return compare(config, a, b, length, steps, place);
  } catch (const std::exception& e) {
    all->report_failure(e);
    throw;
  }
}

std::string to_text(const LayoutComparison& c) {
  std::string out = fmt::format("A  {}\nB  {}\n{}; {}\n\n", c.a, c.b, c.work, c.where);
  out += fmt::format("{:>6} {:>14} {:>14}\n", "step", "loss of A", "loss of B");
  for (size_t s = 0; s < c.loss_a.size(); ++s)
    out += fmt::format("{:>6} {:>14.9f} {:>14.9f}\n", s + 1, c.loss_a[s], c.loss_b[s]);
  std::vector<const ComparedValue*> beyond;
  const ComparedValue* nearest = nullptr;  // to its bound
  for (const ComparedValue& v : c.values) {
    if (!(v.distance <= v.bound)) beyond.push_back(&v);
    if (nearest == nullptr || v.distance / v.bound > nearest->distance / nearest->bound)
      nearest = &v;
  }
  if (beyond.empty()) {
    return out + fmt::format(
                     "\nA and B agree: {} losses and tensors within their bounds. Nearest to "
                     "its bound: {}, {:.2g} of {:.2g}\n",
                     c.values.size(), nearest->what, nearest->distance, nearest->bound);
  }
  constexpr size_t kShown = 12;
  out += fmt::format(
      "\nA and B differ: {} of {} losses and tensors beyond their bounds, first the {}\n",
      beyond.size(), c.values.size(), beyond[0]->what);
  out += fmt::format("{:>12} {:>12}  in the order of the model\n", "distance", "bound");
  for (size_t i = 0; i < std::min(beyond.size(), kShown); ++i)
    out += fmt::format("{:>12.2g} {:>12.2g}  {}\n", beyond[i]->distance, beyond[i]->bound,
                       beyond[i]->what);
  if (beyond.size() > kShown) out += fmt::format("{:>28} more\n", beyond.size() - kShown);
  return out;
}

}  // namespace saturate::train
