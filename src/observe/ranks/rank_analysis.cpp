// SPDX-License-Identifier: Apache-2.0
#include "observe/ranks/rank_analysis.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <numeric>
#include <utility>

#include "fmt/format.h"

#include "observe/analyse/attribute.h"
#include "observe/analyse/host_timeline.h"
#include "observe/ranks/rank_words.h"

namespace saturate::observe {
namespace {

// Launches and clocks of devices of one host differ by that much.
constexpr int64_t kLateNs = 10'000;

struct Interval {
  int64_t from, to;
};

// Disjoint, in order, with the length before each.
class Intervals {
 public:
  void add(int64_t from, int64_t to) {
    if (to > from) parts_.push_back({from, to});
  }
  void join() {
    std::sort(parts_.begin(), parts_.end(),
              [](const Interval& a, const Interval& b) { return a.from < b.from; });
    std::vector<Interval> joined;
    for (const Interval& p : parts_) {
      if (joined.empty() || p.from > joined.back().to)
        joined.push_back(p);
      else
        joined.back().to = std::max(joined.back().to, p.to);
    }
    parts_ = std::move(joined);
    before_.assign(parts_.size() + 1, 0);
    for (size_t i = 0; i < parts_.size(); ++i)
      before_[i + 1] = before_[i] + parts_[i].to - parts_[i].from;
  }
  // How much of them lies in [from, to).
  int64_t within(int64_t from, int64_t to) const {
    return to <= from ? 0 : up_to(to) - up_to(from);
  }
  int64_t length() const { return before_.empty() ? 0 : before_.back(); }
  // How much of both is common.
  int64_t common(const Intervals& other) const {
    int64_t sum = 0;
    for (const Interval& p : parts_) sum += other.within(p.from, p.to);
    return sum;
  }
  // Adds all parts of the other.
  void add(const Intervals& other) {
    parts_.insert(parts_.end(), other.parts_.begin(), other.parts_.end());
  }

 private:
  int64_t up_to(int64_t at) const {
    const auto i =
        static_cast<size_t>(std::partition_point(parts_.begin(), parts_.end(),
                                                 [&](const Interval& p) { return p.to <= at; }) -
                            parts_.begin());
    return before_[i] + (i < parts_.size() ? std::max<int64_t>(0, at - parts_[i].from) : 0);
  }
  std::vector<Interval> parts_;
  std::vector<int64_t> before_{0};
};

// What a rank's device was doing, piece by piece, and its kernels that compute.
struct Timeline {
  std::vector<Segment> segments;
  Intervals compute;
  std::vector<bool> at_once;  // by operation: it started as soon as the host had issued it

