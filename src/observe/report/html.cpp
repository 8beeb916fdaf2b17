// SPDX-License-Identifier: Apache-2.0
#include "observe/report/html.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "base/counted.h"
#include "base/html.h"
#include "base/svg.h"
#include "base/text.h"
#include "observe/report/counters_rows.h"
#include "observe/report/host_lines.h"
#include "observe/report/host_uses.h"
#include "observe/report/html_charts.h"
#include "observe/report/memory.h"
#include "observe/report/ranks.h"
#include "observe/report/rooflines.h"
#include "observe/report/shared_gpu.h"
#include "observe/report/text.h"

namespace saturate::observe {
namespace {

double percent(int64_t part, int64_t whole) {
  return whole > 0 ? 100 * static_cast<double>(part) / static_cast<double>(whole) : 0;
}

std::string verdict_html(const Diagnosis& g) {
  const StepAnalysis& st = g.analysis.steps;
  const DeviceAnalysis& d = g.device();
  std::string facts =
      fmt::format("device busy {:.1f}%", percent(d.budget.busy_ns(), d.budget.total_ns()));
  if (st.found)
    facts += fmt::format(", step {} (median; p10 {}, p90 {}), {} steps", format_ns(st.median_ns),
                         format_ns(st.p10_ns), format_ns(st.p90_ns), st.count);
  std::string drift;
  if (st.drift > kDrifts)
    drift = fmt::format(
        "<p><b>Drift</b>: the step time grew {:.2f}x from the first to the last quarter.</p>",
        st.drift);
  if (const std::string shared = shared_gpu_words(g); !shared.empty())
    drift += "<p><b>Shared</b>: " + escape_html(shared) + ".</p>";
  return fmt::format(
      "<div class=\"verdict\"><h1>{}</h1><p>{} confidence; {}</p><p><b>Why</b> "
      "{}</p><p><b>Next</b> {}</p>{}</div>\n",
      escape_html(g.verdict.headline), g.verdict.confidence, facts, escape_html(g.verdict.why),
      escape_html(g.verdict.next), drift);
}

// An overlay: the time is in the budget already.
std::string clocks_html(const Counters& counters) {
  std::string html;
  for (const auto& [gpu, c] : counters.clocks) {
    if (c.held == 0) continue;
    html += fmt::format("<p>GPU {}: {:.0f} MHz on average of {:.0f}</p>\n<table class=\"numbers\">",
                        gpu, c.mean_mhz, c.full_mhz);
    for (const auto& [bit, n] : c.by_reason) {
      const double share = 100.0 * n / std::max(1, c.samples);
      html += fmt::format(
          "<tr><td>{:.0f}%</td><td class=\"l\">{}</td><td>{}</td></tr>\n", share,
          clock_reason_names(bit),
          Svg(0, 0, 300, 12, "share of the samples").rect(0, 0, 3 * share, 12, "#c0392b").str());
    }
    html += "</table>\n";
  }
  if (html.empty()) return "";
  return "<h2>Clocks held down</h2>\n<p class=\"note\">Share of the samples with work in which "
         "each reason held the clock; it lies over the budget, which it is no part of.</p>\n" +
         html;
}

std::string budget_html(const Diagnosis& g, const DeviceAnalysis& d) {
  std::string html = fmt::format("<h2>Where the time of device {}{} went</h2>\n", d.device,
                                 d.info.name.empty() ? "" : " (" + escape_html(d.info.name) + ")");
  html += budget_bar(d.budget) + legend();
  std::vector<std::pair<int64_t, Leaf>> leaves;
  for (size_t l = 0; l < kLeaves; ++l) {
    if (d.budget.ns[l] > 0) leaves.emplace_back(d.budget.ns[l], static_cast<Leaf>(l));
  }
  std::stable_sort(leaves.begin(), leaves.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  const StepAnalysis& st = g.analysis.steps;
  const bool per_step = st.found && st.irregular == 0 && st.count > 0;
  const double scale = per_step ? 1.0 / static_cast<double>(st.count) : 1.0;
  html += fmt::format("<table class=\"numbers\"><tr><th>share</th><th>{}</th><th>what</th></tr>\n",
                      per_step ? "a step" : "time");
  for (const auto& [ns, leaf] : leaves) {
    const LeafInfo& info = leaf_info(leaf);
    html += fmt::format(
        "<tr><td>{:.2f}%</td><td>{}</td><td>{}{} <span class=\"meaning\">{}</span></td></tr>\n",
        percent(ns, d.budget.total_ns()), format_ns(static_cast<double>(ns) * scale),
        is_busy(leaf) ? "" : "idle: ", info.title, info.meaning);
  }
  html += fmt::format("<tr><td>100.00%</td><td>{}</td><td>total</td></tr></table>\n",
                      format_ns(static_cast<double>(d.budget.total_ns()) * scale));
  return html + "<h2>Over the capture</h2>\n" + timeline_chart(d);
}

std::string fixes_html(const FixReport& r) {
  std::string html = "<h2>Fixes, each alone</h2>\n";
  if (!r.numbers) return html + "<p>None is ranked: " + escape_html(r.why_not) + ".</p>\n";
  html += fmt::format(
      "<p class=\"note\">From replaying the capture with the change applied; the "
      "unchanged "
      "replay misses by {:.1f}%. They do not add up.</p>\n<ol class=\"fixes\">\n",
      100 * r.replay_error);
  for (const Fix& f : r.worth) {
    html += fmt::format("<li><b>{}</b>, {}", fix_title(f),
                        bound_words(f.ceiling, f.speedup, f.low, f.high));
    if (f.step_ns > 0 && r.whole_steps)
      html += fmt::format(" ({} to {} a step)", format_ns(r.replay_step_ns), format_ns(f.step_ns));
    if (f.shared >= 0.1)
      html += fmt::format("; {:.0f}% of it is in the first already", 100 * f.shared);
    html +=
        fmt::format("<br>{}<br><code>{}</code>", escape_html(f.evidence), escape_html(f.action));
    for (const std::string& note : {f.caveat, f.obstacle, f.assumes, hides_words(f)})
      if (!note.empty()) html += "<br><span class=\"note\">" + escape_html(note) + "</span>";
    html += "</li>\n";
  }
  html += "</ol>\n";
  for (const Pair& p : r.together)
    html += fmt::format(
        "<p>Together: <b>{}</b> and <b>{}</b>, {}; each alone leaves the other in the way.</p>\n",
        fix_info(p.first).title, fix_info(p.second).title,
        bound_words(p.ceiling, p.speedup, p.low, p.high));
  if (r.worth.empty()) html += fmt::format("<p>None promises more than {:.2f}x.</p>\n", kWorth);
  for (const Fix& f : r.possible)
    html += fmt::format(
        "<p>Possible, {}: nothing, or up to {:.2f}x.<br>{}<br><code>{}</code><br>"
        "<span class=\"note\">{}; {}</span></p>\n",
        fix_info(f.kind).title, f.high, escape_html(f.evidence), escape_html(f.action),
        escape_html(f.caveat), escape_html(f.assumes));
  html += "<details><summary>Not the cause</summary><ul>\n";
  for (const Fix& f : r.not_worth)
    html += fmt::format("<li>{} ({:.2f}x): {}</li>\n", fix_info(f.kind).title, f.speedup,
                        escape_html(f.evidence));
  return html + "</ul></details>\n";
}

std::string kernels_html(const Diagnosis& g, const DeviceAnalysis& d) {
  if (d.kernels.empty()) return "";
  constexpr size_t kShown = 40;
  const DevicePeaks* peaks = device_peaks(d.info.name);
  int64_t sum = 0;
  for (const KernelStat& k : d.kernels) sum += k.total_ns;
  std::string html =
      "<h2>Kernels</h2>\n<table "
      "class=\"numbers\"><tr><th>share</th><th>time</th><th>count</th><th>mean</"
      "th><th>longest</th><th>blocks</th>"
      "<th>threads</th><th>rate</th><th>of roof</th><th class=\"l\">kind</th><th>name</th></tr>\n";
  for (size_t i = 0; i < std::min(kShown, d.kernels.size()); ++i) {
    const KernelStat& k = d.kernels[i];
    const std::string rate = kernel_speed(k, peaks);
    const double share = roofline(k, peaks).share;
    html += fmt::format(
        "<tr><td>{:.1f}%</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</"
        "td><td>{}</td><td>{}</td>"
        "<td class=\"l\">{}</td><td class=\"name\">{}</td></tr>\n",
        percent(k.total_ns, sum), format_ns(static_cast<double>(k.total_ns)), k.count,
        format_ns(static_cast<double>(k.total_ns) / static_cast<double>(k.count)),
        format_ns(static_cast<double>(k.longest_ns)), k.blocks, k.block_threads,
        rate.empty() ? "-" : rate, share > 0 ? fmt::format("{:.0f}%", 100 * share) : "-",
        leaf_info(k.leaf).title, escape_html(k.name.substr(0, 200)));
  }
  html += "</table>\n";
  if (d.kernels.size() > kShown)
    html += fmt::format("<p class=\"note\">and {} more</p>\n", d.kernels.size() - kShown);
  if (const std::string note = roofline_note(g, d); !note.empty())
    html += "<p class=\"note\">" + note + "</p>\n";
  return html;
}

std::string copies_html(const DeviceAnalysis& d) {
  if (d.copies.empty()) return "";
  const char* kinds[] = {"unknown", "host to device", "device to host", "on the device",
                         "between devices"};
  const char* memories[] = {"", "pageable", "pinned"};
  std::string html =
      "<h2>Copies</h2>\n<table "
      "class=\"numbers\"><tr><th>count</th><th>bytes</th><th>time</th><th>GB/s</th><th>of "
      "the link</th><th>below "
      "64 KiB</th><th>what</th></tr>\n";
  const DevicePeaks* peaks = device_peaks(d.info.name);
  for (const auto& [key, c] : d.copies) {
    const double rate =
        static_cast<double>(c.bytes) / static_cast<double>(std::max<int64_t>(1, c.total_ns));
    const double peak = copy_peak(key.first, peaks);
    html += fmt::format(
        "<tr><td>{}</td><td>{}</td><td>{}</td><td>{:.1f}</td><td>{}</td><td>{}</td><td>{} "
        "{}</td></tr>\n",
        c.count, format_bytes(static_cast<double>(c.bytes)),
        format_ns(static_cast<double>(c.total_ns)), rate,
        peak > 0 ? fmt::format("{:.0f}%", 100 * rate / peak) : "-", c.small,
        kinds[static_cast<size_t>(key.first)], memories[static_cast<size_t>(key.second)]);
  }
  return html + "</table>\n";
}

std::string counters_html(const Counters& counters, double step_ns) {
  if (counters.empty()) return "";
  std::string html = fmt::format(
      "<h2>Seen from outside</h2>\n<p class=\"note\">{:.1f} s; mean and range of samples.</p>"
      "<table class=\"numbers\"><tr><th class=\"l\">counter</th><th>mean</th><th>range</th><th>a "
      "step</th>"
      "<th>what it says</th></tr>\n",
      counters.seconds);
  int group = -2;
  for (const CounterRow& row : counter_rows(counters, step_ns)) {
    if (row.gpu != group)
      html += fmt::format("<tr><td class=\"l\"><b>{}</b></td></tr>\n",
                          escape_html(counter_group(counters, row.gpu)));
    group = row.gpu;
    html += fmt::format(
        "<tr><td class=\"l\">{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>\n", row.title,
        row.mean, row.range, row.per_step, escape_html(row.meaning));
  }
  return html + "</table>\n";
}

std::string capture_html(const Diagnosis& g) {
  const Analysis& a = g.analysis;
  std::string html = fmt::format(
      "<h2>Capture</h2>\n<p>{}, {}. Steps: {}, {} left out as warm-up, {} stretches "
      "between them.</p>\n",
      escape_html(a.source), counted(a.records, "record"), escape_html(a.steps.rule),
      a.steps.warm_up, a.steps.irregular);
  if (a.dropped > 0)
    html += fmt::format("<p>{} lost when it was recorded.</p>\n", counted(a.dropped, "record"));
  if (a.malformed > 0)
    html += fmt::format("<p>{} left out: contradictory.</p>\n", counted(a.malformed, "record"));
  for (const std::string& note : a.notes) html += "<p>" + escape_html(note) + "</p>\n";
  return html;
}

}  // namespace

std::string render_html(const Diagnosis& g) {
  std::string html = "<p class=\"note\">saturate doctor: " + escape_html(g.file) + "</p>\n";
  html +=
      verdict_html(g) + ranks_html(g) + budget_html(g, g.device()) + host_lines_html(g.device());
  const std::string steps = step_chart(g.analysis.steps);
  if (!steps.empty()) html += "<h2>Steps</h2>\n" + steps;
  html += host_uses_html(g) + memory_html(g) + clocks_html(g.counters);
  html += fixes_html(g.fixes) + kernels_html(g, g.device()) + roofline_html(g) +
          copies_html(g.device());
  for (size_t i = 1; i < g.analysis.devices.size(); ++i)
    html += budget_html(g, g.analysis.devices[i]);
  html += counters_html(g.counters, g.unrecorded_step_ns()) + capture_html(g);
  return html_page(g.file + ": " + g.verdict.headline, html, PageScript::none);
}

}  // namespace saturate::observe
