// SPDX-License-Identifier: Apache-2.0
#include "plan/planner.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/text.h"
#include "model/transformer.h"
#include "plan/recorded.h"
#include "plan/step_list.h"
#include "train/parallel_setup.h"
#include "train/step_timing.h"

namespace saturate::plan {
namespace {

// Micro-batches of a rank without a pipeline, but for the first and the last, take the same time, so
// three say all.
constexpr int64_t kSimulated = 3;
constexpr int64_t kShown = 8;  // in a timeline

// More micro-batches than so many times the stages gain nothing.
constexpr int64_t kMostOfAStage = 8;

void add_times(RankTime& t, const RankTime& more, const RankTime& less, double n) {
  t.end_us += n * (more.end_us - less.end_us);
  t.compute_us += n * (more.compute_us - less.compute_us);
  t.communication_us += n * (more.communication_us - less.communication_us);
  t.exposed_us += n * (more.exposed_us - less.exposed_us);
  const auto in = [](const RankTime& x, const std::string& axis) {
    for (const auto& [name, value] : x.exposed_by_axis)
      if (name == axis) return value;
    return 0.0;
  };
  for (const auto& [axis, us] : more.exposed_by_axis) {
    const auto known =
        std::ranges::find(t.exposed_by_axis, axis, &std::pair<std::string, double>::first);
    const double added = n * (us - in(less, axis));
    if (known == t.exposed_by_axis.end()) {
      t.exposed_by_axis.emplace_back(axis, added);
    } else {
      known->second += added;
    }
  }
}

// One rank of each stage.
using StageList = std::vector<Recorded>;

std::vector<TaskList> lists_of(const StageList& stages, const Machine& m, const Simulated& some) {
  std::vector<TaskList> lists;
  for (const Recorded& r : stages) lists.push_back(step_list(r, m, some));
  return lists;
}

// The mean of the stages.
RankTime simulated_time(const StageList& stages, const Machine& m, const Simulated& some) {
  const Simulation s = simulate(lists_of(stages, m, some), m.compute.beside_collectives);
  RankTime mean;
  for (const RankTime& t : s.ranks)
    add_times(mean, t, {}, 1.0 / static_cast<double>(s.ranks.size()));
  mean.end_us = s.end_us;
  return mean;
}

RankTime step_time(const StageList& stages, const Machine& m, int64_t micro_batches) {
  const auto first = [&](int64_t n) { return Simulated{.first = n, .of = micro_batches}; };
  if (stages.size() > 1 || micro_batches <= kSimulated)
    return simulated_time(stages, m, first(micro_batches));
  RankTime t = simulated_time(stages, m, first(kSimulated));
  add_times(t, t, simulated_time(stages, m, first(kSimulated - 1)),
            static_cast<double>(micro_batches - kSimulated));
  return t;
}

StageList stages_of(const PlanRequest& q, const RunConfig& c) {
  return record_stages(c, q.length, q.devices, q.device, q.kernels, q.machine);
}

double parameters_of(const model::ModelConfig& config) {
  ParameterStore store({}, DType::f32);  // never allocated
  const model::Transformer model(config, store);
  return static_cast<double>(store.count());
}

class Planner {
 public:
  explicit Planner(const PlanRequest& request) : request_(request) {
    plan_.step_tokens = static_cast<double>(request.config.batch.target_tokens *
                                            request.config.batch.accumulate * request.devices);
    const model::ModelConfig model = train::timed_shape(request.config, request.length).model;
    plan_.parameters = parameters_of(model);
    experts_ = model.experts;
    ffn_ = model.ffn;
  }

  Plan run() {
    if (request_.one_layout) {
      consider(request_.config);
    } else {
      each_mesh();
    }
    std::stable_sort(plan_.ranked.begin(), plan_.ranked.end(),
                     [](auto& a, auto& b) { return a.step_ms < b.step_ms; });
    for (Estimate& e : plan_.ranked) e.why = why_slower(e, plan_.ranked.front());
    return std::move(plan_);
  }

 private:
  void each_mesh() {
    const int n = request_.devices;
    for (int tp = 1; tp <= n; ++tp) {
      for (int cp = 1; n % tp == 0 && cp <= n / tp; ++cp) {
        for (int pp = 1; n / tp % cp == 0 && pp <= n / tp / cp; ++pp) {
          if (n / tp / cp % pp != 0) continue;
          RunConfig c = request_.config;
          if (c.parallel.schedule == "auto") c.parallel = {};
          c.parallel.tp = tp;
          c.parallel.cp = cp;
          c.parallel.pp = pp;
          c.parallel.dp = n / tp / cp / pp;
          each_schedule(c);
        }
      }
    }
  }