  // Adds the time of each leaf in [from, to), scaled.
  void add(int64_t from, int64_t to, double scale, std::vector<double>& by_leaf) const {
    auto s = std::partition_point(segments.begin(), segments.end(),
                                  [&](const Segment& x) { return x.end_ns <= from; });
    for (; s != segments.end() && s->start_ns < to; ++s)
      by_leaf[static_cast<size_t>(s->leaf)] +=
          scale * static_cast<double>(std::min(to, s->end_ns) - std::max(from, s->start_ns));
  }
};

Timeline timeline_of(const Trace& trace, uint32_t device, int64_t from, int64_t to,
                     bool whole_graphs) {
  Timeline t;
  int64_t first = INT64_MAX, last = INT64_MIN;
  BusyLeaves leaves(trace);
  for (const DeviceOp& op : trace.ops) {
    const bool computes = op.kind == OpKind::kernel
                              ? leaves.kind(op.name) != KernelClass::communication
                              : op.kind == OpKind::graph && !whole_graphs;
    if (computes) t.compute.add(op.start_ns, op.end_ns);
    if (trace.streams[op.stream].device != device || op.end_ns < from || op.start_ns >= to)
      continue;
    first = std::min(first, op.start_ns);
    last = std::max(last, op.end_ns);
  }
  t.compute.join();
  const HostTimeline host(trace);
  for (const DeviceOp& op : trace.ops) {
    const uint32_t call = host.issuer(op);
    t.at_once.push_back(call != kNone &&
                        op.start_ns <= trace.calls[call].end_ns + 2 * kLaunchLatencyNs);
  }
  if (first < last) {
    attribute(trace, host, device, first, last, [&](const Segment& s) { t.segments.push_back(s); });
  }
  return t;
}

// The others' starts and the one that all waited for.
struct Arrivals {
  size_t last = 0;  // place in the parts
  int64_t last_ns = INT64_MIN, first_ns = INT64_MAX, median_ns = 0;
};
Arrivals arrivals_of(const Collective& c) {
  Arrivals a;
  std::vector<int64_t> starts;
  for (size_t i = 0; i < c.parts.size(); ++i) {
    starts.push_back(c.parts[i].start_ns);
    if (c.parts[i].start_ns > a.last_ns) a.last = i, a.last_ns = c.parts[i].start_ns;
  }
  std::sort(starts.begin(), starts.end());
  a.first_ns = starts.front();
  a.median_ns = starts[(starts.size() - 1) / 2];
  return a;
}

class RankAnalyser {
 public:
  RankAnalyser(const std::vector<RankTrace>& ranks, const MatchedRanks& matched,
               const std::vector<Analysis>& analyses)
      : ranks_(ranks), matched_(matched), analyses_(analyses) {
    for (const Communicator& c : matched.communicators) {
      report_.communicators.emplace_back().communicator = c;
      caused_.emplace_back(ranks.size());
    }
    report_.clocks = matched.clocks;
    report_.whole_graphs = matched.whole_graphs;
    report_.parts = matched.parts;
    report_.unmatched = matched.unmatched;
    report_.notes = matched.notes;
    find_window();
    for (size_t r = 0; r < ranks.size(); ++r) {
      const DeviceAnalysis& d = analyses[r].devices.front();
      RankUse& use = report_.ranks.emplace_back();
      use.rank = ranks[r].rank;
      use.name = ranks[r].name;
      use.device = d.device;
      use.info = d.info;
      use.caused_by.assign(kLeaves, 0);
      timelines_.push_back(timeline_of(ranks[r].trace, d.device, report_.from_ns, report_.to_ns,
                                       matched.whole_graphs));
    }
    waiting_.resize(ranks.size());
    transfer_.resize(ranks.size());
    differences_.resize(ranks.size());
  }

  RankReport analyse() {
    for (const Collective& c : matched_.collectives) {
      const Arrivals a = arrivals_of(c);
      if (a.last_ns < report_.from_ns || a.last_ns >= report_.to_ns) continue;
      take_apart(c, a);
      blame(c, a);
    }
    sum_up();
    name_straggler();
    return std::move(report_);
  }

 private:
  void find_window() {
    report_.from_ns = INT64_MIN;
    report_.to_ns = INT64_MAX;
    for (const Analysis& a : analyses_) {
      report_.from_ns = std::max(report_.from_ns, a.devices.front().from_ns);
      report_.to_ns = std::min(report_.to_ns, a.devices.front().to_ns);
    }
    if (report_.to_ns <= report_.from_ns) {
      report_.to_ns = report_.from_ns;
      report_.notes.push_back(
          "the captures of the ranks have no time in common; record them at the same time");
      return;
    }
    const StepAnalysis& s = analyses_.front().steps;
    if (s.found && s.mean_ns > 0) report_.steps = report_.wall_ns() / s.mean_ns;
  }

  // [from, to) less what computes.
  double exposed(size_t rank, int64_t from, int64_t to) const {
    return static_cast<double>(std::max<int64_t>(0, to - from) -
                               timelines_[rank].compute.within(from, to));
  }

  // What a rank wins when it does not wait from `from` to `to` for a transfer that ends at `done`: the
  // wait that is exposed, or, where it lies beside kernels, the transfer that these would then hide.
  double saved(size_t rank, int64_t from, int64_t to, int64_t done) const {
    return std::max(exposed(rank, from, to),
                    exposed(rank, std::max(from, done - (to - from)), done));
  }

