// SPDX-License-Identifier: Apache-2.0
#include "plan/recorded.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>

#include "kernels/optimizer/optimizer.h"
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
  Recorder(const Machine& machine, const Layout& layout) : machine_(machine), layout_(layout) {
    out.stage = layout.coordinate(Axis::pp);
    out.stages = layout.group({Axis::pp}).ranks;
    for (int r = 0; r < layout.mesh().size(); ++r) out.world.push_back(r);
  }

  void look(const train::MicroBatches& micro_batches) {
    const ParameterStore* store = nullptr;
    micro_batches.look([&](const Tape& tape) {
      first_of_chunk_.push_back(static_cast<int32_t>(out.operations.size()));
      for (size_t i = 0; i < tape.operations(); ++i) add(tape, i);
      store = &tape.parameters();
    });
    add_steps(micro_batches);
    add_parameters(micro_batches, *store);
    out.gradient_bytes = static_cast<double>(size_of(store->wide_type()));
    out.compute_bytes = static_cast<double>(size_of(store->compute_type()));
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
      out.us += cost.us;
      if (cost.measured) out.measured_us += cost.us;
      if (cost.scaled) out.scaled_us += cost.us;
    }
    for (const int32_t w : tape.layout().waits[i])
      if (w != TapePlan::kFork) t.waits.push_back(first_of_chunk_.back() + w);
    out.operations.push_back(std::move(t));
  }

  void add_steps(const train::MicroBatches& micro_batches) {
    std::vector<parallel::Collective> transfers;
    for (train::MicroBatches::Transfer& t : micro_batches.transfers())
      transfers.push_back(std::move(t.collective));
    size_t next = 0;
    for (const train::MicroBatches::Listed& listed : micro_batches.list()) {
      chunk_of_step_.push_back(listed.chunk);
      RecordedStep s{.micro_batch = listed.action.micro_batch, .waits = listed.waits};
      for (OperationRange r : listed.runs) {
        r.begin += first_of_chunk_[listed.chunk];
        r.end += first_of_chunk_[listed.chunk];
        s.runs.push_back(r);
      }
      if (!listed.action.computes()) s.transfer = transfer(listed.action, transfers[next++]);
      out.steps.push_back(std::move(s));
    }
  }

  Task transfer(const parallel::pipeline::Action& a, const parallel::Collective& c) const {
    using parallel::pipeline::ActionKind;
    const bool forward =
        a.kind == ActionKind::send_forward || a.kind == ActionKind::receive_forward;
    const bool sends = a.kind == ActionKind::send_forward || a.kind == ActionKind::send_backward;
    const int64_t boundary = a.chunk + (forward == sends ? 1 : 0);  // the chunk behind it
    const auto& counts = sends ? c.send_counts : c.receive_counts;
    const auto peer = std::ranges::find_if(counts, [](int64_t n) { return n > 0; });
    const int other = c.group.ranks[static_cast<size_t>(peer - counts.begin())];
    const double bytes = static_cast<double>(*peer) * static_cast<double>(size_of(c.dtype));
    return {.name = to_text(a),
            .kind = TaskKind::communication,
            .us = collective_us(machine_, c.kind, bytes,
                                placement_of(machine_, {layout_.rank(), other})),
            .meeting = (boundary << 32 | int64_t{a.micro_batch}) * 2 + (forward ? 1 : 0),
            .axis = "pp"};
  }

  Point point_of(train::MicroBatches::Moment moment) const {
    if (moment == std::numeric_limits<train::MicroBatches::Moment>::max())
      return {out.steps.size(), 0};
    const auto [step, operation] = train::MicroBatches::place_of(moment);
    if (out.steps[step].runs.empty()) return {step, 0};
    return {step, first_of_chunk_[chunk_of_step_[step]] + operation};
  }

  // As TrainingStep reduces and gathers them.
  void add_parameters(const train::MicroBatches& micro_batches, const ParameterStore& store) {
    const auto finished = micro_batches.finished_gradients();
    const auto first_uses = micro_batches.first_uses();
    const auto reduced = micro_batches.reduced_units();
    const parallel::Group& stage = layout_.group({Axis::tp, Axis::cp, Axis::dp});
    bool every_rank_has_all = true;
    for (size_t i = 0; i < store.specs().size(); ++i) {
      const ParameterSpec& p = store.specs()[i];
      if (p.holders.size() < 2 || p.frozen) continue;
      const ParameterGroup::Sharing& sharing = store.group_of(p).sharing();
      const int shares = sharing.zero >= 2 ? sharing.ranks.size() : 1;
      SharedTable table{.number = static_cast<int64_t>(i),
                        .elements = static_cast<double>(p.size() / shares)};
      for (const int32_t s : p.holders) table.ranks.push_back(out.stages[static_cast<size_t>(s)]);
      out.tables.push_back(std::move(table));
    }
    for (int32_t g = 0; g < std::ssize(store.groups()); ++g) {
      const ParameterGroup& group = store.groups()[static_cast<size_t>(g)];
      if (group.kind() == ParameterGroup::Kind::frozen || group.count() == 0) continue;
      const ParameterGroup::Sharing& sharing = group.sharing();
      every_rank_has_all = every_rank_has_all && group.owns_all() &&
                           layout_.group(group.axes()).size() == stage.size();
      out.norm_bytes += 8.0 * static_cast<double>(kernels::norm_blocks(group.count()));
      if (group.owns_all()) out.owned += static_cast<double>(group.count());
      for (const OwnedRange& r : group.owned()) {
        if (!group.owns_all()) out.owned += static_cast<double>(r.end - r.begin);
      }
      if (sharing.ranks.size() == 1) continue;
      // From level 2 on the lists hold the sums, at level 3 the gathers too.
      const bool copies = sharing.replicas.size() > 1;
      if (sharing.zero >= 3 && !copies) continue;
      if (sharing.zero == 0 && store.sharing().zero >= 2) continue;
      for (const parallel::FlatRange& b : group.buckets()) {
        const auto inside = [&](const ParameterSpec& p) {
          return p.group == g && p.offset >= b.begin && p.offset < b.end;
        };
        const Point end{out.steps.size(), 0};
        Bucket bucket{.needed = end,
                      .zero = sharing.zero,
                      .elements = static_cast<double>(b.end - b.begin),
                      .ranks = sharing.ranks.ranks,
                      .replicas = sharing.replicas.ranks,
                      .coded = sharing.coded,
                      .axes = axes_of(layout_, sharing.ranks)};
        for (const train::MicroBatches::FinishedGradient& f : finished)
          if (inside(store.spec({f.parameter})))
            bucket.finished = std::max(bucket.finished, point_of(f.moment));
        for (size_t p = 0; p < first_uses.size(); ++p) {
          const ParameterSpec& spec = store.specs()[p];
          if (!inside(spec)) continue;
          bucket.needed = std::min(bucket.needed, point_of(first_uses[p]));
          if (!spec.holders.empty()) bucket.finished = end;
        }
        for (const train::MicroBatches::ReducedUnit& u : reduced) {
          if (copies && u.group == g && group.buckets()[u.bucket] == b && bucket.finished < end)
            bucket.finished = std::max(bucket.finished, point_of(u.moment));
        }
        out.buckets.push_back(std::move(bucket));
      }
    }
    std::ranges::stable_sort(out.buckets, {}, &Bucket::finished);
    out.norm_ranks = every_rank_has_all ? std::vector{layout_.rank()} : stage.ranks;
  }

  const Machine& machine_;
  const Layout& layout_;
  std::vector<int32_t> first_of_chunk_;
  std::vector<size_t> chunk_of_step_;
};

}  // namespace

