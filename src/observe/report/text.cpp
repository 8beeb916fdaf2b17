// SPDX-License-Identifier: Apache-2.0
#include "observe/report/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "base/counted.h"
#include "observe/analyse/fix_words.h"
#include "observe/report/counters_rows.h"
#include "observe/report/host_lines.h"
#include "observe/report/host_uses.h"
#include "observe/report/memory.h"
#include "observe/report/ranks.h"
#include "observe/report/rooflines.h"
#include "observe/report/shared_gpu.h"

namespace saturate::observe {
namespace {

constexpr double kShownShare = 0.005;  // smaller leaves are summed up in one line

struct Line {
  Leaf leaf;
  int64_t ns;
};

std::vector<Line> by_size(const Budget& budget) {
  std::vector<Line> lines;
  for (size_t l = 0; l < kLeaves; ++l) {
    if (budget.ns[l] > 0) lines.push_back({static_cast<Leaf>(l), budget.ns[l]});
  }
  std::stable_sort(lines.begin(), lines.end(),
                   [](const Line& a, const Line& b) { return a.ns > b.ns; });
  return lines;
}

// The calls or spans behind an idle leaf, as "cudaMalloc 40x".
std::string detail(const DeviceAnalysis& d, Leaf leaf) {
  std::vector<std::pair<int64_t, std::string>> names;
  for (const auto& [key, time] : d.evidence) {
    if (key.first == leaf && !key.second.empty())
      names.emplace_back(time.ns,
                         fmt::format("{} {}x", printable(key.second).substr(0, 48), time.count));
  }
  std::stable_sort(names.begin(), names.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  return names.empty() ? "" : "  " + names[0].second;
}

std::string budget_text(const Diagnosis& g) {
  const DeviceAnalysis& d = g.device();
  const StepAnalysis& st = g.analysis.steps;
  const auto total = static_cast<double>(d.budget.total_ns());
  const bool per_step = st.found && st.irregular == 0 && st.count > 0;
  const double scale = per_step ? 1.0 / static_cast<double>(st.count) : 1.0;
  std::string out = fmt::format("\nWhere the time of device {} went{}\n", d.device,
                                per_step ? " (mean of a step)" : " (whole capture)");
  const auto line = [&](double ns, std::string_view title, std::string_view more) {
    const double share = total > 0 ? ns / total : 0;
    out += fmt::format("{:5.1f}% {:<25} {:>9}  {}{}\n", 100 * share,
                       std::string(static_cast<size_t>(share * 25 + 0.5), '#'),
                       format_ns(ns * scale), title, more);
  };
  int64_t small = 0;
  int small_count = 0;
  for (const Line& l : by_size(d.budget)) {
    if (static_cast<double>(l.ns) < kShownShare * total) {
      small += l.ns;
      ++small_count;
      continue;
    }
    const std::string prefix = is_busy(l.leaf) ? "" : "idle: ";
    line(static_cast<double>(l.ns), prefix + std::string(leaf_info(l.leaf).title),
         detail(d, l.leaf));
  }
  if (small_count > 0) line(static_cast<double>(small), fmt::format("{} more", small_count), "");
  out += fmt::format("100.0% {:<25} {:>9}  total; busy {:.1f}%\n", "", format_ns(total * scale),
                     100 * static_cast<double>(d.budget.busy_ns()) / std::max(1.0, total));
  return out;
}

std::string pairs_text(const FixReport& fixes) {
  std::string out;
  for (const Pair& p : fixes.together)
    out += fmt::format("   together: {} and {}, {}: each alone leaves the other in the way\n",
                       fix_info(p.first).title, fix_info(p.second).title,
                       bound_words(p.ceiling, p.speedup, p.low, p.high));
  return out;
}

// Where nothing is promised: what of the time each cause has, of those that leave the kernels as they
// are.
std::string shares_text(const FixReport& fixes, const Analysis& analysis) {
  constexpr double kLeast = 0.03;
  std::vector<std::pair<double, FixKind>> shares;
  for (size_t k = 0; k <= static_cast<size_t>(FixKind::processes); ++k) {
    const auto kind = static_cast<FixKind>(k);
    const double share = attributed_share(kind, analysis, {});
    if (is_outside_kernels(kind) && share >= kLeast) shares.emplace_back(-share, kind);
  }
  std::sort(shares.begin(), shares.end());
  std::string out;
  for (const auto& [share, kind] : shares)
    out += fmt::format("  {:.1f}% of the time is for: {}\n", -100 * share, fix_info(kind).title);
  if (!fixes.possible.empty())
    out +=
        fmt::format("  all of them together: at most {:.2f}x, a device that never stands still\n",
                    fixes.possible.front().high);
  return out;
}

std::string fixes_text(const FixReport& fixes, const Analysis& analysis) {
  std::string out;
  if (!fixes.numbers)
    return "\nNo fixes are ranked: " + fixes.why_not + "\n" + shares_text(fixes, analysis);
  out += fmt::format("\nFixes, each alone (the unchanged replay misses by {:.1f}%)\n",
                     100 * fixes.replay_error);
  if (fixes.dispatch.factor < 1)
    out +=
        fmt::format("  launches and the code around them count {:.0f}% of what was recorded, {}\n",
                    100 * fixes.dispatch.factor,
                    fixes.dispatch.assumed
                        ? "the least that a profiler's cost was seen to leave: here it is hidden"
                        : "so that a step takes what it takes without recording");
  else if (fixes.step_given)
    out +=
        "  --step-ms changes nothing: the recorded steps take no longer, or launches do not bound "
        "them\n";
  if (fixes.worth.empty()) out += fmt::format("  none promises more than {:.2f}x\n", kWorth);
  for (size_t i = 0; i < fixes.worth.size(); ++i) {
    const Fix& f = fixes.worth[i];
    const std::string times =
        f.step_ns > 0 && fixes.whole_steps
            ? fmt::format("   {} -> {} a step", format_ns(fixes.replay_step_ns),
                          format_ns(f.step_ns))
            : "";
    const std::string shared =
        f.shared >= 0.1 ? fmt::format("   [{:.0f}% of it is in 1 already]", 100 * f.shared) : "";
    out += fmt::format("{:2} {}   {}{}{}\n", i + 1, fix_title(f),
                       bound_words(f.ceiling, f.speedup, f.low, f.high), times, shared);
    out += fmt::format("     why  {}\n     try  {}\n", printable(f.evidence), f.action);
    if (!f.caveat.empty()) out += fmt::format("     but  {}\n", f.caveat);
    if (!f.obstacle.empty()) out += fmt::format("     not as it is  {}\n", f.obstacle);
    if (!f.assumes.empty()) out += fmt::format("     if   {}\n", f.assumes);
    if (const std::string hides = hides_words(f); !hides.empty())
      out += fmt::format("     hides  {}\n", hides);
  }
  out += pairs_text(fixes);
  for (const Fix& f : fixes.possible)
    out += fmt::format(
        "Possible, {}: nothing, or up to {:.2f}x\n     why  {}\n     try  {}\n     "
        "but  {}\n     if   {}\n",
        fix_info(f.kind).title, f.high, printable(f.evidence), f.action, f.caveat, f.assumes);
  out += "Not the cause:\n";
  for (const Fix& f : fixes.not_worth)
    out += fmt::format("     {} ({:.2f}x): {}\n", fix_info(f.kind).title, f.speedup,
                       printable(f.evidence));
  return out;
}

std::string kernels_text(const Diagnosis& g) {
  const DeviceAnalysis& d = g.device();
  const DevicePeaks* peaks = device_peaks(d.info.name);
  std::string out = "\nKernels by time\n";
  int64_t sum = 0;
  for (const KernelStat& k : d.kernels) sum += k.total_ns;
  for (size_t i = 0; i < std::min<size_t>(8, d.kernels.size()); ++i) {
    const KernelStat& k = d.kernels[i];
    out += fmt::format(
        "{:5.1f}% {:>9} {:>7}x {:>9} each  {}{}\n",
        100 * static_cast<double>(k.total_ns) / static_cast<double>(std::max<int64_t>(1, sum)),
        format_ns(static_cast<double>(k.total_ns)), k.count,
        format_ns(static_cast<double>(k.total_ns) / static_cast<double>(k.count)),
        g.analysis.shapes ? fmt::format("{:<32} ", kernel_rate(k, peaks)) : "",
        printable(k.name).substr(0, 60));
  }
  if (const std::string note = roofline_note(g, d); !note.empty()) out += "  " + note + "\n";
  if (const std::optional<RunRate> run = run_rate(g.counters))
    out += fmt::format(
        "  the whole run: at most {:.0f} TFLOP/s of 16-bit products and {:.0f} GB/s, both upper "
        "estimates from the GPU's own counts\n",
        run->tflops, run->gb_per_s);
  return d.kernels.empty() ? "" : out;
}

std::string quality_text(const Diagnosis& g) {
  const Analysis& a = g.analysis;
  std::string out = fmt::format("\nCapture: {}, {}; steps: {}", a.source,
                                counted(a.records, "record"), printable(a.steps.rule));
  if (a.steps.found)
    out += fmt::format(", {} left out as warm-up, {} stretches between steps", a.steps.warm_up,
                       a.steps.irregular);
  out += "\n";
  if (a.dropped > 0)
    out += fmt::format("  {} lost when it was recorded\n", counted(a.dropped, "record"));
  if (a.malformed > 0)
    out += fmt::format("  {} left out: contradictory\n", counted(a.malformed, "record"));
  if (g.fixes.unexplained > 0.01)
    out += fmt::format(
        "  waits of issued work that nothing in it explains add up to {:.1f}% of the time\n",
        100 * g.fixes.unexplained);
  if (const CopyRates& r = a.copy_rates; r.known())
    out += fmt::format(
        "  copies of 64 MiB beside nothing else: {:.1f} GB/s to {} and {:.1f} back from pinned "
        "memory, {:.1f} and {:.1f} from pageable\n",
        r.pinned_in, printable(r.device), r.pinned_out, r.pageable_in, r.pageable_out);
  for (const std::string& note : a.notes) out += "  " + printable(note) + "\n";
  if (a.devices.size() > 1) {
    out += "Other devices:";
    for (size_t i = 1; i < a.devices.size(); ++i)
      out += fmt::format(
          " {} busy {:.1f}%;", a.devices[i].device,
          100 * static_cast<double>(a.devices[i].budget.busy_ns()) /
              static_cast<double>(std::max<int64_t>(1, a.devices[i].budget.total_ns())));
    out.back() = '\n';
  }
  return out;
}

}  // namespace

std::string format_ns(double ns) {
  if (ns < 999.5) return fmt::format("{:.0f} ns", ns);
  if (ns < 999.5e3) return fmt::format("{:.3g} us", ns * 1e-3);
  if (ns < 999.5e6) return fmt::format("{:.3g} ms", ns * 1e-6);
  return fmt::format("{:.3f} s", ns * 1e-9);
}

std::string fix_title(const Fix& f) {
  std::string title(fix_info(f.kind).title);
  for (size_t i = 0; i < f.with.size(); ++i)
    title += fmt::format("{}{}", i == 0 ? ", with " : " and ", fix_info(f.with[i]).title);
  return title;
}

std::string bound_words(bool ceiling, double speedup, double low, double high) {
  if (ceiling) return fmt::format("up to {:.2f}x", speedup);
  if (high <= 0) return fmt::format("about {:.2f}x", speedup);
  return fmt::format("about {:.2f}x (an estimate, {:.2f}x to {:.2f}x)", speedup, low, high);
}

std::string hides_words(const Fix& f) {
  const double removed = 1 - 1 / std::max(1.0, f.speedup);
  if (!f.cures || !f.with.empty() || removed < 1.3 * f.own || removed < f.own + 0.05) return "";
  return fmt::format(
      "of {:.0f}% of the time that it takes away {:.0f}% is its own; the rest is waiting for other "
      "causes, which it would only hide",
      100 * removed, 100 * f.own);
}

std::string render_text(const Diagnosis& g) {
  const StepAnalysis& st = g.analysis.steps;
  const DeviceAnalysis& d = g.device();
  std::string out =
      fmt::format("VERDICT  {} ({} confidence)", g.verdict.headline, g.verdict.confidence);
  if (st.found) {
    out += fmt::format("   step {} (median; p10 {}, p90 {})  n={}", format_ns(st.median_ns),
                       format_ns(st.p10_ns), format_ns(st.p90_ns), st.count);
  } else {
    out += fmt::format("   {} seen, no steps", format_ns(static_cast<double>(d.to_ns - d.from_ns)));
  }
  out += fmt::format("   device busy {:.1f}%\n",
                     100 * static_cast<double>(d.budget.busy_ns()) /
                         static_cast<double>(std::max<int64_t>(1, d.budget.total_ns())));
  out += fmt::format("why      {}\nnext     {}\n", printable(g.verdict.why),
                     printable(g.verdict.next));
  constexpr double kSeen = 1.1;  // times: smaller differences are chance
  const bool recorder = g.analysis.slowdown >= 1.01;
  if (recorder) {
    out += fmt::format("tool     recording made the program {:.2f}x slower", g.analysis.slowdown);
    if (st.found)
      out += fmt::format("; without it a step takes about {}",
                         format_ns(st.median_ns / g.analysis.slowdown));
    out += "; the fixes are reckoned without it";
  }
  const bool bounded = g.analysis.slowdown_by_pace > kSeen * g.analysis.slowdown;
  if (bounded)
    out += fmt::format(
        "{}by its pace just before {:.2f}x, more than recording can have cost: chance, or another "
        "part of it",
        recorder ? "; " : "tool     ", g.analysis.slowdown_by_pace);
  if (recorder || bounded) out += "\n";
  if (st.drift > kDrifts)
    out += fmt::format(
        "DRIFT    the step time grew {:.2f}x from the first to the last quarter: search for "
        "something "
        "that grows in the loop (a list of losses, a cache, memory)\n",
        st.drift);
  if (const ClockHold clock = clock_hold(g.counters); clock.speed < 0.97)
    out += "CLOCKS   " + clock.evidence + "\n";
  if (const std::string shared = shared_gpu_words(g); !shared.empty())
    out += "SHARED   " + shared + "\n";
  if (const std::string drift = memory_drift(g); !drift.empty()) out += "DRIFT    " + drift + "\n";
  out += ranks_text(g);
  out += budget_text(g);
  out += host_lines_text(g.device());
  out += host_uses_text(g);
  out += fixes_text(g.fixes, g.analysis);
  out += kernels_text(g);
  out += memory_text(g);
  out += counters_text(g.counters, g.unrecorded_step_ns());
  out += quality_text(g);
  return out;
}

}  // namespace saturate::observe
