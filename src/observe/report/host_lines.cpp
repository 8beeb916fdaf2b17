// SPDX-License-Identifier: Apache-2.0
#include "observe/report/host_lines.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

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

// What a line waits for itself and its part of the backward pass. A line that runs the backward pass waits for what other
// threads do in it, so that the two overlap.
double with_backward(const HostLine& l) { return std::min(1.0, l.share + l.backward); }

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
                   {"backward_share", l.backward},
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
          {"model_calls", lines_json(h.calls)},
          {"wait_samples", h.wait_samples},
          {"waits", lines_json(h.waits)},
          {"worker_processes", h.worker_processes},
          {"worker_samples", h.worker_samples},
          {"workers", lines_json(h.workers)}};
}

namespace {

// The lines that hold what the verdict is about, and how a sentence on the first begins.
struct Named {
  const std::vector<HostLine>* lines;
  int64_t samples;
  const char* what;

  // What the first of them holds, surely: of few samples nearly all must agree.
  bool hold_most() const {
    if (lines->empty()) return false;
    const HostLine& first = lines->front();
    const double share = std::max(with_backward(first), first.function_share);
    if (samples >= kFewSamples) return share >= kNamedShare;
    return surely(share, static_cast<double>(samples)) >= kNamedShare;
  }
  // The lower end of Wilson's interval, of two standard deviations.
  static double surely(double share, double n) {
    constexpr double kZ2 = 4;
    const double middle = share + kZ2 / (2 * n);
    const double half = std::sqrt(kZ2 * (share * (1 - share) + kZ2 / (4 * n)) / n);
    return (middle - half) / (1 + kZ2 / n);
  }
};

bool is_product_fix(FixKind kind) { return kind == FixKind::precision || kind == FixKind::mixed; }

// Whether the host waits longer for the interpreter's lock than for anything else.
bool waits_for_lock(const DeviceAnalysis& d) {
  const int64_t gil = d.budget[Leaf::gil];
  for (size_t l = kBusyLeaves; l < kLeaves; ++l)
    if (static_cast<Leaf>(l) != Leaf::gil && d.budget.ns[l] > gil) return false;
  return gil > 0;
}

// The first that names a line: of what the verdict is about, then of what the device waits for.
std::optional<Named> lines_of_verdict(const Diagnosis& g) {
  constexpr double kKnown = 0.5;  // of the whole: shares are of that part
  const DeviceAnalysis& d = g.device();
  const HostLines& h = d.host_lines;
  const std::string& id = g.verdict.id;
  std::vector<Named> all;
  const auto knows = [](const WorkLines& w) {
    // Of less than half of it, a line that holds enough of the whole.
    const bool enough = !w.lines.empty() && w.known * with_backward(w.lines.front()) >= kNamedShare;
    return w.known >= kKnown || enough;
  };
  const auto add_work = [&](const WorkLines& w, const char* what) {
    if (knows(w)) all.push_back({&w.lines, w.samples, what});
  };
  if (id == "host_bound" && waits_for_lock(d))
    all.push_back({&h.holders, h.holder_samples, "of what holds the interpreter's lock meanwhile"});
  // What a host does for long is no launching: a line of a model or of its backward pass is not it.
  if (id == "host_bound" && !h.long_lines.empty() && !h.long_lines.front().runs_backward &&
      static_cast<double>(h.long_samples) >= kNamedShare * static_cast<double>(h.samples))
    all.push_back({&h.long_lines, h.long_samples, "of the host's stretches of 1 ms and more"});
  if (id == "sync_bound") all.push_back({&h.waits, h.wait_samples, "of the waits for the device"});
  if (id == "load_bound") all.push_back({&h.compiling, h.compiling_samples, "of the compiling"});
  if (id == "copy_bound") add_work(d.copy_lines, "of the copies");
  if (id == "communication_bound" || id == "imbalance_bound")
    add_work(d.communication_lines, "of the communication");
  if (id == "gpu_bound") {
    const auto first = std::find_if(g.fixes.worth.begin(), g.fixes.worth.end(), [](const Fix& f) {
      return f.cures && !is_outside_kernels(f.kind);
    });
    if (g.fixes.numbers && first != g.fixes.worth.end() && is_product_fix(first->kind)) {
      // Other types are asked for where a model is called, and not in each of its layers.
      if (knows(d.product_lines))
        all.push_back({&d.product_lines.calls, d.product_lines.samples, "of these products' time"});
      add_work(d.product_lines, "of these products' time");
    }
    if (g.fixes.numbers && first != g.fixes.worth.end()) {
      if (first->kind == FixKind::product_types)
        add_work(d.odd_product_lines, "of these products' time");
      if (first->kind == FixKind::device_copies) add_work(d.device_copy_lines, "of these copies");
      if (first->kind == FixKind::kernel_copies) add_work(d.kernel_copy_lines, "of these copies");
      if (first->kind == FixKind::one_attention) add_work(d.softmax_lines, "of the softmax");
      if (first->kind == FixKind::float64) add_work(d.double_lines, "of what computes in float64");
      if (first->kind == FixKind::transforms) add_work(d.transform_lines, "of these transforms");
      if (first->kind == FixKind::sorts) add_work(d.sort_lines, "of the sorting");
    }
    add_work(d.work_lines, "of the device's work");
  } else if (id == "growth_bound" || h.idle_ns >= 0.1 * static_cast<double>(d.budget.total_ns())) {
    // A backward pass is made by the forward pass that it follows: that is the line to change.
    const char* what = "of what it waits for";
    if (!h.lines.empty() && h.lines.front().runs_backward)
      all.push_back({&h.calls, h.samples, what});
    all.push_back({&h.lines, h.samples, what});
    all.push_back({&h.calls, h.samples, what});
  }
  for (const Named& named : all)
    if (named.samples > 0 && named.hold_most()) return named;
  return std::nullopt;
}

}  // namespace