  void each_schedule(RunConfig c) {
    if (c.parallel.pp == 1) return each_expert_part(c);
    for (const auto& [schedule, chunks] : {std::pair{"1f1b", 1},
                                           {"zero-bubble", 1},
                                           {"1f1b", 2},
                                           {"zero-bubble", 2},
                                           {"interleaved", 2},
                                           {"interleaved", 4}}) {
      c.parallel.schedule = schedule;
      c.parallel.chunks = chunks;
      each_expert_part(c);
    }
  }

  // Every expert is cut over any number of ranks that divides its inner width; more ranks than
  // experts would hold slivers.
  void each_expert_part(RunConfig c) {
    const int64_t stage = request_.devices / c.parallel.pp;
    for (int64_t ep = 1; ep <= std::max<int64_t>(1, experts_); ++ep) {
      if (experts_ > 0 && (ffn_ % ep != 0 || stage % ep != 0)) continue;
      c.parallel.ep = ep;
      each_zero(c);
    }
  }

  void each_zero(RunConfig c) {
    const bool shared = request_.devices / c.parallel.pp > 1;
    for (const char* zero : {"0", "1", "2", "3"}) {
      if (zero[0] != '0' && !shared) break;
      c.parallel.zero = zero;
      c.parallel.dp_shard = 0;
      // Without copies of the state there are no sums between them.
      const std::string between = c.parallel.reduce_between;
      if (zero[0] != '0' || c.parallel.dp == 1) c.parallel.reduce_between = "fp32";
      consider(c);
      c.parallel.reduce_between = between;
      // A copy on each host, where there are several.
      const int64_t sharers = request_.machine.devices_per_host,
                    parts = c.parallel.tp * c.parallel.cp;
      c.parallel.dp_shard = sharers / parts;
      if (zero[0] != '0' && sharers > 1 && sharers % parts == 0 && sharers % c.parallel.ep == 0 &&
          c.parallel.dp_shard < c.parallel.dp && c.parallel.dp % c.parallel.dp_shard == 0)
        consider(c);
    }
  }

  // The layout with the least recomputation that fits, of a pipeline with the number of
  // micro-batches that is fastest, else with the largest micro-batch.
  void consider(const RunConfig& layout) {
    const std::string name = name_of_layout(layout);
    std::string smallest;  // why even that does not fit
    for (const bool offload : {false, true}) {
      if (layout.parallel.offload && !offload) continue;
      if (offload && request_.machine.host_copy_gbs <= 0) {
        smallest += (smallest.empty() ? "" : "; ");
        smallest += "the machine says no host_copy_gbs, which parallel.offload takes";
        break;
      }
      for (const char* recompute : {"auto", "selective", "full"}) {
        RunConfig c = layout;
        c.parallel.recompute = recompute;
        c.parallel.offload = offload;
        try {
          if (fit(c, smallest)) return;
        } catch (const Error& e) {
          if (e.code() != Errc::invalid_argument && e.code() != Errc::unsupported) throw;
          refuse(smallest.empty() ? without_name(e.what()) : smallest, name);
          return;
        }
      }
    }
    refuse(smallest, name);
  }

  bool fit(RunConfig c, std::string& smallest) {
    if (request_.on_layout) request_.on_layout(name_of_layout(c), plan_.ranked.size());
    const double dp = train::mesh_extents(c.parallel, request_.devices).dp;
    const double of_rank = plan_.step_tokens / dp;  // tokens of a step, that dp ranks do not share
    const auto given = request_.config.batch.target_tokens;
    const int64_t pp = c.parallel.pp;
    std::optional<Estimate> best;
    const int64_t most = request_.one_layout ? given
                         : pp > 1            ? static_cast<int64_t>(of_rank) / pp
                                             : given * c.parallel.tp * c.parallel.cp * 2;
    for (int64_t micro = most; micro >= request_.length; micro /= 2) {
      const double count = of_rank / static_cast<double>(micro);
      if (best && count > static_cast<double>(kMostOfAStage * pp)) break;
      if (count < 1 || count != std::floor(count) || micro % request_.length != 0) {
        if (request_.one_layout) break;
        continue;
      }
      c.batch.target_tokens = micro;
      c.batch.accumulate = static_cast<int64_t>(count);
      const StageList stages = stages_of(request_, c);
      if (static_cast<int64_t>(stages.back().memory.total()) <= request_.machine.memory_bytes) {
        Estimate e = estimate(c, stages);
        if (!best || e.step_ms < best->step_ms) best = std::move(e);
        if (pp == 1) break;
      } else {
        smallest =
            fmt::format("even micro-batches of {} tokens need more than the {} of a device", micro,
                        format_bytes(static_cast<double>(request_.machine.memory_bytes)));
      }
      if (request_.one_layout) break;
    }
    if (best) {
      plan_.ranked.push_back(std::move(*best));
      return true;
    }
    if (smallest.empty())
      smallest = fmt::format(
          "no micro-batch of whole sentences divides the step of {:.0f} tokens; choose --batch so "
          "that each rank gets a multiple of --length",
          plan_.step_tokens);
    return false;
  }

