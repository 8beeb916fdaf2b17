// SPDX-License-Identifier: Apache-2.0
#include "plan/planner.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "base/text.h"
#include "plan/cost.h"
#include "plan/recorded.h"
#include "train/parallel_setup.h"

namespace saturate::plan {
namespace {

using parallel::CollectiveKind;

// Reads and writes of AdamW for each owned element: master, moments and gradient in, master and
// moments out, and the weight as products read it; the norm reads the gradient once more.
constexpr double kAdamwBytes = 4 * 8, kLaunches = 3;

// Appends the tasks of one micro-batch; returns how many were there before.
int32_t append(TaskList& list, const TaskList& operations) {
  const auto offset = static_cast<int32_t>(list.size());
  for (Task t : operations) {
    for (int32_t& w : t.waits) w += offset;
    list.push_back(std::move(t));
  }
  return offset;
}

double group_us(const Machine& m, CollectiveKind kind, double bytes,
                const std::vector<int>& ranks) {
  return collective_us(m, kind, bytes, placement_of(m, ranks));
}

// Collectives of parameters run on a lane of their own, behind those that the list has.
int32_t update_lane(const Recorded& r) {
  int32_t lane = 1;
  for (const Task& t : r.operations) lane = std::max(lane, t.lane + 1);
  return lane;
}

// The weights that other ranks have updated, in the order in which they are needed. Returns by
// reduction the task that gathers it.
std::vector<int32_t> append_gathers(TaskList& list, const Recorded& r, const Machine& m) {
  std::vector<size_t> order(r.reductions.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, {}, [&](size_t i) { return r.reductions[i].needed; });
  std::vector<int32_t> tasks(order.size());
  for (const size_t i : order) {
    const Reduction& x = r.reductions[i];
    tasks[i] = static_cast<int32_t>(list.size());
    list.push_back(
        {.name = "gather of the weights",
         .kind = TaskKind::communication,
         .lane = update_lane(r),
         .us = group_us(m, CollectiveKind::all_gather, x.elements * r.compute_bytes, x.ranks),
         .axis = x.axes});
  }
  return tasks;
}

// Sums of gradients as they are finished in the list that begins at `offset`.
void append_reductions(TaskList& list, const Recorded& r, int32_t offset, const Machine& m,
                       int zero, std::vector<int32_t>& tasks) {
  const auto kind = zero > 0 ? CollectiveKind::reduce_scatter : CollectiveKind::all_reduce;
  for (const Reduction& x : r.reductions) {
    tasks.push_back(static_cast<int32_t>(list.size()));
    list.push_back({.name = name_of(kind),
                    .kind = TaskKind::communication,
                    .lane = update_lane(r),
                    .us = group_us(m, kind, x.elements * r.element_bytes, x.ranks),
                    .waits = {offset + x.after},
                    .axis = x.axes});
  }
}

// The norm, over all ranks where each has a part of it, and AdamW on what the rank owns.
void append_update(TaskList& list, const Recorded& r, const Machine& m, int zero,
                   std::vector<int32_t> before) {
  if (zero > 0 && !r.reductions.empty()) {
    list.push_back({.name = "norm over the ranks",
                    .kind = TaskKind::communication,
                    .lane = update_lane(r),
                    .us = group_us(m, CollectiveKind::all_reduce, 8, r.reductions.front().ranks),
                    .waits = std::move(before),
                    .axis = "norm"});
    before = {static_cast<int32_t>(list.size()) - 1};
  }
  double owned = 0;
  for (const auto& [elements, sharers] : r.trained) owned += elements / (zero > 0 ? sharers : 1);
  // State in host memory comes and goes at the same time, and the update is hidden behind that.
  const double crossing_us =
      r.memory.host > 0 ? static_cast<double>(r.memory.host) / (m.host_copy_gbs * 1e3) : 0;
  list.push_back({.name = "adamw",
                  .us = std::max(crossing_us, traffic_us(m, owned * kAdamwBytes)) +
                        kLaunches * m.compute.launch_us,
                  .waits = std::move(before)});
}

TaskList rank_list(const Recorded& r, const RunConfig& c, const Machine& m, int ranks,
                   int64_t micro_batches) {
  const int zero = train::resolve_parallel(c.parallel, ranks).zero;
  TaskList list;
  std::vector<int32_t> gathered, reduced;
  // From level 2 on the lists hold the reductions themselves, at level 3 the gathers too.
  if (zero == 1 || zero == 2) gathered = append_gathers(list, r, m);
  for (int64_t a = 0; a < micro_batches; ++a) {
    const int32_t offset = append(list, r.operations);
    for (size_t i = 0; a == 0 && i < gathered.size(); ++i)
      list[static_cast<size_t>(offset + r.reductions[i].needed)].waits.push_back(gathered[i]);
    if (a + 1 == micro_batches && zero < 2) append_reductions(list, r, offset, m, zero, reduced);
  }
  reduced.push_back(static_cast<int32_t>(list.size()) - 1);
  append_update(list, r, m, zero, std::move(reduced));
  return list;
}

// Micro-batches but for the first and the last take the same time, so three say all.
constexpr int64_t kSimulated = 3;

void add_times(RankTime& t, const RankTime& more, const RankTime& less, double n) {
  t.end_us += n * (more.end_us - less.end_us);
  t.compute_us += n * (more.compute_us - less.compute_us);
  t.communication_us += n * (more.communication_us - less.communication_us);
  t.exposed_us += n * (more.exposed_us - less.exposed_us);
  for (auto& [axis, us] : t.exposed_by_axis) {
    const auto in = [&axis = axis](const RankTime& x) {
      for (const auto& [name, value] : x.exposed_by_axis)
        if (name == axis) return value;
      return 0.0;
    };
    us += n * (in(more)-in(less));
  }
}

RankTime step_time(const Recorded& r, const RunConfig& c, const Machine& m, int ranks) {
  const auto simulated = [&](int64_t micro_batches) {
    const TaskList list = rank_list(r, c, m, ranks, micro_batches);
    return simulate({&list, 1}, m.compute.beside_collectives).ranks.front();
  };
  const int64_t a = c.batch.accumulate;
  if (a <= kSimulated) return simulated(a);
  RankTime t = simulated(kSimulated);
  add_times(t, t, simulated(kSimulated - 1), static_cast<double>(a - kSimulated));
  return t;
}

class Planner {
 public:
  explicit Planner(const PlanRequest& request) : request_(request) {
    plan_.step_tokens = static_cast<double>(request.config.batch.target_tokens *
                                            request.config.batch.accumulate * request.devices);
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
          c.parallel.tp = tp;
          c.parallel.cp = cp;
          c.parallel.pp = pp;
          c.parallel.dp = n / tp / cp / pp;
          each_zero(c);
        }
      }
    }
  }

  void each_zero(RunConfig c) {
    const bool shared = request_.devices / c.parallel.pp > 1;
    for (const char* zero : {"0", "1", "2", "3"}) {
      if (zero[0] != '0' && !shared) break;
      c.parallel.zero = zero;
      consider(c);
    }
  }

  // The layout with the largest micro-batch that fits, the least recomputation first.
  void consider(const RunConfig& layout) {
    const std::string name = name_of_layout(layout);
    std::string smallest;  // why even that does not fit
    if (layout.parallel.pp > 1) {
      refuse(
          "a pipeline's idle time is not simulated yet: saturate bench step --parallel pp=N times "
          "it",
          name);
      return;
    }
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
    const auto dp = static_cast<double>(c.parallel.dp > 0 ? c.parallel.dp : request_.devices);
    const double of_rank = plan_.step_tokens / dp;  // tokens of a step, that dp ranks do not share
    const auto given = request_.config.batch.target_tokens;
    const int64_t most = request_.one_layout ? given : given * c.parallel.tp * c.parallel.cp * 2;
    for (int64_t micro = most; micro >= request_.length; micro /= 2) {
      const double count = of_rank / static_cast<double>(micro);
      if (count < 1 || count != std::floor(count) || micro % request_.length != 0) {
        if (request_.one_layout) break;
        continue;
      }
      c.batch.target_tokens = micro;
      c.batch.accumulate = static_cast<int64_t>(count);
      const Recorded r = record_rank(c, request_.length, request_.devices, 0, request_.device,
                                     request_.kernels, request_.machine);
      plan_.parameters = std::max(
          plan_.parameters, elements_of(r) * static_cast<double>(c.parallel.tp * c.parallel.pp));
      if (static_cast<int64_t>(r.memory.total()) <= request_.machine.memory_bytes) {
        add(c, r);
        return true;
      }
      smallest =
          fmt::format("even micro-batches of {} tokens need more than the {} of a device", micro,
                      format_bytes(static_cast<double>(request_.machine.memory_bytes)));
      if (request_.one_layout) break;
    }
    if (smallest.empty())
      smallest = fmt::format(
          "no micro-batch of whole sentences divides the step of {:.0f} tokens; choose --batch so "
          "that each rank gets a multiple of --length",
          plan_.step_tokens);
    return false;
  }

  void add(const RunConfig& c, const Recorded& r) {
    Estimate e{.config = c,
               .layout = name_of_layout(c),
               .memory = r.memory,
               .rank = step_time(r, c, request_.machine, request_.devices),
               .measured = r.measured};
    e.step_ms = e.rank.end_us * 1e-3;
    e.tokens_per_s = plan_.step_tokens / e.step_ms * 1e3;
    if (request_.machine.watts)
      e.joules_per_token = *request_.machine.watts * request_.devices / e.tokens_per_s;
    plan_.ranked.push_back(std::move(e));
  }

  // "[parallel] parallel.tp = 3 must ..." without the part in brackets.
  static std::string without_name(const std::string& what) {
    const size_t end = what.starts_with('[') ? what.find("] ") : std::string::npos;
    return end == std::string::npos ? what : what.substr(end + 2);
  }

  static double elements_of(const Recorded& r) {
    double sum = 0;
    for (const auto& [elements, sharers] : r.trained) sum += elements;
    return sum;
  }

  // "dp=2,zero=1" of what may be refused too.
  std::string name_of_layout(const RunConfig& c) const {
    try {
      return train::layout_text(c.parallel, request_.devices);
    } catch (const Error&) {
      return fmt::format("tp={},cp={},pp={}", c.parallel.tp, c.parallel.cp, c.parallel.pp);
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
  Plan plan_;
};

}  // namespace

Plan make_plan(const PlanRequest& request) { return Planner(request).run(); }

StepLists step_lists(const PlanRequest& q, const RunConfig& layout) {
  const Recorded r = record_rank(layout, q.length, q.devices, 0, q.device, q.kernels, q.machine);
  StepLists lists{.beside = q.machine.compute.beside_collectives};
  lists.ranks.push_back(
      rank_list(r, layout, q.machine, q.devices, std::min<int64_t>(layout.batch.accumulate, 8)));
  return lists;
}

}  // namespace saturate::plan
