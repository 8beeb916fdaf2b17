// SPDX-License-Identifier: Apache-2.0
#include "train/pipeline_setup.h"

#include <fmt/format.h>

#include <fstream>
#include <sstream>

#include "base/error.h"
#include "model/transformer.h"

namespace saturate::train {
namespace {

namespace pipeline = parallel::pipeline;
using Axis = Layout::Axis;

// Rates of an H200 in bf16 with NVLink. Lists depend on ratios alone, and little on those.
constexpr double kOperationsPerSecond = 600e12, kBytesPerSecond = 150e9;

bool is_file(const std::string& schedule) { return schedule.ends_with(".csv"); }

pipeline::ScheduleKind kind_of(const std::string& name) {
  if (name == "gpipe") return pipeline::ScheduleKind::gpipe;
  if (name == "interleaved") return pipeline::ScheduleKind::interleaved;
  if (name == "zero-bubble") return pipeline::ScheduleKind::zero_bubble;
  return pipeline::ScheduleKind::one_f_one_b;
}

pipeline::Schedule read_schedule(const std::string& path, int32_t ranks, int32_t micro_batches) {
  std::ifstream file(path);
  std::ostringstream text;
  if (!file || !(text << file.rdbuf()))
    throw Error(Errc::io, "pipeline",
                fmt::format("parallel.schedule = {}: the file cannot be read", path));
  pipeline::Schedule s = pipeline::parse_schedule(text.str(), path);
  if (s.ranks() != ranks || s.micro_batches != micro_batches)
    throw Error(Errc::invalid_argument, "pipeline",
                fmt::format("{} is for {} ranks and {} micro-batches, and this run has parallel.pp "
                            "= {} and batch.accumulate = {}: change them or the file",
                            path, s.ranks(), s.micro_batches, ranks, micro_batches));
  return s;
}

std::vector<double> costs_of(const model::ModelConfig& config, const data::BatchShape& s) {
  ParameterStore store({}, DType::f32);  // never allocated
  const model::Transformer model(config, store);
  const auto source = static_cast<double>(s.source_rows),
             target = static_cast<double>(s.target_rows);
  // Sentences of equal length fill the batch.
  const auto sequences = static_cast<double>(s.sequences);
  return model.item_costs(source, target, source * source / sequences,
                          target * target / sequences / 2, source * target / sequences);
}

}  // namespace

Pipeline plan_pipeline(const model::ModelConfig& config, const data::BatchShape& shape,
                       int64_t micro_batches, const ParallelOptions& options,
                       const Layout& layout) {
  const auto ranks = static_cast<int32_t>(layout.extent(Axis::pp));
  const auto count = static_cast<int32_t>(micro_batches);
  pipeline::ScheduleRequest request{.kind = kind_of(options.schedule),
                                    .ranks = ranks,
                                    .micro_batches = count,
                                    .chunks_per_rank = options.chunks};
  Pipeline p;
  if (ranks == 1) {
    request.chunks_per_rank = 1;
    p.schedule = make_schedule(request);
    p.times = pipeline::unit_times(1);
    return p;
  }
  const bool file = is_file(options.schedule);
  p.schedule = file ? read_schedule(options.schedule, ranks, count) : make_schedule(request);
  const std::vector<double> costs = costs_of(config, shape);
  p.stages = {.cuts = model::cut_items(costs, p.schedule.rank_of),
              .rank_of = p.schedule.rank_of,
              .rank = layout.coordinate(Axis::pp)};
  for (int64_t c = 0; c < p.stages.chunks(); ++c) {
    double third = 0;  // forward, input gradient, weight gradient
    const model::ItemRange items = p.stages.range(c);
    for (int64_t i = items.first; i < items.last; ++i)
      third += costs[static_cast<size_t>(i)] / 3 / kOperationsPerSecond;
    p.times.forward.push_back(third);
    p.times.input_gradient.push_back(third);
    p.times.weight_gradient.push_back(third);
  }
  const auto rows = static_cast<double>(std::max(shape.source_rows, shape.target_rows));
  p.times.transfer = rows * static_cast<double>(config.d_model) * 2 / kBytesPerSecond;
  if (!file) {
    request.times = p.times;
    p.schedule = make_schedule(request);
  }
  p.schedule = lower(p.schedule, p.times);
  return p;
}

}  // namespace saturate::train