void name_line(Diagnosis& g) {
  const std::optional<Named> named = lines_of_verdict(g);
  if (!named) return;
  const HostLine& first = named->lines->front();
  const double share = with_backward(first);
  g.verdict.line = first;
  if (share < kNamedShare)
    g.verdict.why +=
        fmt::format("; {:.0f}% {} is in {} of {}, most of it {}", 100 * first.function_share,
                    named->what, first.at.function, first.at.file, line_words(first));
  else
    g.verdict.why +=
        fmt::format("; {:.0f}% {} is {}{}", 100 * share, named->what, line_words(first),
                    first.backward > 0.01 ? ", with its part of the backward pass" : "");
  if (named->lines == &g.device().host_lines.holders)
    g.verdict.next =
        "move what that thread does in Python to a process of its own, or to native code that "
        "gives "
        "the interpreter's lock back";
  if (first.holder.known())
    g.verdict.why += fmt::format(", which waits for the interpreter's lock while {} is in {}",
                                 first.holder_thread, what_and_where(first.holder));
  if (!first.remark.empty()) g.verdict.why += ": " + first.remark;
  const HostLines& idle = g.device().host_lines;
  if (named->lines == &idle.waits && idle.samples >= kFewSamples && !idle.lines.empty() &&
      idle.lines.front().share >= kNamedShare)
    g.verdict.why += fmt::format("; the device then waits {:.0f}% of its idle time for {}",
                                 100 * idle.lines.front().share, line_words(idle.lines.front()));
  const HostLine* worker = busiest_worker(g.device().host_lines);
  if (!first.wait.empty() && !first.holder.known() && worker != nullptr &&
      named->lines == &g.device().host_lines.lines && worker->share >= kNamedShare)
    g.verdict.why +=
        fmt::format("; meanwhile the processes that it started are {:.0f}% of the time in {}",
                    100 * worker->share, line_words(*worker));
}

Json named_line_json(const Verdict& v) {
  if (!v.line) return nullptr;
  return {{"at", place_json(v.line->at)},
          {"called_from", place_json(v.line->caller)},
          {"share", v.line->share},
          {"with_backward_pass", with_backward(*v.line)},
          {"function_share", v.line->function_share},
          {"lock_holder", place_json(v.line->holder)},
          {"lock_holder_thread", v.line->holder_thread},
          {"remark", v.line->remark}};
}

Json work_lines_json(const WorkLines& w) {
  if (w.samples == 0) return nullptr;
  return {{"ns", w.ns}, {"known", w.known}, {"samples", w.samples}, {"lines", lines_json(w.lines)}};
}

}  // namespace saturate::observe
