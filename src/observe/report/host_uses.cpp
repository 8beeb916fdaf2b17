// SPDX-License-Identifier: Apache-2.0
#include "observe/report/host_uses.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "base/html.h"
#include "base/text.h"
#include "observe/report/text.h"

namespace saturate::observe {
namespace {

constexpr size_t kShown = 8;
constexpr double kLeastIdle = 0.01;   // of the device's time
constexpr double kLeastBeside = 0.2;  // of the time that is waited
constexpr double kMostly = 0.5;
constexpr double kLeastWaited = 0.05;      // of the run, summed over threads
constexpr double kLeastBytes = 256 << 20;  // from the storage, or written

struct Shown {
  const HostUse* use;
  double idle = 0;  // share of the device's time in which the launching thread itself waited for it
  double beside = 0;  // share of the time it waited for others in which one of them waited for this
};

bool is_named(const HostUse& u, const std::string& name) {
  return name == u.name || (!u.example.empty() && name == u.example);
}

double share(int64_t part, int64_t whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0;
}

bool of_kind(SpanKind kind, Leaf leaf) {
  return (kind == SpanKind::file_read && (leaf == Leaf::file_read || leaf == Leaf::loader)) ||
         (kind == SpanKind::file_write && leaf == Leaf::file_write) ||
         (kind == SpanKind::network && (leaf == Leaf::network || leaf == Leaf::loader)) ||
         (kind == SpanKind::lock && leaf == Leaf::lock);
}

std::vector<Shown> shown(const Diagnosis& g) {
  std::vector<Shown> all;
  if (g.analysis.devices.empty()) return all;
  const DeviceAnalysis& d = g.device();
  const int64_t total = d.budget.total_ns();
  int64_t first = INT64_MAX, last = INT64_MIN;
  for (const HostUse& u : g.analysis.host_uses) {
    first = std::min(first, u.first_ns);
    last = std::max(last, u.last_ns);
  }
  for (const HostUse& u : g.analysis.host_uses) {
    int64_t idle = 0, beside = 0;
    for (const auto& [key, time] : d.evidence)
      if (of_kind(u.kind, key.first) && is_named(u, key.second)) idle += time.ns;
    for (const auto& [key, ns] : d.beside)
      if (key.first == u.kind && is_named(u, key.second)) beside += ns;
    Shown s{&u, share(idle, total), std::min(1.0, share(beside, d.waited_ns))};
    // Of a program that hardly waits it says nothing who else waits meanwhile.
    if (share(d.waited_ns, total) < kLeastIdle) s.beside = 0;
    const auto bytes =
        static_cast<double>(u.kind == SpanKind::file_write ? u.bytes : u.storage_bytes);
    if (s.idle >= kLeastIdle || s.beside >= kLeastBeside || bytes >= kLeastBytes ||
        (u.kind != SpanKind::network && share(u.waited_ns, last - first) >= kLeastWaited))
      all.push_back(s);
  }
  const double waited = share(d.waited_ns, total);
  std::stable_sort(all.begin(), all.end(), [&](const Shown& a, const Shown& b) {
    const double x = a.idle + waited * a.beside, y = b.idle + waited * b.beside;
    return x != y ? x > y : a.use->waited_ns > b.use->waited_ns;
  });
  if (all.size() > kShown) all.resize(kShown);
  return all;
}

std::string threads(const HostUse& u) {
  if (u.threads == 0) return "";
  return u.threads == 1 ? " by thread " + u.thread
                        : fmt::format(" by {} threads, most by {}", u.threads, u.thread);
}

double seconds(int64_t ns) { return 1e-9 * static_cast<double>(ns); }

std::string time_text(double ns) {
  return ns < 999.5e6 ? format_ns(ns) : fmt::format("{:.3g} s", 1e-9 * ns);
}

// "/data/train.bin read: 5.4 GB, 180 MB/s, ..."
std::string what(const HostUse& u) {
  std::string of = u.name;
  if (u.files > 1) of += fmt::format(" ({} files, first {})", u.files, u.example);
  std::string out;
  const double length = seconds(u.last_ns - u.first_ns);
  switch (u.kind) {
    case SpanKind::file_read:
      out = of + " read";
      if (u.bytes > 0) out += fmt::format(": {}", format_bytes(static_cast<double>(u.bytes)));
      if (u.bytes > 0 && length >= 0.5)
        out += fmt::format(" at {}/s", format_bytes(static_cast<double>(u.bytes) / length));
      out += threads(u);
      if (u.bytes > 0 && !u.in_memory)
        out += fmt::format(", {:.0f}% of it not in the page cache",
                           100 * std::min(1.0, share(u.storage_bytes, u.bytes)));
      break;
    case SpanKind::file_write:
      out = of + " written";
      if (u.episodes > 1)
        out += fmt::format(
            ": {} times, every {:.2g} s, {} and {} each", u.episodes,
            seconds(u.last_start_ns - u.first_ns) / static_cast<double>(u.episodes - 1),
            format_bytes(share(u.bytes, u.episodes)), time_text(share(u.waited_ns, u.episodes)));
      else
        out += fmt::format(": {}", format_bytes(static_cast<double>(u.bytes)));
      out += threads(u);
      break;
    case SpanKind::network:
      out = fmt::format("network, {}: waited for{}", of, threads(u));
      break;
    default:
      out = fmt::format("lock {}: waited for{}", of, threads(u));
  }
  if (u.waited_ns > 0 && (u.kind != SpanKind::file_write || u.episodes == 1))
    out += fmt::format(", {} in all", time_text(static_cast<double>(u.waited_ns)));
  if (!u.storage.empty())
    out += fmt::format(" [{}{}]", u.storage,
                       u.over_network ? ", over the network"
                       : u.in_memory  ? ", in memory"
                                      : "");
  return printable(out);
}

std::string cost(const Shown& s, const Diagnosis& g) {
  std::string out;
  if (s.idle >= kLeastIdle)
    out += fmt::format("; the device waits for this {:.1f}% of the time", 100 * s.idle);
  if (s.beside >= kLeastBeside)
    out += fmt::format(
        "; in {:.0f}% of the time that the launching thread waits for data or another thread, one "
        "is in this{}",
        100 * s.beside,
        s.beside >= kMostly && g.device().budget[Leaf::loader] > 0 ? ": input waits for it" : "");
  return out;
}

}  // namespace

std::string main_host_use(const Diagnosis& g) {
  const std::vector<Shown> all = shown(g);
  if (all.empty() || g.verdict.cause_ns <= 0) return "";
  const Shown& s = all.front();
  const DeviceAnalysis& d = g.device();
  const double wall = static_cast<double>(d.budget.total_ns());
  const double step = g.analysis.steps.found ? g.analysis.steps.mean_ns : wall;
  const double cause = g.verdict.cause_ns / std::max(1.0, step);
  const bool waits_for_others = g.verdict.id == "input_bound" || g.verdict.id == "host_bound";
  if (s.idle < kMostly * cause && !(waits_for_others && s.beside >= kMostly)) return "";
  return what(*s.use) + cost(s, g);
}

std::string host_uses_text(const Diagnosis& g) {
  std::string out;
  for (const Shown& s : shown(g)) out += "  " + what(*s.use) + cost(s, g) + "\n";
  return out.empty() ? "" : "\nDisk, network and locks (whole run, by samples of threads)\n" + out;
}

std::string host_uses_html(const Diagnosis& g) {
  std::string html;
  for (const Shown& s : shown(g))
    html += "<li>" + escape_html(what(*s.use) + cost(s, g)) + "</li>\n";
  return html.empty() ? ""
                      : "<h2>Disk, network and locks</h2>\n<p class=\"note\">Of the whole run, by "
                        "samples of its threads.</p>\n<ul>\n" +
                            html + "</ul>\n";
}

Json host_uses_json(const Diagnosis& g) {
  Json uses = Json::Array{};
  if (g.analysis.devices.empty()) return uses;
  for (const Shown& s : shown(g)) {
    const HostUse& u = *s.use;
    constexpr const char* kKinds[] = {"file_read", "file_write", "network", "lock"};
    uses.push_back(
        {{"kind", kKinds[static_cast<size_t>(u.kind) - static_cast<size_t>(SpanKind::file_read)]},
         {"name", printable(u.name)},
         {"files", u.files},
         {"storage", printable(u.storage)},
         {"over_network", u.over_network},
         {"in_memory", u.in_memory},
         {"bytes", u.bytes},
         {"storage_bytes", u.storage_bytes},
         {"waited_ns", u.waited_ns},
         {"threads", u.threads},
         {"thread", printable(u.thread)},
         {"episodes", u.episodes},
         {"seconds", seconds(u.last_ns - u.first_ns)},
         {"idle_share", s.idle},
         {"share_of_waits_for_others", s.beside},
         {"text", what(u) + cost(s, g)}});
  }
  return uses;
}

}  // namespace saturate::observe
