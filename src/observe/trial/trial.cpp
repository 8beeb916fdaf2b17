// SPDX-License-Identifier: Apache-2.0
#include "observe/trial/trial.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/printable.h"
#include "observe/report/text.h"

namespace saturate::observe {
namespace {

constexpr double kUneven = 2;       // mean step against the median
constexpr double kSameStep = 1.25;  // launches of steps that count as the same
constexpr double kKept = 1.03;      // above a ceiling by less is chance

const char* outcome_name(TrialOutcome o) {
  constexpr const char* kNames[] = {"ended",       "failed",    "timed_out",
                                    "interrupted", "no_effect", "left_out"};
  return kNames[static_cast<size_t>(o)];
}

// Of the unchanged runs that ended: mean of a value, where it is known.
template <class Value>
double mean(const std::vector<TrialRun>& runs, const Value& value) {
  double sum = 0;
  int n = 0;
  for (const TrialRun& r : runs) {
    if (r.outcome != TrialOutcome::ended || value(r) <= 0) continue;
    sum += value(r);
    ++n;
  }
  return n > 0 ? sum / n : 0;
}
double step_of(const TrialRun& r) { return r.step_ns; }
double mean_step_of(const TrialRun& r) { return r.mean_step_ns; }
double wall_of(const TrialRun& r) { return r.wall_s; }
double launches_of(const TrialRun& r) { return r.launches_a_step; }

std::string promised(const Remedy& r) {
  if (!r.promise) return "-";
  const Fix& f = *r.promise;
  if (f.high > 0) return fmt::format("{:.2f}x to {:.2f}x", f.low, f.high);
  return fmt::format("{} {:.2f}x", f.ceiling ? "up to" : "about", f.speedup);
}

std::string gained(const TrialRow& row) {
  if (row.gain.factor <= 0) return outcome_name(row.run.outcome);
  return fmt::format("{:.2f}x{}", row.gain.factor,
                     row.gain.by_mean   ? " (mean step)"
                     : row.gain.by_step ? ""
                                        : " (whole run)");
}

// Whether the gain is no more than was promised; null where nothing bounds it.
Json within(const TrialRow& row) {
  if (!row.remedy.promise || row.gain.factor <= 0) return nullptr;
  const Fix& f = *row.remedy.promise;
  const double most = f.ceiling ? f.speedup : f.high;
  return most > 0 ? Json(row.gain.factor <= kKept * most) : Json(nullptr);
}

std::string prefix(const Remedy& r) {
  std::string text;
  for (const auto& [variable, value] : r.environment) text += variable + "=" + value + " ";
  return text;
}

std::string keep(const Remedy& r, const std::string& command) {
  const std::string set = r.environment.empty() ? "" : prefix(r) + command;
  return set + (set.empty() || r.keep.empty() ? "" : "; ") + r.keep;
}

}  // namespace

double launches_a_step(const Diagnosis& g) {
  const int64_t steps = g.analysis.steps.count;
  return steps > 0 ? static_cast<double>(g.device().launches) / static_cast<double>(steps) : 0;
}

TrialGain gain_of(const std::vector<TrialRun>& unchanged, const TrialRun& run,
                  double watched_launches) {
  if (run.outcome != TrialOutcome::ended) return {};
  const double step = mean(unchanged, step_of), launches = mean(unchanged, launches_of);
  const auto alike = [](double a, double b) { return a <= kSameStep * b && b <= kSameStep * a; };
  const bool as_watched = watched_launches <= 0 || alike(launches, watched_launches);
  if (step > 0 && run.step_ns > 0 && as_watched && alike(launches, run.launches_a_step)) {
    // Equal layers that were taken for steps, say, of which each eighth waits for data.
    const double whole = mean(unchanged, mean_step_of);
    if (whole > kUneven * step && run.mean_step_ns > 0)
      return {whole / run.mean_step_ns, true, true};
    return {step / run.step_ns, true};
  }
  const double wall = mean(unchanged, wall_of);
  return {wall > 0 && run.wall_s > 0 ? wall / run.wall_s : 0, false};
}

double spread_of(const std::vector<TrialRun>& unchanged) {
  const bool steps = std::all_of(unchanged.begin(), unchanged.end(),
                                 [](const TrialRun& r) { return r.step_ns > 0; });
  double least = INFINITY, most = 0;
  int n = 0;
  for (const TrialRun& r : unchanged) {
    if (r.outcome != TrialOutcome::ended) continue;
    const double value = steps ? r.step_ns : r.wall_s;
    least = std::min(least, value);
    most = std::max(most, value);
    ++n;
  }
  return n < 2 || least <= 0 ? 0 : most / least - 1;
}

std::string trial_text(const Trial& t) {
  const auto step = [](double ns) { return ns > 0 ? format_ns(ns) : std::string("-"); };
  std::string out = fmt::format("\nFIX TRIAL  {}\n", printable(t.command));
  if (!t.why_not.empty()) return out + "Nothing was tried: " + printable(t.why_not) + "\n";
  out += fmt::format("    {:<34} {:>14} {:>18} {:>9} {:>9}\n", "remedy", "promised", "gained",
                     "step", "run");
  out += fmt::format("    {:<34} {:>14} {:>18} {:>9} {:>7.1f} s\n", "unchanged", "", "",
                     step(mean(t.unchanged, step_of)), mean(t.unchanged, wall_of));
  for (size_t i = 0; i < t.rows.size(); ++i) {
    const TrialRow& row = t.rows[i];
    out += fmt::format("{:3} {:<34} {:>14} {:>18} {:>9} {:>9}\n", i + 1, row.remedy.title,
                       promised(row.remedy), gained(row), step(row.run.step_ns),
                       row.run.wall_s > 0 ? fmt::format("{:.1f} s", row.run.wall_s) : "-");
  }
  const double spread = spread_of(t.unchanged);
  if (spread > 0)
    out += fmt::format("The unchanged runs differ by {:.1f}%: {}\n", 100 * spread,
                       spread < kGained - 1 ? "gains above that are gains"
                                            : "a gain or loss up to that says nothing");
  for (size_t i = 0; i < t.rows.size(); ++i) {
    const TrialRow& row = t.rows[i];
    out += fmt::format("{:3} {}\n", i + 1, row.remedy.title);
    if (!row.remedy.why.empty()) out += fmt::format("     why  {}\n", printable(row.remedy.why));
    if (row.gain.factor >= kGained)
      out += fmt::format("     keep {}\n", printable(keep(row.remedy, t.command)));
    if (row.remedy.changes_results || !row.remedy.caveat.empty())
      out += fmt::format("     but  {}{}{}\n", row.remedy.changes_results ? "results change" : "",
                         row.remedy.changes_results && !row.remedy.caveat.empty() ? ": " : "",
                         row.remedy.caveat);
    if (const Json kept = within(row); kept.if_bool() != nullptr && !*kept.if_bool())
      out += "     more than was promised: that bound does not hold for this program\n";
    if (!row.run.note.empty()) out += fmt::format("     {}\n", printable(row.run.note));
    if (!row.run.last_lines.empty()) out += row.run.last_lines;
  }
  for (const TrialRun& r : t.unchanged)
    if (!r.note.empty()) out += fmt::format("Unchanged: {}\n{}", printable(r.note), r.last_lines);
  if (t.interrupted) out += "Interrupted: what had not run yet is not here.\n";
  return out;
}

Json trial_json(const Trial& t) {
  const auto known = [](double value) { return value > 0 ? Json(value) : Json(nullptr); };
  const auto run = [&](const TrialRun& r) {
    return Json{{"outcome", outcome_name(r.outcome)}, {"note", printable(r.note)},
                {"exit_code", r.exit_code},           {"last_lines", r.last_lines},
                {"run_s", known(r.wall_s)},           {"step_ns", known(r.step_ns)}};
  };
  Json j;
  j["command"] = printable(t.command);
  j["why_not"] = t.why_not.empty() ? Json(nullptr) : Json(printable(t.why_not));
  j["interrupted"] = t.interrupted;
  j["spread"] = spread_of(t.unchanged);
  Json& unchanged = j["unchanged"] = Json::Array{};
  for (const TrialRun& r : t.unchanged) unchanged.push_back(run(r));
  Json& rows = j["remedies"] = Json::Array{};
  for (const TrialRow& row : t.rows) {
    Json r = run(row.run);
    r["id"] = row.remedy.id;
    r["title"] = row.remedy.title;
    r["why"] = printable(row.remedy.why);
    r["keep"] = printable(keep(row.remedy, t.command));
    r["caveat"] = row.remedy.caveat;
    r["changes_results"] = row.remedy.changes_results;
    r["promised"] = nullptr;
    if (const auto& p = row.remedy.promise)
      r["promised"] = {{"fix", fix_info(p->kind).id},
                       {"speedup_at_most", p->speedup},
                       {"is_ceiling", p->ceiling},
                       {"range", p->high > 0 ? Json(Json::Array{p->low, p->high}) : Json()}};
    r["gained"] = known(row.gain.factor);
    r["gained_by"] = row.gain.factor <= 0 ? Json(nullptr)
                                          : Json(row.gain.by_mean   ? "mean_step"
                                                 : row.gain.by_step ? "step"
                                                                    : "run");
    r["within_promise"] = within(row);
    rows.push_back(std::move(r));
  }
  return j;
}

}  // namespace saturate::observe
