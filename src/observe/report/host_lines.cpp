// SPDX-License-Identifier: Apache-2.0
#include "observe/report/host_lines.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/html.h"
#include "base/printable.h"
#include "observe/report/text.h"

namespace saturate::observe {
namespace {

constexpr size_t kShown = 6;
constexpr double kLeastShare = 0.02;
constexpr double kNamedShare = 1.0 / 3;
constexpr double kNativeShare = 0.2;  // of a line's samples: a smaller part explains little

// "np.sort(x) in dataset.py:41 (Dataset.__getitem__)"
std::string what_and_where(const CodePlace& p) {
  if (p.text.empty()) return fmt::format("{}() in {}", p.function, p.where());
  return fmt::format("{} in {} ({})", p.text, p.where(), p.function);
}

bool same_place(const CodePlace& a, const CodePlace& b) {
  return a.file == b.file && a.line == b.line && a.function == b.function;
}

// The line with what called it and what it called.
std::string line_words(const HostLine& l) {
  std::string out = what_and_where(l.at);
  if (l.caller.known())
    out += fmt::format(", called from {}{}", l.via.empty() ? "" : l.via + " at ", l.caller.where());
  else if (!l.via.empty())
    out += ", in " + l.via;
  if (!same_place(l.at, l.innermost))
    out += fmt::format("; inside {}() in {}", l.innermost.function, l.innermost.where());
  if (l.native.known() && l.native_share >= kNativeShare)
    out += fmt::format("; {:.0f}% of it in native code, {} of {}", 100 * l.native_share,
                       l.native.function, l.native.file);
  return out;
}

std::string reason_words(const HostLine& l) {
  std::string out = l.thread;
  if (l.holder.known())
    out += fmt::format(" waits for the interpreter's lock, which {} holds: {}", l.holder_thread,
                       what_and_where(l.holder));
  else if (!l.wait.empty())
    out += " waits: " + l.wait;
  if (!l.remark.empty()) out += "; " + l.remark;
  return out;
}

size_t shown(const std::vector<HostLine>& lines) {
  size_t n = 0;
  while (n < std::min(kShown, lines.size()) && (n == 0 || lines[n].share >= kLeastShare)) ++n;
  return n;
}

std::string heading(const DeviceAnalysis& d) {
  return fmt::format(
      "Lines of the program that device {} waited for ({} of idle time, {} samples{})", d.device,
      format_ns(d.host_lines.idle_ns), d.host_lines.samples,
      d.host_lines.samples < kFewSamples ? ": too few to rely on" : "");
}

std::string workers_heading(const HostLines& h) {
  return fmt::format("meanwhile in the {} {} that it started ({} samples)", h.worker_processes,
                     h.worker_processes == 1 ? "process" : "processes", h.worker_samples);
}

Json place_json(const CodePlace& p) {
  if (!p.known()) return nullptr;
  return {{"function", printable(p.function)},
          {"file", printable(p.file)},
          {"line", p.line},
          {"text", printable(p.text)}};
}

Json lines_json(const std::vector<HostLine>& lines) {
  constexpr size_t kMost = 40;
  Json out = Json::Array{};
  for (size_t i = 0; i < std::min(kMost, lines.size()); ++i) {
    const HostLine& l = lines[i];
    out.push_back({{"share", l.share},
                   {"ns", l.ns},
                   {"samples", l.samples},
                   {"leaf", leaf_info(l.leaf).id},
                   {"at", place_json(l.at)},
                   {"innermost", place_json(l.innermost)},
                   {"called_from", place_json(l.caller)},
                   {"native", place_json(l.native)},
                   {"native_share", l.native_share},
                   {"via", l.via},
                   {"thread", l.thread},
                   {"waits_in", l.wait},
                   {"lock_holder", place_json(l.holder)},
                   {"lock_holder_thread", l.holder_thread},
                   {"remark", l.remark}});
  }
  return out;
}

// What a worker does when it has work.
const HostLine* busiest_worker(const HostLines& h) {
  for (const HostLine& l : h.workers)
    if (l.remark.empty()) return &l;
  return nullptr;
}

}  // namespace

std::string host_lines_text(const DeviceAnalysis& d) {
  const HostLines& h = d.host_lines;
  if (h.empty()) return "";
  std::string out = "\n" + heading(d) + "\n";
  const auto lines = [&](const std::vector<HostLine>& all) {
    for (size_t i = 0; i < shown(all); ++i)
      out += fmt::format("{:5.1f}%  {}\n        {}\n", 100 * all[i].share,
                         printable(line_words(all[i])), printable(reason_words(all[i])));
  };
  lines(h.lines);
  if (h.workers.empty()) return out;
  out += "  " + workers_heading(h) + "\n";
  lines(h.workers);
  return out;
}

std::string host_lines_html(const DeviceAnalysis& d) {
  const HostLines& h = d.host_lines;
  if (h.empty()) return "";
  std::string html = "<h2>" + escape_html(heading(d)) + "</h2>\n";
  const auto table = [&](const std::vector<HostLine>& all) {
    html +=
        "<table class=\"numbers\"><tr><th>share</th><th>time</th><th class=\"l\">line</th></tr>\n";
    for (size_t i = 0; i < shown(all); ++i)
      html += fmt::format(
          "<tr><td>{:.1f}%</td><td>{}</td><td class=\"l\">{}<br><span class=\"meaning\">{}</span>"
          "</td></tr>\n",
          100 * all[i].share, all[i].ns > 0 ? format_ns(all[i].ns) : "-",
          escape_html(line_words(all[i])), escape_html(reason_words(all[i])));
    html += "</table>\n";
  };
  table(h.lines);
  if (h.workers.empty()) return html;
  html += "<p>" + escape_html(workers_heading(h)) + "</p>\n";
  table(h.workers);
  return html;
}

Json host_lines_json(const HostLines& h) {
  if (h.empty()) return nullptr;
  return {{"idle_ns", h.idle_ns},
          {"samples", h.samples},
          {"lines", lines_json(h.lines)},
          {"worker_processes", h.worker_processes},
          {"worker_samples", h.worker_samples},
          {"workers", lines_json(h.workers)}};
}

void name_line(Diagnosis& g) {
  const DeviceAnalysis& d = g.device();
  const HostLines& h = d.host_lines;
  if (g.verdict.id == "gpu_bound" || h.samples < kFewSamples || h.lines.empty() ||
      h.idle_ns < 0.1 * static_cast<double>(d.budget.total_ns()))
    return;
  const HostLine& first = h.lines.front();
  if (first.share < kNamedShare) return;
  g.verdict.why +=
      fmt::format("; {:.0f}% of what it waits for is {}", 100 * first.share, line_words(first));
  if (first.holder.known())
    g.verdict.why += fmt::format(", which waits for the interpreter's lock while {} is in {}",
                                 first.holder_thread, what_and_where(first.holder));
  if (!first.remark.empty()) g.verdict.why += ": " + first.remark;
  const HostLine* worker = busiest_worker(h);
  if (!first.wait.empty() && !first.holder.known() && worker != nullptr &&
      worker->share >= kNamedShare)
    g.verdict.why +=
        fmt::format("; meanwhile the processes that it started are {:.0f}% of the time in {}",
                    100 * worker->share, line_words(*worker));
}

}  // namespace saturate::observe
