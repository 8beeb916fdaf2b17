// SPDX-License-Identifier: Apache-2.0
#include "observe/ranks/rank_words.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

namespace saturate::observe {
namespace {

// A kernel of the straggler against the mean of the others.
struct KernelDifference {
  std::string name;
  double more_ns = 0;                         // of its time
  double launches = 1, blocks = 1, each = 1;  // as ratios
};

KernelDifference slowest_kernel(size_t straggler, const std::vector<Analysis>& analyses) {
  struct Sum {
    double ns = 0, count = 0, blocks = 0, ranks = 0;
  };
  std::map<std::string, Sum> others;
  for (size_t r = 0; r < analyses.size(); ++r) {
    if (r == straggler) continue;
    for (const KernelStat& k : analyses[r].devices.front().kernels) {
      Sum& s = others[k.name];
      s.ns += static_cast<double>(k.total_ns);
      s.count += static_cast<double>(k.count);
      s.blocks += static_cast<double>(k.blocks);
      ++s.ranks;
    }
  }
  const auto n = static_cast<double>(analyses.size() - 1);
  KernelDifference worst;
  for (const KernelStat& k : analyses[straggler].devices.front().kernels) {
    if (k.leaf == Leaf::communication) continue;
    const Sum& s = others[k.name];
    const double more = static_cast<double>(k.total_ns) - s.ns / n;
    if (more <= worst.more_ns) continue;
    worst = {k.name, more, 1, 1, 1};
    if (s.count <= 0) {
      worst.launches = 0;  // the others do not run it at all
      continue;
    }
    const auto count = static_cast<double>(k.count);
    worst.launches = count / (s.count / n);
    worst.blocks = s.blocks > 0 ? static_cast<double>(k.blocks) / (s.blocks / s.ranks) : 1;
    worst.each = static_cast<double>(k.total_ns) / count / (s.ns / s.count);
  }
  return worst;
}

// Of the calls and spans behind an idle leaf the one that holds most.
std::string call_of(const DeviceAnalysis& d, Leaf leaf) {
  int64_t most = 0;
  std::string name;
  for (const auto& [key, time] : d.evidence)
    if (key.first == leaf && !key.second.empty() && time.ns > most)
      most = time.ns, name = key.second;
  return name;
}

}  // namespace

void add_rank_words(RankReport& r, const std::vector<Analysis>& analyses) {
  const auto place = static_cast<size_t>(r.straggler);
  const RankUse& use = r.ranks[place];
  const auto ms = [&](double ns) { return fmt::format("{:.3g} ms", 1e-6 * r.per_step(ns)); };
  const char* unit = r.steps > 0 ? "a step" : "in all";
  r.evidence = fmt::format(
      "rank {} comes last at {} of {} {}; the others wait {} {} for it on average, {:.0f}% of all "
      "waiting for others: {}",
      use.rank, use.last, use.collectives, r.whole_graphs ? "launches of graphs" : "collectives",
      ms(use.caused_ns), unit, 100 * r.straggler_share, late_cause_info(r.cause).title);
  if (r.cause != LateCause::unknown)
    r.evidence += fmt::format(", by {} ({} more in \"{}\")", ms(r.cause_ns), ms(r.leaf_ns),
                              leaf_info(r.leaf).title);
  switch (r.cause) {
    case LateCause::kernels: {
      const KernelDifference k = slowest_kernel(place, analyses);
      if (k.more_ns > 0 && k.launches == 0)
        r.evidence += "; the others do not run " + k.name.substr(0, 80);
      else if (k.more_ns > 0)
        r.evidence +=
            fmt::format("; {} runs {:.2f}x as often, with {:.2f}x the blocks, {:.2f}x as long each",
                        k.name.substr(0, 80), k.launches, k.blocks, k.each);
      const bool more_work = k.launches == 0 || k.launches > 1.05 || k.blocks > 1.05;
      r.action = more_work ? fmt::format(
                                 "give rank {} as much work as the others: equal batches and "
                                 "lengths, layers cut by their measured time",
                                 use.rank)
                           : fmt::format(
                                 "rank {} does the same work more slowly: see its GPU's clock, "
                                 "heat and other processes (saturate top)",
                                 use.rank);
      break;
    }
    case LateCause::input:
      r.action = fmt::format(
          "have the data of rank {} ready as early as the others': its loader's workers, the size "
          "of its samples, its disk",
          use.rank);
      break;
    case LateCause::communication:
      r.action = fmt::format("see who comes last in the other communicators of rank {}", use.rank);
      break;
    case LateCause::host: {
      const std::string call = call_of(analyses[place].devices.front(), r.leaf);
      if (!call.empty()) r.evidence += "; most of it in " + call.substr(0, 60);
      r.action = fmt::format(
          "do on rank {} what the others do: take logging, evaluation, checkpoints and metrics out "
          "of its steps, and give it as many free cores; its own times follow",
          use.rank);
      break;
    }
    case LateCause::unknown:
      r.action = r.whole_graphs
                     ? "record the kernels in graphs: saturate doctor --graph-nodes -- command"
                     : "record a longer stretch, with CUDA calls, on all ranks at once";
      break;
  }
}

}  // namespace saturate::observe