  void take_apart(const Collective& c, const Arrivals& a) {
    CommunicatorUse& use = report_.communicators[c.communicator];
    ++use.collectives;
    const auto n = static_cast<double>(c.parts.size());
    double longest_wait = 0, median_wait = 0, longest_transfer = 0;
    std::vector<int64_t> ends;
    for (const CollectivePart& p : c.parts) {
      RankUse& rank = report_.ranks[p.rank];
      ++rank.collectives;
      // Launches of graphs hold both: all that is known of them is who came when.
      const int64_t start_ns = std::max(p.start_ns, report_.from_ns),
                    all_ns = std::clamp(a.last_ns, start_ns, p.end_ns),
                    done_ns = matched_.whole_graphs ? all_ns
                                                    : std::clamp(report_.to_ns, all_ns, p.end_ns);
      const double wait = exposed(p.rank, start_ns, all_ns),
                   transfer = exposed(p.rank, all_ns, done_ns);
      use.waiting_ns += static_cast<double>(all_ns - start_ns) / n;
      use.transfer_ns += static_cast<double>(done_ns - all_ns) / n;
      use.exposed_waiting_ns += wait / n;
      use.exposed_transfer_ns += transfer / n;
      waiting_[p.rank].add(start_ns, all_ns);
      transfer_[p.rank].add(all_ns, done_ns);
      longest_wait = std::max(longest_wait, saved(p.rank, start_ns, all_ns, done_ns));
      longest_transfer = std::max(longest_transfer, transfer);
      median_wait = std::max(
          median_wait, saved(p.rank, std::clamp(a.median_ns, start_ns, all_ns), all_ns, done_ns));
      ends.push_back(p.end_ns);
    }
    longest_wait_[c.parts[a.last].rank] += longest_wait;
    report_.saved_all_ns += longest_wait;
    report_.saved_median_ns += median_wait;
    report_.saved_hidden_ns += longest_transfer;
    std::sort(ends.begin(), ends.end());
    for (const CollectivePart& p : c.parts)
      differences_[p.rank].push_back(std::abs(p.end_ns - ends[(ends.size() - 1) / 2]));
  }

  // What the last one did since the collective before, against the mean of the others.
  void blame(const Collective& c, const Arrivals& a) {
    if (a.last_ns - a.first_ns <= kLateNs) return;
    const CollectivePart& late = c.parts[a.last];
    RankUse& rank = report_.ranks[late.rank];
    ++rank.last;
    const double others = static_cast<double>(c.parts.size() - 1);
    double waited = 0;
    bool first = false;
    for (const CollectivePart& p : c.parts) {
      waited += static_cast<double>(a.last_ns - std::max(p.start_ns, report_.from_ns)) / others;
      first = first || p.before_ns == INT64_MIN;
    }
    rank.caused_ns += waited;
    if (timelines_[late.rank].at_once[late.op]) issued_late_[late.rank] += waited;
    caused_[c.communicator][late.rank] += waited;
    std::vector<double> by_leaf(kLeaves, 0);
    for (size_t i = 0; i < c.parts.size(); ++i) {
      const CollectivePart& p = c.parts[i];
      const int64_t from = first ? report_.from_ns : std::max(p.before_ns, report_.from_ns);
      timelines_[p.rank].add(std::min(from, p.start_ns), p.start_ns, i == a.last ? 1 : -1 / others,
                             by_leaf);
    }
    // What the ends of the collective before differ by, and what no timeline covers.
    by_leaf[static_cast<size_t>(Leaf::unknown)] +=
        waited - std::accumulate(by_leaf.begin(), by_leaf.end(), 0.0);
    for (size_t l = 0; l < kLeaves; ++l) rank.caused_by[l] += by_leaf[l];
  }

  // A collective that was held up ends after the kernels that could have hidden its transfer. So the
  // waiting ranks expose more of their transfers than a rank that never waits, and this difference
  // may vanish together with the wait. The rule comes from two readings of DDP programs.
  double with_transfers(double waited_ns) const {
    const auto [least, most] =
        std::ranges::minmax_element(report_.ranks, {}, &RankUse::exposed_transfer_ns);
    return waited_ns + std::min(waited_ns, static_cast<double>(most->exposed_transfer_ns -
                                                               least->exposed_transfer_ns));
  }

