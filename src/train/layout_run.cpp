// SPDX-License-Identifier: Apache-2.0
#include "train/layout_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/error.h"
#include "base/philox.h"
#include "train/frozen.h"
#include "train/whole_parameter.h"

namespace saturate::train {
namespace {

// Of all ranks, in the order of the model.
std::vector<WholeTensor> whole_tensors(parallel::Communicator& ranks, const Stream& stream,
                                       const ParameterStore& store, const LayoutTask& task,
                                       StateArray array) {
  // What trains is asked of the whole model: a rank may lack some of it.
  ParameterStore names({}, DType::f32);
  const model::Transformer whole(task.model, names);
  freeze_parameters(names, task.options.freeze);
  std::vector<WholeTensor> tensors;
  for (const ParameterSpec& p : names.specs()) {
    if (p.frozen) continue;
    const int64_t elements = (p.rows - p.padding_rows) * p.cols;
    WholeParameter w = whole_parameter(ranks, stream, store, p.name, elements, array);
    tensors.push_back({p.name, std::move(w.values), w.spread});
  }
  return tensors;
}

double norm_of(const std::vector<double>& values) {
  double sum = 0;
  for (const double v : values) sum += v * v;
  return std::sqrt(sum);
}

// Not finite when one of them is not.
double relative(double difference, double reference) {
  if (difference == 0) return 0;
  return difference / (reference > 0 ? reference : 1);
}

double relative(const WholeTensor& reference, const WholeTensor& other) {
  std::vector<double> difference = reference.values;
  for (size_t i = 0; i < difference.size(); ++i) difference[i] -= other.values[i];
  const double norm = norm_of(reference.values);
  return std::max(relative(norm_of(difference), norm), relative(other.spread, norm));
}

// Up or down by the bits of the value, so that copies on several ranks stay equal.
void perturb(ParameterStore& store, const Stream& stream, float by) {
  for (const ParameterGroup& group : store.groups()) {
    const Block& masters = group.array(StateArray::master);
    std::vector<float> values(masters.bytes() / sizeof(float));
    if (values.empty()) continue;
    copy_to_host(stream, values.data(), masters.data(), masters.bytes());
    stream.synchronize();
    for (float& v : values) {
      const uint32_t bits = philox4x32(0, std::bit_cast<uint32_t>(v), 0).x[0];
      v *= 1 + (bits % 2 == 0 ? by : -by);
    }
    copy_to_device(stream, masters.data(), values.data(), masters.bytes());
    stream.synchronize();
  }
  store.refresh_compute(stream);
}

}  // namespace

std::vector<LayoutDistance> distances(const LayoutResult& reference, const LayoutResult& other) {
  std::vector<LayoutDistance> out;
  const auto number = [&](std::string what, double a, double b) {
    out.push_back({std::move(what), relative(std::abs(a - b), std::abs(a))});
  };
  const auto tensors = [&](const char* kind, const std::vector<WholeTensor>& a,
                           const std::vector<WholeTensor>& b) {
    for (size_t i = 0; i < a.size(); ++i)
      out.push_back({fmt::format("{} of {}", kind, a[i].name), relative(a[i], b[i])});
  };
  for (size_t s = 0; s < reference.steps.size(); ++s) {
    const StepRecord &a = reference.steps[s], &b = other.steps[s];
    number(fmt::format("tokens of step {}", a.step), a.target_tokens, b.target_tokens);
    number(fmt::format("loss of step {}", a.step), a.loss_sum, b.loss_sum);
    number(fmt::format("log-likelihood of step {}", a.step), a.nll_sum, b.nll_sum);
    if (s == 0) tensors("gradient", reference.gradients, other.gradients);
  }
  number("square sum of the last gradients", reference.grad_square_sum, other.grad_square_sum);
  tensors("weights", reference.weights, other.weights);
  return out;
}

LayoutResult run_layout(parallel::Communicator& ranks, const LayoutTask& task) {
  RunConfig config;
  config.parallel = task.parallel;
  check_layout(config, task.model, ranks.size());
  const Layout layout(ranks, mesh_extents(task.parallel, ranks.size()),
                      transfer_options(task.parallel));
  const int dp = layout.extent(Layout::Axis::dp);
  if (task.micro_batches % dp != 0) {
    throw Error(Errc::invalid_argument, "parallel",
                fmt::format("{} micro-batches a step cannot be shared by dp = {} ranks; choose a "
                            "multiple",
                            task.micro_batches, dp));
  }
  StepOptions options = task.options;
  options.accumulate = task.micro_batches / dp;
  options.slots = options.accumulate;
  options.parallel = resolve_parallel(task.parallel, ranks.size());
  options.optimizer.kind = OptimizerOptions::Kind::adamw;
  options.fp8 = false;
  options.blocks.reset();
  options.optimizer.moments = kernels::MomentType::wide;  // gradients are read from them
  ParameterStore store(task.device, task.type);
  store.set_kernels(task.kernels);
  model::Transformer model(
      task.model, store, layout,
      plan_pipeline(task.model, options.shape, options.accumulate, options.parallel, layout)
          .stages);
  freeze_parameters(store, options.freeze);
  allocate_for_steps(store, options, layout);
  model.make_tables(store);
  TrainingStep step(model, store, options, ranks, layout);
  store.initialise(step.stream(), task.seed);
  if (task.perturbation > 0) perturb(store, step.stream(), task.perturbation);
  store.reset_average(step.stream());
  LayoutResult result;
  for (int64_t s = 0; s < task.steps; ++s) {
    for (int64_t a = 0; a < options.accumulate; ++a) {
      const int64_t taken = s * options.accumulate + a, slot = taken % options.slots;
      step.wait_slot(slot);
      task.fill(step.batch_layout(), taken * dp + layout.coordinate(Layout::Axis::dp),
                step.host_slot(slot));
    }
    step.submit();
    step.synchronize();
    StepRecord record;
    if (!step.poll(&record)) throw Error(Errc::internal, "parallel", "a step left no record");
    result.steps.push_back(record);
    if (task.after_step) task.after_step(record);
    if (s == 0) {
      result.gradients = whole_tensors(ranks, step.stream(), store, task, StateArray::first_moment);
    }
  }
  result.grad_square_sum = step.state().grad_square_sum;
  result.weights = whole_tensors(ranks, step.stream(), store, task, StateArray::master);
  return result;
}

}  // namespace saturate::train
