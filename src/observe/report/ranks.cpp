// SPDX-License-Identifier: Apache-2.0
#include "observe/report/ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "base/html.h"
#include "base/svg.h"
#include "observe/report/text.h"

namespace saturate::observe {
namespace {

std::string members(const Communicator& c, const RankReport& r) {
  std::string out;
  for (size_t i = 0; i < c.ranks.size(); ++i) {
    if (i == 8 && c.ranks.size() > 9) return out + fmt::format(", ... {} in all", c.ranks.size());
    out += fmt::format("{}{}", i == 0 ? "" : ", ", r.ranks[c.ranks[i]].rank);
  }
  return out;
}

// A saving with its gain, for people.
struct Bound {
  const char *id, *title;
  double saved_ns;
  bool ceiling;
};

std::vector<Bound> bounds_of(const RankReport& r) {
  return {{"straggler", "the last rank as early as the first", r.saved_straggler_ns, true},
          {"median", "every rank as early as the median", r.saved_median_ns, false},
          {"all", "all ranks as early as the first", r.saved_all_ns, true},
          {"hidden", "all transfers hidden", r.saved_hidden_ns, true}};
}

std::string clock_words(const RankReport& r) {
  std::string out;
  double worst = 0;
  for (size_t i = 0; i < r.ranks.size(); ++i) {
    const ClockFit& c = r.clocks[i];
    worst = std::max(worst, c.uncertainty_ns);
    if (!c.estimated || (c.offset_ns == 0 && c.drift == 0)) continue;
    out += fmt::format("rank {} by {}{}{}; ", r.ranks[i].rank, c.offset_ns < 0 ? "-" : "",
                       format_ns(std::abs(c.offset_ns)),
                       c.drift != 0 ? fmt::format(" and {:.1f} ppm", 1e6 * c.drift) : "");
  }
  return out.empty()
             ? fmt::format("one clock; ends of collectives differ by {} (median)", format_ns(worst))
             : "clocks moved, by the ends of collectives: " + out +
                   fmt::format("these then differ by {} (median)", format_ns(worst));
}

double percent_of(double part, double whole) { return whole > 0 ? 100 * part / whole : 0; }

}  // namespace

std::string ranks_text(const Diagnosis& g) {
  if (!g.ranks) return "";
  const RankReport& r = *g.ranks;
  const double wall = r.wall_ns();
  const auto time = [&](double ns) { return format_ns(r.per_step(ns)); };
  std::string out = fmt::format(
      "\nRanks{}: {} on {}\n  rank    compute   transfer    exposed    waiting    exposed       "
      "idle  last at\n",
      r.steps > 0 ? " (mean of a step)" : " (whole capture)", r.ranks.size(), clock_words(r));
  for (const RankUse& u : r.ranks)
    out += fmt::format("{:6} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10}  {} of {}\n", u.rank,
                       time(static_cast<double>(u.compute_ns)),
                       time(static_cast<double>(u.communication_ns - u.waiting_ns)),
                       time(static_cast<double>(u.exposed_transfer_ns)),
                       time(static_cast<double>(u.waiting_ns)),
                       time(static_cast<double>(u.exposed_waiting_ns)),
                       time(static_cast<double>(u.idle_ns)), u.last, u.collectives);
  out += fmt::format("  longest compute {:.1f}% above the mean\n", 100 * r.imbalance);
  for (const CommunicatorUse& c : r.communicators)
    out += fmt::format(
        "  {} of ranks {} ({}): {}, transfer {} ({} exposed), waiting {} ({} exposed){}\n",
        printable(c.communicator.name).substr(0, 40), members(c.communicator, r),
        c.communicator.what,
        r.steps > 0 ? fmt::format("{:.1f} a step", static_cast<double>(c.collectives) / r.steps)
                    : fmt::format("{}", c.collectives),
        time(c.transfer_ns), time(c.exposed_transfer_ns), time(c.waiting_ns),
        time(c.exposed_waiting_ns),
        c.last_rank >= 0 ? fmt::format(", most for rank {}", c.last_rank) : "");
  if (r.straggler >= 0) out += "  " + printable(r.evidence) + "\n";
  if (!r.bounds()) out += "  fewer than three steps were found: nothing is promised\n";
  if (r.bounds())
    for (const Bound& b : bounds_of(r))
      out += fmt::format("  {}: {} {:.2f}x ({:.1f}% of the time)\n", b.title,
                         b.ceiling ? "up to" : "about", r.gain(b.saved_ns),
                         percent_of(b.saved_ns, wall));
  if (r.unmatched > 0)
    out += fmt::format("  {} of {} operations of communication have no partner in these captures\n",
                       r.unmatched, r.parts);
  for (const std::string& note : r.notes) out += "  " + printable(note) + "\n";
  return out + fmt::format("What follows is of rank {}.\n", r.ranks[g.shown].rank);
}

std::string ranks_html(const Diagnosis& g) {
  if (!g.ranks) return "";
  const RankReport& r = *g.ranks;
  const double wall = std::max(1.0, r.wall_ns());
  const auto time = [&](double ns) { return format_ns(r.per_step(ns)); };
  std::string html = fmt::format(
      "<h2>Ranks</h2>\n<p class=\"note\">{} ranks, {}; {}.</p>\n<table class=\"numbers\"><tr>"
      "<th>rank</th><th>computes</th><th>transfer exposed</th><th>waiting exposed</th><th>idle</th>"
      "<th>last at</th><th class=\"l\">time</th></tr>\n",
      r.ranks.size(), r.steps > 0 ? "mean of a step" : "whole capture",
      escape_html(clock_words(r)));
  constexpr double kWidth = 300;
  for (const RankUse& u : r.ranks) {
    Svg bar(0, 0, kWidth, 12, fmt::format("rank {}", u.rank));
    double x = 0;
    for (const auto& [ns, colour] : {std::pair{u.compute_ns, "#2e7d32"},
                                     {u.exposed_transfer_ns, "#1565c0"},
                                     {u.exposed_waiting_ns, "#c0392b"},
                                     {u.idle_ns, "#b0b0b0"}}) {
      const double width = kWidth * static_cast<double>(ns) / wall;
      bar.rect(x, 0, width, 12, colour);
      x += width;
    }
    html += fmt::format(
        "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{} of "
        "{}</td><td>{}</td></tr>\n",
        u.rank, time(static_cast<double>(u.compute_ns)),
        time(static_cast<double>(u.exposed_transfer_ns)),
        time(static_cast<double>(u.exposed_waiting_ns)), time(static_cast<double>(u.idle_ns)),
        u.last, u.collectives, bar.str());
  }
  html +=
      "</table>\n<p class=\"note\">Green: computes; blue: exposed transfer; red: exposed waiting "
      "for another rank; grey: idle.</p>\n<table class=\"numbers\"><tr><th class=\"l\">communicator"
      "</th><th>collectives</th><th>transfer</th><th>exposed</th><th>waiting</th><th>exposed</th>"
      "<th>most for rank</th></tr>\n";
  for (const CommunicatorUse& c : r.communicators)
    html += fmt::format(
        "<tr><td class=\"l\">{} of ranks {} ({})</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td>"
        "<td>{}</td><td>{}</td></tr>\n",
        escape_html(c.communicator.name.substr(0, 60)), members(c.communicator, r),
        c.communicator.what, c.collectives, time(c.transfer_ns), time(c.exposed_transfer_ns),
        time(c.waiting_ns), time(c.exposed_waiting_ns),
        c.last_rank >= 0 ? fmt::format("{}", c.last_rank) : "-");
  html += "</table>\n";
  if (r.straggler >= 0) html += "<p>" + escape_html(r.evidence) + ".</p>\n";
  html += "<ul>\n";
  for (const Bound& b : r.bounds() ? bounds_of(r) : std::vector<Bound>())
    html += fmt::format("<li>{}: {} {:.2f}x</li>\n", b.title, b.ceiling ? "up to" : "about",
                        r.gain(b.saved_ns));
  html += "</ul>\n";
  for (const std::string& note : r.notes) html += "<p>" + escape_html(note) + "</p>\n";
  return html + fmt::format("<p>What follows is of rank {}.</p>\n", r.ranks[g.shown].rank);
}

Json ranks_json(const Diagnosis& g) {
  if (!g.ranks) return nullptr;
  const RankReport& r = *g.ranks;
  Json j;
  j["shown_rank"] = r.ranks[g.shown].rank;
  j["window_ns"] = r.to_ns - r.from_ns;
  j["steps"] = r.steps > 0 ? Json(r.steps) : Json(nullptr);
  j["whole_graphs"] = r.whole_graphs;
  j["operations"] = r.parts;
  j["unmatched"] = r.unmatched;
  j["compute_imbalance"] = r.imbalance;
  if (r.straggler >= 0) {
    const RankUse& u = r.ranks[static_cast<size_t>(r.straggler)];
    Json by_leaf = Json::Object{};
    for (size_t l = 0; l < kLeaves; ++l)
      if (u.caused_by[l] != 0)
        by_leaf[std::string(leaf_info(static_cast<Leaf>(l)).id)] = r.per_step(u.caused_by[l]);
    j["straggler"] = {{"rank", u.rank},
                      {"share_of_waiting", r.straggler_share},
                      {"last_at", u.last},
                      {"waited_for_ns", r.per_step(u.caused_ns)},
                      {"cause", late_cause_info(r.cause).id},
                      {"cause_ns", r.per_step(r.cause_ns)},
                      {"leaf", leaf_info(r.leaf).id},
                      {"later_by_leaf_ns", std::move(by_leaf)},
                      {"evidence", printable(r.evidence)},
                      {"action", r.action}};
  } else {
    j["straggler"] = nullptr;
  }
  Json& bounds = j["bounds"] = Json::Array{};
  for (const Bound& b : bounds_of(r))
    bounds.push_back({{"id", b.id},
                      {"title", b.title},
                      {"speedup", r.bounds() ? Json(r.gain(b.saved_ns)) : Json()},
                      {"saved_ns", r.per_step(b.saved_ns)},
                      {"is_ceiling", b.ceiling}});
  Json& ranks = j["ranks"] = Json::Array{};
  for (size_t i = 0; i < r.ranks.size(); ++i) {
    const RankUse& u = r.ranks[i];
    const ClockFit& c = r.clocks[i];
    const auto time = [&](int64_t ns) { return r.per_step(static_cast<double>(ns)); };
    ranks.push_back({{"rank", u.rank},
                     {"source", printable(u.name)},
                     {"device", u.device},
                     {"device_name", printable(u.info.name)},
                     {"compute_ns", time(u.compute_ns)},
                     {"communication_ns", time(u.communication_ns)},
                     {"waiting_ns", time(u.waiting_ns)},
                     {"exposed_transfer_ns", time(u.exposed_transfer_ns)},
                     {"exposed_waiting_ns", time(u.exposed_waiting_ns)},
                     {"idle_ns", time(u.idle_ns)},
                     {"collectives", u.collectives},
                     {"last_at", u.last},
                     {"waited_for_ns", r.per_step(u.caused_ns)},
                     {"clock",
                      {{"estimated", c.estimated},
                       {"offset_ns", c.offset_ns},
                       {"drift_ppm", 1e6 * c.drift},
                       {"ends_differ_ns", c.uncertainty_ns},
                       {"collectives", c.collectives}}}});
  }
  Json& communicators = j["communicators"] = Json::Array{};
  for (const CommunicatorUse& c : r.communicators) {
    Json members = Json::Array{};
    for (const uint32_t place : c.communicator.ranks) members.push_back(r.ranks[place].rank);
    communicators.push_back(
        {{"name", printable(c.communicator.name)},
         {"ranks", std::move(members)},
         {"kinds", c.communicator.what},
         {"collectives", c.collectives},
         {"bytes", c.communicator.bytes > 0 ? Json(c.communicator.bytes) : Json()},
         {"transfer_ns", r.per_step(c.transfer_ns)},
         {"exposed_transfer_ns", r.per_step(c.exposed_transfer_ns)},
         {"waiting_ns", r.per_step(c.waiting_ns)},
         {"exposed_waiting_ns", r.per_step(c.exposed_waiting_ns)},
         {"last_rank", c.last_rank >= 0 ? Json(c.last_rank) : Json()}});
  }
  Json& notes = j["notes"] = Json::Array{};
  for (const std::string& note : r.notes) notes.push_back(printable(note));
  return j;
}

}  // namespace saturate::observe