  Estimate estimate(const RunConfig& c, const StageList& stages) const {
    Estimate e{
        .config = c,
        .layout = name_of_layout(c),
        .memory =
            std::ranges::max(stages, {}, [](const Recorded& r) { return r.memory.total(); }).memory,
        .rank = step_time(stages, request_.machine, c.batch.accumulate)};
    double us = 0;
    for (const Recorded& r : stages) {
      us += r.us;
      e.measured += r.measured_us;
      e.scaled += r.scaled_us;
    }
    e.measured = us > 0 ? e.measured / us : 0;
    e.scaled = us > 0 ? e.scaled / us : 0;
    e.step_ms = e.rank.end_us * 1e-3;
    e.tokens_per_s = plan_.step_tokens / e.step_ms * 1e3;
    if (request_.machine.watts)
      e.joules_per_token = *request_.machine.watts * request_.devices / e.tokens_per_s;
    return e;
  }

  // "[parallel] parallel.tp = 3 must ..." without the part in brackets.
  static std::string without_name(const std::string& what) {
    const size_t end = what.starts_with('[') ? what.find("] ") : std::string::npos;
    return end == std::string::npos ? what : what.substr(end + 2);
  }

  // "dp=2,zero=1" of what may be refused too; --parallel takes it.
  std::string name_of_layout(const RunConfig& c) const {
    try {
      // Nothing said is what zero = auto gives.
      const bool plain = c.parallel.zero == "0" && request_.devices / c.parallel.pp > 1;
      return train::layout_text(c.parallel, request_.devices) + (plain ? ",zero=0" : "");
    } catch (const Error&) {
      return fmt::format("tp={},cp={},pp={},ep={}", c.parallel.tp, c.parallel.cp, c.parallel.pp,
                         c.parallel.ep);
    }
  }

  void refuse(const std::string& reason, const std::string& layout) {
    for (Refusal& r : plan_.refused) {
      if (r.reason == reason) {
        r.layouts.push_back(layout);
        return;
      }
    }
    plan_.refused.push_back({reason, {layout}});
  }

  static std::string why_slower(const Estimate& e, const Estimate& best) {
    if (&e == &best) return "";
    std::vector<std::pair<double, std::string>> causes;
    causes.emplace_back(e.rank.compute_us - best.rank.compute_us, "computation");
    causes.emplace_back(e.rank.idle_us() - best.rank.idle_us(), "waiting");
    for (const auto& [axis, us] : e.rank.exposed_by_axis) {
      double there = 0;
      for (const auto& [name, value] : best.rank.exposed_by_axis)
        if (name == axis) there = value;
      causes.emplace_back(us - there, "exposed " + axis);
    }
    std::sort(causes.rbegin(), causes.rend());
    std::string why;
    for (const auto& [us, name] : causes) {
      if (us > 0.02 * (e.rank.end_us - best.rank.end_us) && us > 1)
        why += fmt::format("{}+{:.3g} ms {}", why.empty() ? "" : ", ", us * 1e-3, name);
    }
    return why.empty() ? "as fast" : why;
  }

  const PlanRequest& request_;
  int64_t experts_ = 0, ffn_ = 0;
  Plan plan_;
};

}  // namespace

Plan make_plan(const PlanRequest& request) { return Planner(request).run(); }

StepLists step_lists(const PlanRequest& q, const RunConfig& layout) {
  StepLists lists{.beside = q.machine.compute.beside_collectives};
  const int64_t n = layout.batch.accumulate;
  const int64_t shown = layout.parallel.pp > 1 ? n : std::min<int64_t>(n, kShown);
  lists.ranks =
      lists_of(stages_of(q, layout), q.machine, {.first = shown, .of = n, .merged = false});
  return lists;
}

}  // namespace saturate::plan