  void sum_up() {
    RankReport& r = report_;
    int64_t longest = 0;
    double sum = 0;
    for (size_t i = 0; i < r.ranks.size(); ++i) {
      RankUse& use = r.ranks[i];
      const Intervals& compute = timelines_[i].compute;
      waiting_[i].join();
      transfer_[i].join();
      Intervals both = waiting_[i];
      both.add(transfer_[i]);
      both.join();
      use.compute_ns = compute.within(r.from_ns, r.to_ns);
      use.communication_ns = both.length();
      use.waiting_ns = both.length() - transfer_[i].length();
      const int64_t exposed = both.length() - both.common(compute);
      use.exposed_transfer_ns = transfer_[i].length() - transfer_[i].common(compute);
      use.exposed_waiting_ns = exposed - use.exposed_transfer_ns;
      use.idle_ns = std::max<int64_t>(0, r.to_ns - r.from_ns - use.compute_ns - exposed);
      longest = std::max(longest, use.compute_ns);
      sum += static_cast<double>(use.compute_ns);
      if (!differences_[i].empty()) {
        auto& d = differences_[i];
        const auto middle = d.begin() + static_cast<std::ptrdiff_t>(d.size() / 2);
        std::nth_element(d.begin(), middle, d.end());
        r.clocks[i].uncertainty_ns = static_cast<double>(*middle);
      }
    }
    if (sum > 0)
      r.imbalance = static_cast<double>(longest) * static_cast<double>(r.ranks.size()) / sum - 1;
    // Hidden, a transfer still takes its time.
    double most = 0;
    for (const Intervals& t : transfer_) most = std::max(most, static_cast<double>(t.length()));
    const double wall = r.wall_ns();
    r.saved_hidden_ns = std::clamp(wall - most, 0.0, r.saved_hidden_ns);
    r.saved_all_ns = with_transfers(r.saved_all_ns);
    for (double* saved : {&r.saved_all_ns, &r.saved_median_ns})
      *saved = std::min(*saved, 0.99 * wall);
    merge_streams();
    for (size_t c = 0; c < r.communicators.size(); ++c) {
      const auto most_for = std::max_element(caused_[c].begin(), caused_[c].end());
      if (*most_for > 0)
        r.communicators[c].last_rank =
            r.ranks[static_cast<size_t>(most_for - caused_[c].begin())].rank;
    }
    std::erase_if(r.communicators, [](const CommunicatorUse& c) { return c.collectives == 0; });
    std::stable_sort(r.communicators.begin(), r.communicators.end(),
                     [](const CommunicatorUse& a, const CommunicatorUse& b) {
                       return a.exposed_transfer_ns + a.exposed_waiting_ns >
                              b.exposed_transfer_ns + b.exposed_waiting_ns;
                     });
  }

  // A launched CUDA graph has each of its branches on a stream of its own, dozens of them, and no
  // source names their communicators: more than a few of the same ranks and kinds are one line.
  void merge_streams() {
    constexpr size_t kFew = 4;
    std::map<std::pair<std::vector<uint32_t>, std::string>, std::vector<size_t>> alike;
    auto& all = report_.communicators;
    for (size_t c = 0; c < all.size(); ++c) {
      const Communicator& its = all[c].communicator;
      if (all[c].collectives > 0 && !its.named) alike[{its.ranks, its.what}].push_back(c);
    }
    for (const auto& [key, members] : alike) {
      if (members.size() <= kFew) continue;
      CommunicatorUse& whole = all[members[0]];
      whole.communicator.name = fmt::format("{} streams", members.size());
      for (size_t m = 1; m < members.size(); ++m) {
        CommunicatorUse& part = all[members[m]];
        whole.communicator.bytes += part.communicator.bytes;
        whole.collectives += std::exchange(part.collectives, 0);
        whole.transfer_ns += part.transfer_ns;
        whole.waiting_ns += part.waiting_ns;
        whole.exposed_transfer_ns += part.exposed_transfer_ns;
        whole.exposed_waiting_ns += part.exposed_waiting_ns;
        for (size_t i = 0; i < caused_[members[0]].size(); ++i)
          caused_[members[0]][i] += caused_[members[m]][i];
      }
    }
  }

  // What a device computes while a collective of its rank is not yet there is no cause where it
  // computes no longer than others do: the host issued the collective late, or it waited for something
  // else.
  void doubt_kernels(const RankUse& use, double issued_late_ns) {
    RankReport& r = report_;
    double others = -static_cast<double>(use.compute_ns);
    for (const RankUse& u : r.ranks) others += static_cast<double>(u.compute_ns);
    const double longer =
        static_cast<double>(use.compute_ns) - others / static_cast<double>(r.ranks.size() - 1);
    if (longer >= 0.5 * std::min(r.cause_ns, use.caused_ns)) return;
    const bool host = issued_late_ns > 0.5 * use.caused_ns;
    r.cause = host ? LateCause::host : LateCause::unknown;
    r.leaf = host ? Leaf::host_code : Leaf::dependency;
    r.cause_ns = r.leaf_ns = host ? issued_late_ns : 0;
  }