std::vector<Recorded> record_stages(const RunConfig& config, int64_t length, int ranks,
                                    Device device, const kernels::KernelOptions& kernels,
                                    const Machine& machine) {
  const train::TimedShape shape = train::timed_shape(config, length);
  train::check_layout(config, shape.model, ranks);
  // A machine's GPUs compute in what is asked for, whatever this process runs on.
  const std::string& precision = config.train.precision;
  const DType type = !machine.gpu          ? train::resolve_precision(precision, device)
                     : precision == "fp32" ? DType::f32
                     : precision == "fp16" ? DType::f16
                                           : DType::bf16;
  ParameterStore like(device, type);
  like.set_kernels(kernels);
  const train::StepOptions options = train::resolve_step(config, shape.batch, ranks);
  const parallel::MeshExtents extents = train::mesh_extents(config.parallel, ranks);
  std::optional<train::Pipeline> pipeline;
  std::vector<Recorded> stages;
  for (int stage = 0; stage < extents.pp; ++stage) {
    parallel::PlanningCommunicator communicator(device, stage * (ranks / extents.pp), ranks);
    const Layout layout(communicator, extents, train::transfer_options(config.parallel));
    if (!pipeline)
      pipeline = train::plan_pipeline(shape.model, shape.batch, options.accumulate,
                                      options.parallel, layout);
    Recorder recorder(machine, layout);
    recorder.out.memory = train::plan_step(
        shape.model, like, options, layout, [&](const auto& list) { recorder.look(list); },
        &*pipeline);
    stages.push_back(std::move(recorder.out));
    if (static_cast<int64_t>(stages.back().memory.total()) > machine.memory_bytes) break;
  }
  return stages;
}

}  // namespace saturate::plan
