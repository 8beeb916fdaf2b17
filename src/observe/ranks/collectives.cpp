// SPDX-License-Identifier: Apache-2.0
#include "observe/ranks/collectives.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "observe/analyse/attribute.h"

namespace saturate::observe {
namespace {

constexpr int64_t kEndsTogetherNs = 200'000;
constexpr int64_t kClusterNs = 100'000;
constexpr double kMostDrift = 50e-6;  // of two quartz clocks
constexpr size_t kSampled = 512, kNeighbours = 1024;
constexpr size_t kFewestForDrift = 24, kFewest = 8;
constexpr int64_t kSameClockNs = 20'000, kKeptInTimeNs = 1'000'000;

struct Kind {
  const char *part, *name;
  bool ends_together;
};
// Of kernels' and profilers' names, in lower case without "_". The first that fits.
constexpr Kind kKinds[] = {
    {"allreduce", "all-reduce", true},
    {"allgather", "all-gather", true},
    {"reducescatter", "reduce-scatter", true},
    {"alltoall", "all-to-all", true},
    {"broadcast", "broadcast", false},
    {"sendrecv", "send and receive", false},
    {"send", "send and receive", false},
    {"recv", "send and receive", false},
    {"reduce", "reduce", false},
    {"barrier", "all-reduce", true},
};
constexpr uint32_t kOtherKind = std::size(kKinds), kGraphKind = kOtherKind + 1;

uint32_t kind_of(std::string_view name) {
  std::string plain;
  for (const char c : name.substr(0, 512))
    if (c != '_') plain += static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  for (uint32_t k = 0; k < kOtherKind; ++k)
    if (plain.find(kKinds[k].part) != std::string::npos) {
      // Spellings of one kind are one.
      for (uint32_t first = 0; first < k; ++first)
        if (std::string_view(kKinds[first].name) == kKinds[k].name) return first;
      return k;
    }
  return kOtherKind;
}
bool ends_together(uint32_t kind) { return kind < kOtherKind && kKinds[kind].ends_together; }
const char* kind_name(uint32_t kind) {
  return kind == kGraphKind ? "graph" : kind == kOtherKind ? "other" : kKinds[kind].name;
}

struct Part {
  int64_t start_ns, end_ns;
  uint32_t op, kind;
  int64_t bytes;
};

// Operations of one rank that follow each other: of a communicator that the source names, or of a
// stream.
struct Lane {
  uint32_t rank;
  std::string name;
  bool named;
  std::vector<Part> parts;
};

int64_t median(std::vector<int64_t> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

const CollectiveNote* note_of(const Trace& trace, int64_t correlation) {
  const auto at =
      std::lower_bound(trace.collectives.begin(), trace.collectives.end(), correlation,
                       [](const CollectiveNote& n, int64_t c) { return n.correlation < c; });
  return at != trace.collectives.end() && at->correlation == correlation ? &*at : nullptr;
}

std::vector<Lane> lanes_of(const RankTrace& rank, uint32_t place, bool graphs) {
  const Trace& t = rank.trace;
  std::map<std::pair<std::string, uint32_t>, Lane> lanes;
  BusyLeaves leaves(t);
  std::vector<uint32_t> kinds(t.names.size(), UINT32_MAX);
  for (uint32_t i = 0; i < t.ops.size(); ++i) {
    const DeviceOp& op = t.ops[i];
    const bool wanted =
        graphs ? op.kind == OpKind::graph
               : op.kind == OpKind::kernel && leaves.kind(op.name) == KernelClass::communication;
    if (!wanted) continue;
    uint32_t& kind = kinds[op.name];
    if (kind == UINT32_MAX) kind = graphs ? kGraphKind : kind_of(t.names[op.name]);
    const CollectiveNote* note = graphs ? nullptr : note_of(t, op.correlation);
    const bool named = note != nullptr && t.names[note->group].size() > 1;
    const std::string name =
        named ? t.names[note->group] : fmt::format("stream {}", t.streams[op.stream].stream);
    Lane& lane = lanes[{name, named ? 0 : op.stream}];
    lane.rank = place;
    lane.name = name;
    lane.named = named;
    uint32_t its = kind;
    // Kernels that send and receive also carry out all-to-all: the profiler knows which.
    if (note != nullptr && kind_of(t.names[note->what]) != kOtherKind)
      its = kind_of(t.names[note->what]);
    lane.parts.push_back({op.start_ns, op.end_ns, i, its, note == nullptr ? 0 : note->bytes});
  }
  std::vector<Lane> out;
  for (auto& [key, lane] : lanes) out.push_back(std::move(lane));
  return out;
}

// The clock of `b` against that of `a`.
struct Offset {
  int64_t ns = 0, spread_ns = 0;
  size_t count = 0, wanted = 0;  // of the parts of a that were looked for
  double drift = 0;
  int64_t from_ns = 0;  // on the clock of b
};

struct Difference {
  int64_t ns, at_ns;
  size_t a;  // the part of a
};

// Where differences gather: of clusters with nearly as many collectives as the fullest the
// narrowest, for a shift by whole steps spreads as the steps' lengths do; of equal ones the fullest,
// then the one that moves the clock least.
std::optional<Offset> densest(std::vector<Difference> all, int64_t width) {
  if (all.empty()) return std::nullopt;
  std::sort(all.begin(), all.end(), [](const auto& x, const auto& y) {
    return std::pair(x.ns, x.a) < std::pair(y.ns, y.a);
  });
  std::vector<size_t> ends(all.size());
  size_t most = 0;
  for (size_t from = 0, end = 0; from < all.size(); ++from) {
    while (end < all.size() && all[end].ns - all[from].ns <= width) ++end;
    ends[from] = end;
    most = std::max(most, end - from);
  }
  struct Cluster {
    size_t from, end, count;
    int64_t middle, spread;
  };
  std::vector<Cluster> clusters;
  size_t most_distinct = 0;
  for (size_t from = 0; from < all.size(); ++from) {
    const size_t end = ends[from], n = end - from;
    if (10 * n < 8 * most) continue;
    // The next half width has the same cluster, or a part of it.
    if (!clusters.empty() && all[from].ns - all[clusters.back().from].ns < width / 2 &&
        n <= clusters.back().end - clusters.back().from)
      continue;
    std::set<size_t> distinct;
    std::vector<int64_t> off;
    const int64_t middle = all[from + (n - 1) / 2].ns;
    for (size_t i = from; i < end; ++i) {
      distinct.insert(all[i].a);
      off.push_back(std::abs(all[i].ns - middle));
    }
    most_distinct = std::max(most_distinct, distinct.size());
    clusters.push_back({from, end, distinct.size(), middle, median(std::move(off))});
  }
  std::erase_if(clusters, [&](const Cluster& c) { return 10 * c.count < 9 * most_distinct; });
  int64_t narrowest = INT64_MAX;
  for (const Cluster& c : clusters) narrowest = std::min(narrowest, c.spread);
  const Cluster* best = nullptr;
  for (const Cluster& c : clusters) {
    if (c.spread > narrowest + narrowest / 2 + 5'000) continue;
    if (best == nullptr || c.count > best->count ||
        (c.count == best->count && std::abs(c.middle) < std::abs(best->middle)))
      best = &c;
  }
  std::vector<int64_t> at;
  for (size_t i = best->from; i < best->end; ++i) at.push_back(all[i].at_ns);
  return Offset{best->middle, best->spread, best->count, 0, 0, median(std::move(at))};
}

std::optional<Offset> offset_of(const Lane& a, const Lane& b) {
  const bool together = std::any_of(a.parts.begin(), a.parts.end(),
                                    [](const Part& p) { return ends_together(p.kind); });
  const auto fits = [&](const Part& x, const Part& y) {
    return x.kind == y.kind && (!together || ends_together(x.kind));
  };
  // Half of what lies between two ends, so that a collective is not taken for its neighbour.
  std::vector<int64_t> spacings;
  for (size_t i = 1; i < a.parts.size(); ++i)
    spacings.push_back(a.parts[i].end_ns - a.parts[i - 1].end_ns);
  const int64_t width =
      spacings.empty() ? kClusterNs : std::clamp<int64_t>(median(spacings) / 2, 10'000, kClusterNs);
  const size_t n = std::min(a.parts.size(), kSampled);
  std::vector<Difference> all;
  size_t wanted = 0;
  for (size_t i = 0; i < n; ++i) {
    wanted += !together || ends_together(a.parts[i].kind);
    for (size_t j = 0; j < std::min(b.parts.size(), i + kNeighbours); ++j)
      if (fits(a.parts[i], b.parts[j]))
        all.push_back({b.parts[j].end_ns - a.parts[i].end_ns, b.parts[j].end_ns, i});
  }
  std::optional<Offset> o = densest(std::move(all), width);
  if (!o) return o;
  o->wanted = wanted;
  // Clocks that agree within what the ends differ by anyway are one, and a handful of collectives
  // moves no clock by what hosts that are kept in time differ by.
  if (std::abs(o->ns) <= std::max(2 * o->spread_ns, kSameClockNs) ||
      (o->count < kFewest && std::abs(o->ns) <= kKeptInTimeNs))
    o->ns = 0;
  if (a.parts.size() < kFewestForDrift) return o;

  // The same at the end of the captures, near the difference at their start.
  all.clear();
  for (size_t i = a.parts.size() - n; i < a.parts.size(); ++i) {
    const Part& x = a.parts[i];
    const int64_t expected = x.end_ns + o->ns,
                  around = width + static_cast<int64_t>(kMostDrift * static_cast<double>(std::abs(
                                                                         expected - o->from_ns)));
    for (auto y = std::partition_point(b.parts.begin(), b.parts.end(),
                                       [&](const Part& p) { return p.end_ns < expected - around; });
         y != b.parts.end() && y->end_ns <= expected + around; ++y)
      if (fits(x, *y)) all.push_back({y->end_ns - x.end_ns - o->ns, y->end_ns, i});
  }
  const std::optional<Offset> late = densest(std::move(all), width);
  // Less than what the ends differ by anyway is no drift.
  if (late && 2 * late->count >= n && late->from_ns > o->from_ns &&
      std::abs(late->ns) > 3 * (o->spread_ns + late->spread_ns) / 2)
    o->drift = static_cast<double>(late->ns) / static_cast<double>(late->from_ns - o->from_ns);
  return o;
}

void set_clock(Trace& trace, const Offset& o) {
  const auto move = [&](int64_t& ns) {
    ns -= o.ns + static_cast<int64_t>(o.drift * static_cast<double>(ns - o.from_ns));
  };
  for (auto& r : trace.ops) move(r.start_ns), move(r.end_ns);
  for (auto& r : trace.calls) move(r.start_ns), move(r.end_ns);
  for (auto& r : trace.spans) move(r.start_ns), move(r.end_ns);
  for (auto& r : trace.samples) move(r.start_ns), move(r.end_ns);
  for (auto& m : trace.memory) move(m.time_ns);
}

void set_clock(std::vector<Lane>& lanes, const Offset& o) {
  const auto move = [&](int64_t& ns) {
    ns -= o.ns + static_cast<int64_t>(o.drift * static_cast<double>(ns - o.from_ns));
  };
  for (Lane& lane : lanes)
    for (Part& p : lane.parts) move(p.start_ns), move(p.end_ns);
}

// By the lanes of two ranks that agree best.
std::optional<Offset> offset_of(const std::vector<Lane>& a, const std::vector<Lane>& b) {
  std::optional<Offset> best;
  for (const Lane& x : a) {
    for (const Lane& y : b) {
      if (x.named != y.named || (x.named && x.name != y.name)) continue;
      const std::optional<Offset> o = offset_of(x, y);
      // Streams of other communicators gather nowhere.
      if (!o || 2 * o->count < std::min({o->wanted, y.parts.size(), kSampled})) continue;
      if (!best || o->count > best->count ||
          (o->count == best->count && o->spread_ns < best->spread_ns))
        best = o;
    }
  }
  return best;
}

bool overlap(const Part& a, const Part& b) {
  return a.start_ns < b.end_ns && b.start_ns < a.end_ns;
}

int64_t apart(const Part& a, const Part& b) { return std::abs(a.end_ns - b.end_ns); }

bool are_one(const Part& a, const Part& b) {
  if (a.kind != b.kind) return false;
  const int64_t shorter = std::min(a.end_ns - a.start_ns, b.end_ns - b.start_ns);
  const int64_t together = std::max(kEndsTogetherNs, shorter / 10);
  return ends_together(a.kind) ? apart(a, b) <= together : overlap(a, b);
}

// Which part of `b` belongs to each of `a`, or kNone; both in order of time on one clock.
std::vector<uint32_t> partners(const Lane& a, const Lane& b) {
  std::vector<uint32_t> of(a.parts.size(), kNone);
  for (size_t i = 0, j = 0; i < a.parts.size() && j < b.parts.size();) {
    const Part &x = a.parts[i], &y = b.parts[j];
    if (!are_one(x, y)) {
      x.end_ns < y.end_ns ? ++i : ++j;
      continue;
    }
    // One that overlaps two belongs to the one that it ends with.
    if (i + 1 < a.parts.size() && are_one(a.parts[i + 1], y) &&
        apart(a.parts[i + 1], y) < apart(x, y)) {
      ++i;
      continue;
    }
    if (j + 1 < b.parts.size() && are_one(x, b.parts[j + 1]) &&
        apart(x, b.parts[j + 1]) < apart(x, y)) {
      ++j;
      continue;
    }
    of[i++] = static_cast<uint32_t>(j++);
  }
  return of;
}

size_t matched(const std::vector<uint32_t>& of) {
  return static_cast<size_t>(
      std::count_if(of.begin(), of.end(), [](uint32_t p) { return p != kNone; }));
}

// One lane a rank whose parts end together.
struct Group {
  std::vector<const Lane*> lanes;
};

std::vector<Group> groups_of(const std::vector<std::vector<Lane>>& lanes) {
  std::vector<Group> groups;
  std::map<std::string, Group> named;
  std::set<const Lane*> taken;
  for (const auto& of_rank : lanes)
    for (const Lane& lane : of_rank)
      if (lane.named) named[lane.name].lanes.push_back(&lane);
  for (auto& [name, group] : named) groups.push_back(std::move(group));
  for (size_t r = 0; r < lanes.size(); ++r) {
    for (const Lane& lane : lanes[r]) {
      if (lane.named || taken.contains(&lane)) continue;
      Group group{{&lane}};
      for (size_t other = r + 1; other < lanes.size(); ++other) {
        const Lane* best = nullptr;
        size_t most = 0;
        for (const Lane& candidate : lanes[other]) {
          if (candidate.named || taken.contains(&candidate)) continue;
          const size_t count = matched(partners(lane, candidate));
          if (count > most && 2 * count >= std::min(lane.parts.size(), candidate.parts.size())) {
            most = count;
            best = &candidate;
          }
        }
        if (best != nullptr) group.lanes.push_back(best);
      }
      for (const Lane* l : group.lanes) taken.insert(l);
      groups.push_back(std::move(group));
    }
  }
  return groups;
}

void add_group(const Group& group, MatchedRanks& out) {
  for (const Lane* lane : group.lanes) out.parts += static_cast<int64_t>(lane->parts.size());
  // The lane that has most; those that it lacks are lost.
  const Lane* base = *std::max_element(
      group.lanes.begin(), group.lanes.end(),
      [](const Lane* a, const Lane* b) { return a->parts.size() < b->parts.size(); });
  std::vector<Collective> found(base->parts.size());
  const auto add = [&](size_t i, const Lane& lane, size_t part) {
    const Part& p = lane.parts[part];
    found[i].parts.push_back({lane.rank, p.op, p.start_ns, p.end_ns,
                              part == 0 ? INT64_MIN : lane.parts[part - 1].end_ns});
  };
  Communicator c;
  for (const Lane* lane : group.lanes) {  // by rank
    const std::vector<uint32_t> of =
        lane == base ? std::vector<uint32_t>() : partners(*base, *lane);
    for (size_t i = 0; i < found.size(); ++i) {
      if (lane == base)
        add(i, *lane, i);
      else if (of[i] != kNone)
        add(i, *lane, of[i]);
    }
    if (lane == base || matched(of) > 0) c.ranks.push_back(lane->rank);
  }
  std::set<uint32_t> kinds;
  const auto number = static_cast<uint32_t>(out.communicators.size());
  int64_t used = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    if (found[i].parts.size() < 2) continue;
    found[i].communicator = number;
    kinds.insert(base->parts[i].kind);
    c.bytes += base->parts[i].bytes;
    used += static_cast<int64_t>(found[i].parts.size());
    out.collectives.push_back(std::move(found[i]));
  }
  for (const Lane* lane : group.lanes) out.unmatched += static_cast<int64_t>(lane->parts.size());
  out.unmatched -= used;
  if (used == 0) return;
  for (const uint32_t kind : kinds)
    c.what += (c.what.empty() ? "" : ", ") + std::string(kind_name(kind));
  c.name = base->name;
  c.named = base->named;
  out.communicators.push_back(std::move(c));
}

int64_t graph_launches(const RankTrace& rank) {
  return std::count_if(rank.trace.ops.begin(), rank.trace.ops.end(),
                       [](const DeviceOp& op) { return op.kind == OpKind::graph; });
}

// Whether ranks launch ten graphs for each collective that is seen: then those that matter are in
// the graphs, and what is seen beside them came before (weights sent around) or now and then.
bool few_beside_graphs(const std::vector<RankTrace>& ranks,
                       const std::vector<std::vector<Lane>>& lanes) {
  int64_t with = 0, graphs = 0, collectives = 0;
  for (size_t r = 0; r < ranks.size(); ++r) {
    const int64_t own = graph_launches(ranks[r]);
    with += own > 0;
    graphs += own;
    for (const Lane& lane : lanes[r]) collectives += static_cast<int64_t>(lane.parts.size());
  }
  return with >= 2 && 10 * collectives < graphs;
}

void note_graphs(const std::vector<RankTrace>& ranks, MatchedRanks& out) {
  const bool any = std::any_of(ranks.begin(), ranks.end(),
                               [](const RankTrace& r) { return graph_launches(r) > 0; });
  if (out.whole_graphs && any)
    out.notes.push_back(
        "graphs were recorded whole. Seen is when each rank's graphs begin, and so who launches "
        "late. Not seen are the collectives in them: how long their transfers take, which of it is "
        "exposed, at which of them a rank waits, and whether a rank's own kernels are slower. "
        "saturate doctor --graph-nodes -- command records what is in them");
  else if (any)
    out.notes.push_back(
        "some work lies in graphs that were recorded whole: collectives in these, if any, are not "
        "seen and not in the figures above; saturate doctor --graph-nodes -- command records them");
}

}  // namespace

MatchedRanks match_collectives(std::vector<RankTrace>& ranks) {
  MatchedRanks out;
  std::vector<std::vector<Lane>> lanes;
  for (const bool graphs : {false, true}) {
    lanes.clear();
    size_t ranks_with = 0;
    for (uint32_t r = 0; r < ranks.size(); ++r) {
      lanes.push_back(lanes_of(ranks[r], r, graphs));
      ranks_with += !lanes.back().empty();
    }
    out.whole_graphs = graphs;
    if (ranks_with >= 2 && (graphs || !few_beside_graphs(ranks, lanes))) break;
  }
  note_graphs(ranks, out);

  out.clocks.resize(ranks.size());
  std::vector<bool> placed(ranks.size());
  placed[0] = true;
  for (bool more = true; more;) {
    more = false;
    for (size_t r = 1; r < ranks.size(); ++r) {
      if (placed[r]) continue;
      for (size_t p = 0; p < ranks.size() && !placed[r]; ++p) {
        if (!placed[p]) continue;
        if (ranks[p].clock == ranks[r].clock) {
          // Set with it: the clock of all ranks of this number is one.
          out.clocks[r] = out.clocks[p];
          placed[r] = more = true;
          break;
        }
        const std::optional<Offset> o = offset_of(lanes[p], lanes[r]);
        if (!o) continue;
        for (size_t same = 0; same < ranks.size(); ++same) {
          if (ranks[same].clock != ranks[r].clock || placed[same]) continue;
          set_clock(ranks[same].trace, *o);
          set_clock(lanes[same], *o);
          out.clocks[same] = {true, static_cast<double>(o->ns), o->drift,
                              static_cast<double>(o->spread_ns) + out.clocks[p].uncertainty_ns,
                              static_cast<int64_t>(o->count)};
          placed[same] = true;
        }
        more = true;
      }
    }
  }
  for (size_t r = 0; r < ranks.size(); ++r)
    if (!placed[r])
      out.notes.push_back(
          fmt::format("rank {} shares no collectives with the others in these "
                      "captures: its clock and its waits are not known",
                      ranks[r].rank));

  for (const Group& group : groups_of(lanes)) add_group(group, out);
  return out;
}

}  // namespace saturate::observe
