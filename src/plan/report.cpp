// SPDX-License-Identifier: Apache-2.0
#include "plan/report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "base/text.h"

namespace saturate::plan {
namespace {

std::string bytes_text(size_t bytes) { return format_bytes(static_cast<double>(bytes)); }

std::string percent(double part, double whole) {
  return whole > 0 ? fmt::format("{:.1f}%", 100 * part / whole) : "-";
}

// Communication over computation, before anything hides it.
double ratio_of(const RankTime& t) {
  return t.compute_us > 0 ? t.communication_us / t.compute_us : 0;
}

std::string row(int number, const Estimate& e, size_t width) {
  return fmt::format(
      "{:>3}  {:<{}} {:>8} x {:<4} {:>9.2f} {:>9} {:>10} {:>6.2f} {:>8} {:>7} {:>8}\n", number,
      e.layout, width, e.config.batch.target_tokens, e.config.batch.accumulate, e.step_ms,
      format_count(e.tokens_per_s), bytes_text(e.memory.total()), ratio_of(e.rank),
      percent(e.rank.exposed_us, e.rank.end_us), percent(e.rank.idle_us(), e.rank.end_us),
      e.joules_per_token ? fmt::format("{:.2g}", *e.joules_per_token) : "-");
}

Json memory_json(const train::StepMemory& m) {
  return {{"total", m.total()},
          {"parameters", m.parameters},
          {"optimizer", m.optimizer},
          {"activations", m.activations},
          {"batches", m.batches},
          {"workspace", m.workspace},
          {"host", m.host}};
}

}  // namespace

std::string started_by(const std::string& launcher, int ranks) {
  std::string out = launcher;
  const std::string mark = "{ranks}";
  for (size_t at = out.find(mark); at != std::string::npos; at = out.find(mark))
    out.replace(at, mark.size(), std::to_string(ranks));
  return out;
}

std::string layout_flags(const Estimate& e) {
  return fmt::format("--parallel {} --batch {} --set batch.accumulate={}", e.layout,
                     e.config.batch.target_tokens, e.config.batch.accumulate);
}

std::string to_text(const Plan& plan, const PlanRequest& q, const std::string& launcher, int rows) {
  std::string out = fmt::format("{} parameters on {} x {} ({}), a step of {} tokens\n",
                                format_count(plan.parameters), q.devices, q.machine.device,
                                q.machine.name, format_count(plan.step_tokens));
  const auto shown = std::min(plan.ranked.size(), static_cast<size_t>(rows));
  size_t width = 0;
  for (size_t i = 0; i < shown; ++i) width = std::max(width, plan.ranked[i].layout.size());
  if (shown > 0) {
    out += fmt::format("{:>3}  {:<{}} {:>15} {:>9} {:>9} {:>10} {:>6} {:>8} {:>7} {:>8}\n", "",
                       "layout", width, "micro-batches", "step ms", "tok/s", "memory", "c/c",
                       "exposed", "idle", "J/token");
  }
  for (size_t i = 0; i < shown; ++i) out += row(static_cast<int>(i) + 1, plan.ranked[i], width);
  if (shown > 0) {
    const Estimate& best = plan.ranked.front();
    out += fmt::format(
        "tok/s: of target tokens, all devices; c/c: communication over computation before it is "
        "hidden; exposed, idle: of the step\ntimes: the recorded lists, simulated; {:.0f}% of the "
        "first one's computation by measured operations, {:.0f}% by those of the nearest shapes, "
        "the rest by rates of the machine\n",
        100 * best.measured, 100 * best.scaled);
  }
  for (size_t i = 1; i < shown; ++i)
    out += fmt::format("{:>3}  {}: {}\n", i + 1, plan.ranked[i].layout, plan.ranked[i].why);
  constexpr size_t kReasons = 6;
  for (size_t i = 0; i < std::min(plan.refused.size(), kReasons); ++i) {
    const Refusal& r = plan.refused[i];
    const auto some = std::min<size_t>(r.layouts.size(), 3);
    out += fmt::format(
        "not {}{}: {}\n",
        fmt::join(r.layouts.begin(), r.layouts.begin() + static_cast<std::ptrdiff_t>(some), "; "),
        r.layouts.size() > some ? fmt::format(" and {} more", r.layouts.size() - some) : "",
        r.reason);
  }
  if (plan.refused.size() > kReasons)
    out += fmt::format("{} reasons more (--json has all)\n", plan.refused.size() - kReasons);
  if (plan.ranked.empty()) return out + "no layout fits\n";
  const std::string start = q.devices > 1 ? started_by(launcher, q.devices) + " " : "";
  return out +
         fmt::format("run: {}saturate train ... {}\n", start, layout_flags(plan.ranked.front()));
}

std::string goodput_text(const Plan& plan, const PlanRequest& q, double interval_s) {
  if (q.machine.failures.device_mtbf_hours <= 0 || plan.ranked.empty()) return "";
  // Masters and both moments, each once over all ranks.
  const double bytes = plan.parameters * 12;
  std::string out = fmt::format(
      "failures: one device fails every {:.0f} h; a checkpoint of {} stops the steps, a restart "
      "takes {}\n{:>8} {:>14} {:>12} {:>14} {:>9}{}\n",
      q.machine.failures.device_mtbf_hours, format_bytes(bytes),
      format_duration(q.machine.failures.restart_s), "devices", "a failure in", "checkpoint",
      "best interval", "goodput",
      interval_s > 0 ? fmt::format("   at {}", format_duration(interval_s)) : "");
  std::set<int> counts{8, 64, 512, 1024, 2048, 4096, q.devices};
  for (const int n : counts) {
    const FailureModel f = failure_model(q.machine, n, bytes);
    const double best = best_interval_s(f);
    out += fmt::format("{:>8} {:>14} {:>10.1f} s {:>14} {:>8.2f}%", n, format_duration(f.mtbf_s),
                       f.checkpoint_s, format_duration(best), 100 * goodput(f, best));
    if (interval_s > 0) out += fmt::format("   {:.2f}%", 100 * goodput(f, interval_s));
    out += "\n";
  }
  return out;
}

Json to_json(const Plan& plan, const PlanRequest& q) {
  Json out = {{"what", "plan"},
              {"machine", q.machine.name},
              {"device", q.machine.device},
              {"devices", q.devices},
              {"parameters", plan.parameters},
              {"step_tokens", plan.step_tokens},
              {"layouts", Json::Array{}},
              {"refused", Json::Array{}}};
  for (const Estimate& e : plan.ranked) {
    Json exposed = Json::Object{};
    for (const auto& [axis, us] : e.rank.exposed_by_axis) exposed.add(axis, us * 1e-3);
    out["layouts"].push_back({{"layout", e.layout},
                              {"flags", layout_flags(e)},
                              {"micro_batch_tokens", e.config.batch.target_tokens},
                              {"micro_batches", e.config.batch.accumulate},
                              {"step_ms", e.step_ms},
                              {"tokens_per_s", e.tokens_per_s},
                              {"memory", memory_json(e.memory)},
                              {"compute_ms", e.rank.compute_us * 1e-3},
                              {"communication_ms", e.rank.communication_us * 1e-3},
                              {"exposed_ms", e.rank.exposed_us * 1e-3},
                              {"exposed_ms_by_axis", std::move(exposed)},
                              {"idle_ms", e.rank.idle_us() * 1e-3},
                              {"measured", e.measured},
                              {"scaled", e.scaled},
                              {"joules_per_token", e.joules_per_token},
                              {"why_slower", e.why}});
  }
  for (const Refusal& r : plan.refused) {
    Json layouts = Json::Array{};
    for (const std::string& l : r.layouts) layouts.push_back(l);
    out["refused"].push_back({{"reason", r.reason}, {"layouts", std::move(layouts)}});
  }
  return out;
}

std::string timeline_json(const StepLists& lists) {
  const Simulation s = simulate(lists.ranks, lists.beside);
  Json events = Json::Array{};
  for (size_t r = 0; r < lists.ranks.size(); ++r) {
    events.push_back({{"name", "process_name"},
                      {"ph", "M"},
                      {"pid", r},
                      {"args", Json{{"name", fmt::format("rank {}", r)}}}});
    for (size_t i = 0; i < lists.ranks[r].size(); ++i) {
      const Task& t = lists.ranks[r][i];
      const TaskTime& time = s.times[r][i];
      if (time.end_us <= time.begin_us) continue;
      Json event = {{"name", t.name}, {"ph", "X"},           {"pid", r},
                    {"tid", t.lane},  {"ts", time.begin_us}, {"dur", time.end_us - time.begin_us}};
      if (t.kind == TaskKind::communication) event.add("cat", t.axis);
      events.push_back(std::move(event));
    }
  }
  return Json{{"traceEvents", std::move(events)}, {"displayTimeUnit", "ms"}}.dump() + "\n";
}

}  // namespace saturate::plan
