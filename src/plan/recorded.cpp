// SPDX-License-Identifier: Apache-2.0
#include "plan/recorded.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

#include "parallel/planning.h"
#include "plan/cost.h"
#include "train/model_setup.h"
#include "train/parallel_setup.h"
#include "train/step_timing.h"

namespace saturate::plan {
namespace {

using Axis = Layout::Axis;

// The axes that a group goes over, "tp" or "cp+dp".
const char* axes_of(const Layout& layout, const parallel::Group& group) {
  struct Named {
    const char* name;
    std::vector<Axis> axes;
  };
  static const Named kNamed[] = {{"tp", {Axis::tp}},
                                 {"cp", {Axis::cp}},
                                 {"dp", {Axis::dp}},
                                 {"pp", {Axis::pp}},
                                 {"ep", {Axis::ep}},
                                 {"edp", {Axis::edp}},
                                 {"tp+cp", {Axis::tp, Axis::cp}},
                                 {"cp+dp", {Axis::cp, Axis::dp}},
                                 {"tp+cp+dp", {Axis::tp, Axis::cp, Axis::dp}}};
  for (const Named& n : kNamed)
    if (layout.group(std::span(n.axes)).id == group.id) return n.name;
  return "all";
}

class Recorder {
 public:
  Recorder(const Machine& machine, const Layout& layout) : machine_(machine), layout_(layout) {}

  void look(const Tape& tape) {
    for (size_t i = 0; i < tape.operations(); ++i) add(tape, i);
    add_reductions(tape);
    out.element_bytes = static_cast<double>(size_of(tape.parameters().wide_type()));
    out.compute_bytes = static_cast<double>(size_of(tape.compute_type()));
    out.measured = us_ > 0 ? measured_us_ / us_ : 0;
  }

  Recorded out;

 private:
  void add(const Tape& tape, size_t i) {
    const Tape::Operation& o = tape.operation(i);
    Task t{.name = o.name, .lane = o.traits.lane};
    if (o.traits.collective) {
      const parallel::Collective& c = *o.traits.collective;
      t.kind = TaskKind::communication;
      t.us = collective_us(machine_, c.kind, whole_bytes(c), placement_of(machine_, c.group.ranks));
      t.axis = axes_of(layout_, c.group);
    } else {
      const OperationCost cost = operation_cost(machine_, tape, o);
      t.us = cost.us;
      us_ += cost.us;
      if (cost.measured) measured_us_ += cost.us;
    }
    // What the plan says of other lanes; the beginning of a segment waits for all before it.
    const OperationRange& segment = tape.layout().segments[static_cast<size_t>(o.segment)];
    for (const int32_t w : tape.layout().waits[i]) {
      if (w != TapePlan::kFork) t.waits.push_back(w);
      if (w == TapePlan::kFork && segment.begin > 0) t.waits.push_back(segment.begin - 1);
    }
    if (static_cast<int32_t>(i) == segment.begin && i > 0) {
      for (const int32_t last : last_of_lane_)
        if (last >= 0) t.waits.push_back(last);
    }
    last_of_lane_.resize(std::max(last_of_lane_.size(), static_cast<size_t>(t.lane) + 1), -1);
    last_of_lane_[static_cast<size_t>(t.lane)] = static_cast<int32_t>(i);
    out.operations.push_back(std::move(t));
  }

  // As TrainingStep reduces and gathers them.
  void add_reductions(const Tape& tape) {
    const ParameterStore& store = tape.parameters();
    std::vector<int32_t> first_use(store.specs().size(), 0);
    for (auto i = static_cast<int32_t>(tape.operations()); i-- > 0;) {
      for (const Value v : tape.operation(static_cast<size_t>(i)).reads) {
        const int32_t p = v ? tape.info({tape.storage_of(v)}).parameter : -1;
        if (p >= 0) first_use[static_cast<size_t>(p)] = i;
      }
    }
    const std::vector<Tape::FinishedGradient> finished = tape.finished_gradients();
    for (int32_t g = 0; g < std::ssize(store.groups()); ++g) {
      const ParameterGroup& group = store.groups()[static_cast<size_t>(g)];
      if (group.kind() == ParameterGroup::Kind::frozen || group.count() == 0) continue;
      const parallel::Group& ranks = layout_.group(group.axes());
      out.trained.emplace_back(static_cast<double>(group.count()), ranks.size());
      if (ranks.size() == 1) continue;
      for (const parallel::FlatRange& b : group.buckets()) {
        const auto inside = [&](const ParameterSpec& p) {
          return p.group == g && p.offset >= b.begin && p.offset < b.end;
        };
        Reduction r{.needed = INT32_MAX,
                    .elements = static_cast<double>(b.end - b.begin),
                    .ranks = ranks.ranks,
                    .axes = axes_of(layout_, ranks)};
        for (const Tape::FinishedGradient& f : finished)
          if (inside(store.spec({f.parameter}))) r.after = std::max(r.after, f.operation);
        for (size_t p = 0; p < first_use.size(); ++p)
          if (inside(store.specs()[p])) r.needed = std::min(r.needed, first_use[p]);
        out.reductions.push_back(std::move(r));
      }
    }
    std::ranges::stable_sort(out.reductions, {}, &Reduction::after);
  }

  const Machine& machine_;
  const Layout& layout_;
  double us_ = 0, measured_us_ = 0;
  std::vector<int32_t> last_of_lane_;
};

}  // namespace

Recorded record_rank(const RunConfig& config, int64_t length, int ranks, int rank, Device device,
                     const kernels::KernelOptions& kernels, const Machine& machine) {
  const train::TimedShape shape = train::timed_shape(config, length);
  train::check_layout(config, shape.model, ranks);
  parallel::PlanningCommunicator communicator(device, rank, ranks);
  const Layout layout(communicator, train::mesh_extents(config.parallel, ranks));
  const DType type = config.train.precision == "auto" && machine.gpu
                         ? DType::bf16
                         : train::resolve_precision(config.train.precision, device);
  ParameterStore like(device, type);
  like.set_kernels(kernels);
  const train::StepOptions options = train::resolve_step(config, shape.batch, ranks);
  Recorder recorder(machine, layout);
  const train::StepMemory memory = train::plan_step(shape.model, like, options, layout,
                                                    [&](const Tape& tape) { recorder.look(tape); });
  recorder.out.memory = memory;
  return std::move(recorder.out);
}

}  // namespace saturate::plan