  void name_straggler() {
    RankReport& r = report_;
    double all = 0;
    for (size_t i = 0; i < r.ranks.size(); ++i) {
      all += r.ranks[i].caused_ns;
      if (r.straggler < 0 ||
          r.ranks[i].caused_ns > r.ranks[static_cast<size_t>(r.straggler)].caused_ns)
        r.straggler = static_cast<int64_t>(i);
    }
    if (all <= 0) {
      r.straggler = -1;
      return;
    }
    const auto s = static_cast<size_t>(r.straggler);
    const RankUse& use = r.ranks[s];
    r.straggler_share = use.caused_ns / all;
    r.saved_straggler_ns = std::min(with_transfers(longest_wait_[s]), 0.99 * r.wall_ns());
    double by_cause[5] = {};
    for (size_t l = 0; l < kLeaves; ++l)
      by_cause[static_cast<size_t>(late_cause_of(static_cast<Leaf>(l)))] += use.caused_by[l];
    const auto largest = std::max_element(std::begin(by_cause), std::end(by_cause));
    r.cause = static_cast<LateCause>(largest - std::begin(by_cause));
    r.cause_ns = *largest;
    for (size_t l = 0; l < kLeaves; ++l) {
      if (late_cause_of(static_cast<Leaf>(l)) == r.cause && use.caused_by[l] > r.leaf_ns) {
        r.leaf_ns = use.caused_by[l];
        r.leaf = static_cast<Leaf>(l);
      }
    }
    if (r.cause == LateCause::kernels) doubt_kernels(use, issued_late_[s]);
    // Where it was earlier by something else, it lost no more than what the others waited.
    r.cause_ns = std::min(r.cause_ns, use.caused_ns);
    r.leaf_ns = std::min(r.leaf_ns, r.cause_ns);
    add_rank_words(r, analyses_);
  }

  const std::vector<RankTrace>& ranks_;
  const MatchedRanks& matched_;
  const std::vector<Analysis>& analyses_;
  RankReport report_;
  std::vector<Timeline> timelines_;
  std::vector<Intervals> waiting_, transfer_;      // by rank
  std::vector<std::vector<int64_t>> differences_;  // of ends to their median, by rank
  std::vector<std::vector<double>> caused_;        // by communicator and rank
  std::vector<double> issued_late_ = std::vector<double>(ranks_.size());   // of caused_ns, likewise
  std::vector<double> longest_wait_ = std::vector<double>(ranks_.size());  // for each rank
};

constexpr LateCauseInfo kCauses[] = {
    {"host", "its host issued the work later"},
    {"input", "it waited for its data"},
    {"kernels", "its kernels took longer"},
    {"communication", "it came out of another communicator later"},
    {"unknown", "nothing in the captures says why"},
};

}  // namespace

const LateCauseInfo& late_cause_info(LateCause cause) {
  return kCauses[static_cast<size_t>(cause)];
}

LateCause late_cause_of(Leaf leaf) {
  switch (leaf) {
    case Leaf::tensor:
    case Leaf::matrix:
    case Leaf::memory_bound:
    case Leaf::other_kernel:
    case Leaf::graph:
    case Leaf::low_grid:
    case Leaf::tiny:
    case Leaf::copy_device:
    case Leaf::fill:
      return LateCause::kernels;
    case Leaf::communication:
      return LateCause::communication;
    case Leaf::loader:
    case Leaf::copy_in:
    case Leaf::copy_in_pageable:
      return LateCause::input;
    case Leaf::tool:
    case Leaf::lost:
    case Leaf::unknown:
    case Leaf::dependency:
      return LateCause::unknown;
    default:
      return LateCause::host;
  }
}

RankReport analyse_ranks(const std::vector<RankTrace>& ranks, const MatchedRanks& matched,
                         const std::vector<Analysis>& analyses) {
  return RankAnalyser(ranks, matched, analyses).analyse();
}

}  // namespace saturate::observe
