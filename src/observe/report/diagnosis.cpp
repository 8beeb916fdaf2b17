// SPDX-License-Identifier: Apache-2.0
#include "observe/report/diagnosis.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>

#include "observe/analyse/fix_bounds.h"
#include "observe/analyse/names.h"
#include "observe/read/open_capture.h"
#include "observe/report/host_lines.h"
#include "observe/report/host_uses.h"
#include "observe/report/shared_gpu.h"

namespace saturate::observe {
namespace {

constexpr double kMostlyBusy = 0.8, kWorthName = 1.15;

struct Name {
  const char *id, *headline;
};

// In the order of FixKind.
constexpr Name kNames[] = {{"launch_bound", "launch-bound"},
                           {"host_bound", "host-bound"},
                           {"sync_bound", "synchronisation-bound"},
                           {"input_bound", "input-bound"},
                           {"copy_bound", "copy-bound"},
                           {"allocation_bound", "allocation-bound"},
                           {"load_bound", "held up by code that is compiled or loaded"},
                           {"communication_bound", "communication-bound"},
                           {"gpu_bound", "GPU-bound"},
                           {"gpu_bound", "GPU-bound"},
                           {"gpu_bound", "GPU-bound"},
                           {"copy_bound", "copy-bound"},
                           {"core_bound", "short of CPU cores"},
                           {"clock_bound", "held down by its clocks"},
                           {"gpu_bound", "GPU-bound"},
                           {"gpu_bound", "GPU-bound"},
                           {"gpu_bound", "GPU-bound"},
                           {"gpu_bound", "GPU-bound"},
                           {"gpu_bound", "GPU-bound"},
                           {"gpu_bound", "GPU-bound"},
                           {"gpu_bound", "GPU-bound"},
                           {"gpu_bound", "GPU-bound"},
                           {"gpu_bound", "GPU-bound"},
                           {"gpu_bound", "GPU-bound"},
                           {"gpu_bound", "GPU-bound"},
                           {"gpu_bound", "GPU-bound"},
                           {"copy_bound", "copy-bound"},
                           {"launch_bound", "launch-bound"},
                           {"growth_bound", "held up by what grows"},
                           {"under_filled", "GPU not filled"},
                           {"under_filled", "GPU not filled"}};
static_assert(std::size(kNames) == static_cast<size_t>(FixKind::processes) + 1);

Name name_of(FixKind kind) { return kNames[static_cast<size_t>(kind)]; }

Name name_of(Leaf leaf) {
  constexpr std::pair<Leaf, FixKind> kCauses[] = {
      {Leaf::launch, FixKind::graphs},       {Leaf::launch_latency, FixKind::graphs},
      {Leaf::host_code, FixKind::host_work}, {Leaf::loader, FixKind::loader},
      {Leaf::file_read, FixKind::host_work}, {Leaf::file_write, FixKind::host_work},
      {Leaf::network, FixKind::host_work},   {Leaf::gil, FixKind::host_work},
      {Leaf::lock, FixKind::host_work},      {Leaf::sync, FixKind::syncs},
      {Leaf::after_sync, FixKind::syncs},    {Leaf::blocking_copy, FixKind::copies},
      {Leaf::allocator, FixKind::allocator}, {Leaf::runnable, FixKind::cores},
      {Leaf::code_load, FixKind::code_load}};
  if (leaf == Leaf::dependency) return {"dependency_bound", "waiting for other streams or devices"};
  for (const auto& [cause, fix] : kCauses)
    if (cause == leaf) return name_of(fix);
  return {"unknown", "no cause found"};
}

// Of a mean step; of the whole capture when no steps were found.
double step_part_ns(const Analysis& analysis, double share_of_time) {
  return share_of_time * (analysis.steps.found
                              ? analysis.steps.stretch_ns
                              : static_cast<double>(analysis.devices.front().budget.total_ns()));
}

double share(int64_t part, int64_t whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0;
}

const Fix& fix_of(const FixReport& fixes, FixKind kind) {
  const auto is_it = [&](const Fix& f) { return f.kind == kind; };
  const auto at = std::find_if(fixes.worth.begin(), fixes.worth.end(), is_it);
  return at != fixes.worth.end()
             ? *at
             : *std::find_if(fixes.not_worth.begin(), fixes.not_worth.end(), is_it);
}

// Takes out what the program's pace before the windows says that recording cost, as far as its calls
// can have cost it: a pace that was measured once may be that of another part of the program. Of a step
// what the device works stays: where batches that were ready let the host run ahead its pace falls by
// itself.
void take_cost_out(Replay& replay, Analysis& analysis) {
  analysis.slowdown = replay.remove_cost(analysis.slowdown);
  const Budget& b = analysis.devices.front().budget;
  const auto total = static_cast<double>(std::max<int64_t>(1, b.total_ns()));
  const double busy_ns = step_part_ns(analysis, static_cast<double>(b.busy_ns()) / total);
  const double step_ns = analysis.steps.found ? analysis.steps.median_ns : total;
  if (busy_ns > 0)
    analysis.slowdown = std::min(analysis.slowdown, std::max(1.0, step_ns / busy_ns));
}

}  // namespace

ClockHold clock_hold(const Counters& counters) {
  ClockHold hold;
  for (const auto& [gpu, c] : counters.clocks) {
    if (c.speed >= hold.speed || c.held == 0) continue;
    hold = {};
    hold.speed = c.speed;
    if (const auto cap = c.by_reason.find(kReasonPowerCap); cap != c.by_reason.end())
      hold.power_part = share(cap->second, c.samples);
    for (const auto& [bit, n] : c.by_reason) {
      if (20 * n < c.held) continue;
      hold.power = hold.power || bit == kReasonPowerCap;
      hold.heat = hold.heat || bit == kReasonThermal || bit == kReasonHardwareThermal;
      hold.supply = hold.supply || bit == kReasonHardwareSlowdown || bit == kReasonPowerBrake;
      hold.settings = hold.settings || bit == kReasonApplicationClocks || bit == kReasonSyncBoost;
    }
    hold.evidence = fmt::format(
        "in {:.0f}% of the samples with work something held the clock of GPU {} down ({}): {:.0f} "
        "MHz on average of {:.0f}",
        100.0 * c.held / c.samples, gpu, held_by(c), c.mean_mhz, c.full_mhz);
  }
  return hold;
}

Verdict judge(const Analysis& analysis, const FixReport& fixes) {
  const DeviceAnalysis& d = analysis.devices.front();
  const int64_t total = d.budget.total_ns();
  const double busy = share(d.budget.busy_ns(), total);
  const double unknown = share(d.budget[Leaf::unknown] + d.budget[Leaf::lost], total);
  Verdict v;
  // Making code is a cause of its own, in whichever leaves it lies.
  const auto& compiling_ns = d.host_lines.compiling_ns;
  const double compiling = std::accumulate(compiling_ns.begin(), compiling_ns.end(), 0.0) /
                           static_cast<double>(std::max<int64_t>(1, total));
  size_t largest = kBusyLeaves;
  for (size_t l = kBusyLeaves; l < kLeaves; ++l) {
    if (d.budget.ns[l] > d.budget.ns[largest]) largest = l;
  }
  const bool compiles =
      compiling > share(d.budget.ns[largest], total) -
                      compiling_ns[largest] / static_cast<double>(std::max<int64_t>(1, total));
  // A larger batch cures no cause; it is one only where small kernels are what there is.
  const Fix *first = nullptr, *batch = nullptr;
  bool capped = false;
  if (fixes.numbers) {
    for (const Fix& f : fixes.worth) {
      if (f.kind == FixKind::batch) batch = &f;
      if (f.cures && first == nullptr) first = &f;
    }
    for (const Fix& f : fixes.not_worth)
      capped = capped || (f.kind == FixKind::clocks && f.speedup >= kWorth);
  }
  const double small = share(d.budget[Leaf::tiny] + d.budget[Leaf::low_grid], total);
  const bool unfixable =
      static_cast<Leaf>(largest) == Leaf::dependency || static_cast<Leaf>(largest) == Leaf::unknown;
  if (unfixable && share(d.budget.ns[largest], total) > 0.25 &&
      (first == nullptr || share(d.budget.ns[largest], total) > 1 - 1 / first->speedup))
    first = batch = nullptr;
  else if (first == nullptr && batch != nullptr && small > 0.3)
    first = batch;
  // What brings as little beside a device that computes nearly all the time is no cause.
  const Fix* least = nullptr;
  // Nor what owns next to nothing of the time and only lets the host run ahead.
  const auto hides = [](const Fix& f) { return f.own < 0.5 * (1 - 1 / kWorth); };
  if (first != nullptr && busy > kBusy && (first->speedup < kWorthGaps || hides(*first)))
    std::swap(first, least);
  // The time is spent on the device where it works most of it and what waits around it is little.
  if (first != nullptr && is_outside_kernels(first->kind) && busy > kMostlyBusy &&
      first->speedup < kWorthName) {
    least = first;
    const auto& worth = fixes.worth;
    const auto own = std::find_if(worth.begin(), worth.end(), [](const Fix& f) {
      return f.cures && !is_outside_kernels(f.kind);
    });
    first = own == worth.end() ? nullptr : &*own;
  }
  if (first == nullptr && least == nullptr && fixes.numbers) {
    for (const Fix& f : fixes.not_worth)
      if (is_outside_kernels(f.kind) && f.speedup >= kWorth &&
          (least == nullptr || f.speedup > least->speedup))
        least = &f;
  }
  const bool pair = first == nullptr && fixes.numbers && !fixes.together.empty();
  if (first != nullptr || pair) {
    if (pair) first = &fix_of(fixes, fixes.together.front().first);
    const Name name = name_of(first->kind);
    v.id = name.id;
    v.headline = name.headline;
    v.why = first->evidence;
    v.next = first->action;
    v.cause_ns = step_part_ns(analysis, first->share);
    if (!first->obstacle.empty()) v.next += "; as it is " + first->obstacle;
    if (pair)
      v.next += fmt::format("; and, for one alone brings little: {}",
                            fix_of(fixes, fixes.together.front().second).action);
  } else if (busy > 0.95 || share(d.budget.ns[largest], total) < 0.1 ||
             (fixes.numbers && !(unfixable && busy < 0.75))) {
    v.id = "gpu_bound";
    v.headline = "GPU-bound";
    v.why = fmt::format("the device is busy {:.1f}% of the time", 100 * busy);
    if (least != nullptr)
      v.why += fmt::format(", and no change outside the kernels would bring more than {:.1f}% ({})",
                           100 * (least->speedup - 1), fix_info(least->kind).title);
    else if (fixes.numbers)
      v.why +=
          fmt::format(", and no change outside the kernels would bring {:.0f}%{}",
                      100 * (kWorth - 1), capped ? ", but for the clock under the power cap" : "");
    v.next = "make the kernels themselves faster: see the kernel table";
    if (fixes.numbers)
      for (const Fix& f : fixes.possible) v.next += "; it may be this: " + f.action;
    v.cause_ns = step_part_ns(analysis, busy);
    // Busy with moving, which no overlap would hide.
    const double copies = share(d.budget[Leaf::copy_in] + d.budget[Leaf::copy_in_pageable] +
                                    d.budget[Leaf::copy_out] + d.budget[Leaf::copy_out_pageable],
                                total);
    const double communication = share(d.budget[Leaf::communication], total);
    if (std::max(copies, communication) > 0.5) {
      const Name name = name_of(copies > communication ? FixKind::copies : FixKind::communication);
      v.id = name.id;
      v.headline = name.headline;
      v.why = fmt::format(
          "{:.1f}% of the time the device only moves data, more than a computation beside it could "
          "hide",
          100 * std::max(copies, communication));
      v.next = "move fewer bytes: smaller types, and data that stays on the device";
      v.cause_ns = step_part_ns(analysis, std::max(copies, communication));
    }
  } else if (compiles) {
    const Name name = name_of(FixKind::code_load);
    v.id = name.id;
    v.headline = name.headline;
    v.why =
        fmt::format("{:.1f}% of the time the device waits while code is traced, compiled or tuned",
                    100 * compiling);
    v.next =
        "what is compiled once costs a longer run a smaller part: watch one that goes on after it "
        "(or --delay past it); what is compiled again and again wants shapes that stay equal";
    v.cause_ns = step_part_ns(analysis, compiling);
  } else {
    // Long work after a wait could be hidden by no more than what the device had to do before it.
    const bool own_work = static_cast<Leaf>(largest) == Leaf::after_sync &&
                          2 * d.long_host[Leaf::after_sync] > d.budget[Leaf::after_sync];
    const Name name = name_of(own_work ? Leaf::host_code : static_cast<Leaf>(largest));
    v.id = name.id;
    v.headline = name.headline;
    v.why = fmt::format("{:.1f}% of the time: {}", 100 * share(d.budget.ns[largest], total),
                        leaf_info(static_cast<Leaf>(largest)).meaning);
    v.next = fixes.numbers
                 ? "inspect the trace around these waits: nothing in it says what they are for"
                 : "no numbers: " + fixes.why_not;
    v.cause_ns = step_part_ns(analysis, share(d.budget.ns[largest], total));
  }
  const int64_t steps = analysis.steps.count;
  const bool measured = fixes.numbers && analysis.dropped == 0;
  v.confidence = measured && steps >= 20 && fixes.replay_error <= 0.02 && unknown < 0.02 &&
                         fixes.unexplained < 0.2
                     ? "high"
                 : measured && steps >= 5 && unknown < 0.10 ? "medium"
                                                            : "low";
  return v;
}

namespace {

// Of the waiting, what makes one of so many ranks the one that holds the others up: of two, one has half
// of it by chance.
double least_of_straggler(size_t ranks) {
  return std::max(0.5, 0.4 + 0.6 / static_cast<double>(std::max<size_t>(1, ranks)));
}

// A communicator whose collectives, several a step, hold most of the exposed waiting and carry hardly
// anything: what is reduced for a log, a check or a flag.
const CommunicatorUse* small_talk(const RankReport& r) {
  constexpr double kMost = 0.5, kHardly = 0.1, kSeveral = 2;
  double waiting = 0;
  for (const CommunicatorUse& c : r.communicators) waiting += c.exposed_waiting_ns;
  for (const CommunicatorUse& c : r.communicators)
    if (r.steps > 0 && static_cast<double>(c.collectives) >= kSeveral * r.steps &&
        c.exposed_waiting_ns > kMost * waiting && c.transfer_ns < kHardly * c.exposed_waiting_ns)
      return &c;
  return nullptr;
}

// Waits for other ranks are the cause where what they cost is not small beside what the rank's own
// first cause does: they are what the time is spent on.
void judge_ranks(Diagnosis& g) {
  const RankReport& r = *g.ranks;
  if (r.straggler < 0 || r.wall_ns() <= 0 || r.gain(r.saved_all_ns) < kWorth) return;
  double own = 0;
  if (g.fixes.numbers)
    for (const Fix& f : g.fixes.worth)
      if (f.cures) own = std::max(own, f.own);
  if (r.saved_all_ns / r.wall_ns() < 0.5 * own) return;
  Verdict& v = g.verdict;
  const RankUse& use = r.ranks[static_cast<size_t>(r.straggler)];
  if (r.straggler_share >= least_of_straggler(r.ranks.size())) {
    v.id = "straggler_bound";
    v.headline = fmt::format("held up by rank {}", use.rank);
    v.why = r.evidence;
    v.next = r.action;
    v.cause_ns = r.per_step(use.caused_ns);
  } else {
    double caused = 0;
    for (const RankUse& u : r.ranks) caused += u.caused_ns;
    caused *= 1 - 1 / static_cast<double>(r.ranks.size());  // no rank waits for itself
    v.id = "imbalance_bound";
    v.headline = "ranks wait for each other in turn";
    v.why = fmt::format(
        "no rank holds the others up most of the time (rank {} does for {:.0f}% of the waiting), "
        "and each waits {:.3g} ms {} on average",
        use.rank, 100 * r.straggler_share, 1e-6 * r.per_step(caused),
        r.steps > 0 ? "a step" : "in all");
    v.next =
        "equal work for all ranks in each step: batches by tokens rather than rows, sorted lengths "
        "dealt out evenly";
    if (const CommunicatorUse* c = small_talk(r)) {
      v.why +=
          fmt::format("; {:.1f} {} a step wait {:.3g} ms for {:.3g} ms of transfer",
                      static_cast<double>(c->collectives) / r.steps,
                      c->communicator.what.empty() ? "collectives" : c->communicator.what,
                      1e-6 * r.per_step(c->exposed_waiting_ns), 1e-6 * r.per_step(c->transfer_ns));
      v.next =
          "fewer collectives: each makes every rank as late as the last; reduce what is only "
          "logged "
          "or checked once in many steps, several values at once, or without waiting for it";
    }
    v.cause_ns = r.per_step(caused);
  }
  const bool whole = !r.whole_graphs && 20 * r.unmatched <= r.parts;
  v.confidence = whole && r.steps >= 20 ? "high" : whole && r.steps >= 5 ? "medium" : "low";
}

}  // namespace

Diagnosis diagnose_ranks(std::vector<RankTrace>& ranks, const std::string& name,
                         AnalyseOptions options, Counters counters) {
  Diagnosis result;
  result.file = name;
  result.counters = std::move(counters);
  const MatchedRanks matched = match_collectives(ranks);
  std::vector<Analysis> analyses;
  std::vector<std::optional<Replay>> replays;
  for (RankTrace& rank : ranks) {
    Analyser analyser(options);
    analyser.consume(rank.trace, true);
    analyses.push_back(analyser.finish(rank.trace));
    std::erase_if(analyses.back().notes, [](const std::string& note) {
      return note.starts_with("rank ");  // of the reader of one rank's trace
    });
    replays.push_back(analyser.replay());
  }
  result.ranks = analyse_ranks(ranks, matched, analyses);
  const RankReport& r = *result.ranks;
  result.shown = r.straggler < 0 ? 0 : static_cast<size_t>(r.straggler);
  result.analysis = std::move(analyses[result.shown]);
  if (replays[result.shown]) {
    Replay replay = *replays[result.shown];
    take_cost_out(replay, result.analysis);
    result.fixes =
        find_fixes(replay, result.analysis, options.untraced_step_ns, clock_hold(result.counters));
  }
  result.verdict = judge(result.analysis, result.fixes);
  judge_ranks(result);
  expect_a_part(result.fixes);
  name_shared_gpu(result);
  name_line(result);
  return result;
}

Diagnosis diagnose(const std::string& path, AnalyseOptions options) {
  return diagnose(*open_capture(path), path, options, read_counters(path));
}

Diagnosis diagnose(Capture& capture, const std::string& name, AnalyseOptions options,
                   Counters counters) {
  Diagnosis result;
  result.counters = std::move(counters);
  result.file = name;
  Analyser analyser(options);
  for (bool more = true; more;) {
    more = capture.read_window();
    analyser.consume(capture.trace(), !more);
  }
  result.analysis = analyser.finish(capture.trace());
  if (analyser.replay()) {
    Replay replay = *analyser.replay();
    take_cost_out(replay, result.analysis);
    result.fixes =
        find_fixes(replay, result.analysis, options.untraced_step_ns, clock_hold(result.counters));
  }
  result.verdict = judge(result.analysis, result.fixes);
  expect_a_part(result.fixes);
  name_shared_gpu(result);
  name_line(result);
  if (const std::string use = main_host_use(result); !use.empty()) result.verdict.why += "; " + use;
  return result;
}

}  // namespace saturate::observe
