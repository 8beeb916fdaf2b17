// SPDX-License-Identifier: Apache-2.0
#include "observe/analyse/fixes.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "observe/analyse/fix_bounds.h"
#include "observe/analyse/fix_finder.h"

namespace saturate::observe {
namespace {

// Of dispatch, once what torch.profiler adds is out: it took 1.7 to 1.9 times as long where that
// showed (an H200, PyTorch 2.11).
constexpr double kProfilerLeaves = 1 / 1.9;

// Of a capture without steps, for what it shows to be more than a start: weights that are filled.
constexpr double kLeastComputing = 0.01;

constexpr std::array<FixInfo, 31> kInfo = {{
    {"graphs", "CUDA Graphs"},
    {"host_work", "host work off the launching thread"},
    {"syncs", "no waiting for the device"},
    {"loader", "data ready in advance"},
    {"copies", "pinned, overlapped copies"},
    {"allocator", "no allocation in the step"},
    {"code_load", "load code before the steps"},
    {"communication", "overlapped communication"},
    {"precision", "tensor cores (TF32)"},
    {"mixed_precision", "mixed precision (bf16)"},
    {"fusion", "fused kernels"},
    {"transfers", "larger transfers"},
    {"cores", "a core for the launching thread"},
    {"clocks", "clocks at the full rate"},
    {"layout", "one layout of memory"},
    {"attention", "attention without a mask of numbers"},
    {"recompute", "activations kept, not computed again"},
    {"weight_casts", "weights rounded to 16 bits once"},
    {"product_types", "products in a type that fast kernels take"},
    {"device_copies", "buffers changed where they lie"},
    {"kernel_copies", "no copies by kernels"},
    {"one_attention", "attention in one kernel"},
    {"float64", "float32 in place of float64"},
    {"transforms", "Fourier transforms of lengths without large prime factors"},
    {"sorts", "nothing sorted in each step"},
    {"slow_kernels", "other kernels for the same"},
    {"fewer_bytes", "fewer bytes copied to the device"},
    {"micro_batches", "one batch in place of micro-batches"},
    {"growth", "steps that do not grow"},
    {"batch", "batch x2"},
    {"processes", "several processes (MPS)"},
}};
static_assert(kInfo.size() == static_cast<size_t>(FixKind::processes) + 1);

// Causes by what they own; what changes the training or costs memory comes last, whatever it gains.
bool goes_before(const Fix& a, const Fix& b) {
  if (a.cures != b.cures) return a.cures;
  return a.cures && a.own > b.own;
}

// A graph goes behind what is in its way, unless that is small beside it; and behind the host's own
// work of about as much where it would have to be another one in each step.
void put_behind_obstacles(std::vector<Fix>& fixes) {
  constexpr double kNotSmall = 0.2, kAboutAsMuch = 0.5;
  const auto graphs = std::find_if(fixes.begin(), fixes.end(),
                                   [](const Fix& f) { return f.kind == FixKind::graphs; });
  if (graphs == fixes.end()) return;
  auto last = graphs;
  for (auto f = graphs + 1; f != fixes.end(); ++f) {
    const bool in_way = std::count(graphs->with.begin(), graphs->with.end(), f->kind) > 0;
    const bool instead = graphs->no_two_alike && f->kind == FixKind::host_work;
    if ((in_way || instead) && f->speedup >= kWorth &&
        f->own >= (in_way ? kNotSmall : kAboutAsMuch) * graphs->own)
      last = f;
  }
  std::rotate(graphs, graphs + 1, last + 1);
}

// The share of the time in long stretches of host code after a wait that had emptied the queue.
double long_after_waits(const Analysis& analysis) {
  const DeviceAnalysis& d = analysis.devices.front();
  return static_cast<double>(d.long_host[Leaf::after_sync]) /
         static_cast<double>(std::max<int64_t>(1, d.budget.total_ns()));
}

// Under a power cap what closes gaps of a busy device lets it draw more, and its clock falls: what it
// draws goes with the cube of the clock at most, so that this is the least that is lost. What memory
// bounds does not follow the clock.
void keep_to_power(Fix& f, const Budget& budget, const ClockHold& clock) {
  constexpr double kDrawnInGaps = 1.0 / 3;  // of the cap; an H100 drew 0.2 to 0.3
  int64_t follow = 0;
  for (size_t l = 0; l < kBusyLeaves; ++l)
    if (follows_clock(static_cast<Leaf>(l))) follow += budget.ns[l];
  const double part = clock.power_part * static_cast<double>(follow) /
                      static_cast<double>(std::max<int64_t>(1, budget.busy_ns()));
  const auto kept = [&](double speedup) {
    const double speed = std::cbrt(1 - (1 - kDrawnInGaps) * removed(speedup));
    return std::max(1.0, speedup / (1 + part * (1 / speed - 1)));
  };
  const double before = f.speedup;
  f.speedup = kept(before);
  f.step_ns *= before / f.speedup;
  if (f.ceiling) return;
  f.low = kept(f.low);
  f.high = kept(f.high);
}

// What makes a fix worth a line: those that cost memory more, a limit that is there for a reason
// never.
double least_of(const Fix& f, const ClockHold& clock, double busy) {
  if (is_throughput(f.kind)) return kWorthProcesses;
  if (f.kind == FixKind::fusion) return kWorthFusion;
  // Beside a device that is busy they are its own, between kernels that wait for it in a queue.
  // So are copies that would go beside its work, which then goes slower, and short waits.
  if (is_outside_kernels(f.kind) && busy > kBusy) return kWorthGaps;
  const bool only_power = clock.power && !clock.heat && !clock.supply && !clock.settings;
  // A chip that multiplies all the time is meant to be held by its power.
  return f.kind == FixKind::clocks && only_power ? std::numeric_limits<double>::max() : kWorth;
}

// Waits that go with the waiting are its own; what the device stands still after them although the
// host could not have run ahead is launching.
void share_waits(std::vector<Fix>& fixes, const Analysis& analysis) {
  Fix& syncs = fixes[static_cast<size_t>(FixKind::syncs)];
  const double left = syncs.share - long_after_waits(analysis) - removed(syncs.speedup);
  if (left > 0) fixes[static_cast<size_t>(FixKind::graphs)].share += left;
}

// What grows in the host's code is the host's work; without all of it a step is as short as can be.
void join_growth(std::vector<Fix>& fixes, const Growth& growth, double base_ns) {
  constexpr double kMostOfIt = 0.7;
  if (!growth.found || is_busy(growth.leaf)) return;
  const Fix& work = fixes[static_cast<size_t>(FixKind::host_work)];
  Fix& f = fixes[static_cast<size_t>(FixKind::growth)];
  if (work.share < kMostOfIt * f.share) return;  // it grows in stretches of another kind
  const double without_work = base_ns / std::max(work.speedup, work.high);
  const double grown = f.high;
  f.high = std::max(grown, base_ns / without_work);
  f.speedup = std::max(f.speedup, std::sqrt(f.low * f.high));
  f.step_ns = base_ns / f.speedup;
  f.share = work.share;
}

// A cause that grows is named by its growth.
void put_growth_first(std::vector<Fix>& fixes) {
  constexpr double kGrows = 0.5;  // of what the first owns
  const auto growth = std::find_if(fixes.begin(), fixes.end(),
                                   [](const Fix& f) { return f.kind == FixKind::growth; });
  if (growth->speedup >= kWorth && growth->own >= kGrows * fixes.front().own)
    std::rotate(fixes.begin(), growth, growth + 1);
}

// The part of the window in which kernels ran, and graphs; over 1 where they overlap.
double computing_share(const Replay& replay) {
  int64_t ns = 0;
  replay.visit([&](const ReplayEvent& e, const ReplayOp* ops, int64_t) {
    for (uint32_t i = 0; i < e.ops; ++i)
      if (ops[i].blocks > 0 || ops[i].graph) ns += ops[i].duration_ns;
  });
  return static_cast<double>(ns) /
         static_cast<double>(std::max<int64_t>(1, replay.measured().total_ns));
}

// Where no replay holds: whatever is changed outside of the kernels, the device still has its work. What
// a change brings lies between nothing and the end of all of the device's idle time.
std::vector<Fix> unreplayed(const std::vector<Fix>& fixes, const Budget& budget) {
  constexpr double kPart = 0.03;  // of the time: less is no cause
  const auto total = static_cast<double>(budget.total_ns());
  const double most = total / std::max(1.0, static_cast<double>(budget.busy_ns()));
  std::vector<Fix> possible;
  for (const Fix& fix : fixes) {
    if (!is_outside_kernels(fix.kind) || fix.share < kPart || most < kWorthPossible) continue;
    Fix& f = possible.emplace_back(fix);
    f.unsure = true;
    f.ceiling = false;
    f.speedup = f.low = 1;
    f.high = most;
    f.step_ns = 0;
    f.own = f.share;
    f.assumes = "the kernels take as long as now, and the device never stands still";
  }
  std::stable_sort(possible.begin(), possible.end(),
                   [](const Fix& a, const Fix& b) { return a.share > b.share; });
  return possible;
}

// Pairs of causes that only bring something together.
std::vector<Pair> find_pairs(const FixFinder& finder, const std::vector<Fix>& fixes) {
  constexpr double kPart = 0.05;  // of the time: less is no cause
  std::vector<Pair> pairs;
  double best = 1;  // of one alone
  for (const Fix& f : fixes)
    if (f.cures) best = std::max(best, f.speedup);
  for (size_t i = 0; i < fixes.size(); ++i) {
    for (size_t k = i + 1; k < fixes.size(); ++k) {
      const Fix &a = fixes[i], &b = fixes[k];
      const auto fits = [](const Fix& f) {
        return f.cures && f.share >= kPart && f.with.empty() && f.kind != FixKind::growth &&
               f.kind != FixKind::fusion && f.kind != FixKind::clocks &&
               f.kind != FixKind::precision && f.kind != FixKind::mixed &&
               f.kind != FixKind::layout && f.kind != FixKind::attention &&
               !is_of_marked_kernels(f.kind);
      };
      if (!fits(a) || !fits(b)) continue;
      const FixKind both[] = {a.kind, b.kind};
      Fix f;
      set_bound(f, finder.base_ns(), finder.step(both, Assume::surely),
                finder.step(both, Assume::at_most));
      if (removed(f.speedup) < removed(a.speedup) + removed(b.speedup) + kPart ||
          f.speedup < kSameBound * best)
        continue;
      pairs.push_back({a.kind, b.kind, f.speedup, f.step_ns, f.ceiling, f.low, f.high});
    }
  }
  std::stable_sort(pairs.begin(), pairs.end(),
                   [](const Pair& a, const Pair& b) { return a.speedup > b.speedup; });
  if (pairs.size() > 2) pairs.resize(2);
  return pairs;
}

}  // namespace

const FixInfo& fix_info(FixKind kind) { return kInfo[static_cast<size_t>(kind)]; }

FixReport find_fixes(Replay replay, const Analysis& analysis, double untraced_step_ns,
                     const ClockHold& clock) {
  FixReport report;
  if (!replay.usable()) {
    report.why_not = "too few operations with the calls that issued them";
    return report;
  }
  if (!replay.computes()) {
    report.why_not = "nothing was computed, only copied and allocated: a program that gets ready";
    return report;
  }
  if (const double computing = computing_share(replay);
      !replay.whole_steps() && computing < kLeastComputing) {
    report.why_not = fmt::format(
        "no steps were found, and kernels ran for {:.3f}% of the time: a program that gets ready",
        100 * computing);
    return report;
  }
  report.replay_error = replay.error();
  report.unexplained = replay.unexplained();
  report.whole_steps = replay.whole_steps();
  report.window_steps = replay.steps();
  // What waits for the device cost is mostly that the host cannot run ahead afterwards: only the
  // replay sees that. Of the capture as it was recorded, like the attribution.
  constexpr FixKind kWaits[] = {FixKind::syncs};
  const FixFinder recorded(replay, analysis, clock);
  const double waits_cost = 1 - recorded.step(kWaits, Assume::surely) / recorded.base_ns();
  report.step_given = untraced_step_ns > 0;
  if (report.step_given)
    report.dispatch = replay.scale_dispatch(untraced_step_ns,
                                            analysis.source == kKinetoSource ? kProfilerLeaves : 1);
  const FixFinder finder(replay, analysis, clock);
  report.replay_step_ns = finder.base_ns();
  report.numbers = replay.error() <= kMaxReplayError && replay.unexplained() <= kMaxUnexplained;
  if (replay.unexplained() > kMaxUnexplained)
    report.why_not = fmt::format(
        "waits of issued work that nothing in the capture explains add up to {:.0f}% of the time",
        100 * replay.unexplained());
  if (replay.error() > kMaxReplayError)
    report.why_not = fmt::format(
        "replaying the unchanged capture misses its time by {:.1f}%, more than {:.0f}%: no number "
        "would be worth anything",
        100 * replay.error(), 100 * kMaxReplayError);

  // Of two steps that differ what happened once may be every step's, or no other's.
  if (const StepAnalysis& s = analysis.steps;
      s.found && s.count == 2 && s.mean_ns > kWorth * s.p10_ns) {
    report.numbers = false;
    report.why_not = fmt::format(
        "two steps were found, which differ by {:.0f}%: what happens once cannot be told from what "
        "every step does",
        200 * (s.mean_ns / s.p10_ns - 1));
  }

  std::vector<Fix> fixes;
  for (size_t k = 0; k < kInfo.size(); ++k) fixes.push_back(finder.find(static_cast<FixKind>(k)));
  share_waits(fixes, analysis);
  if (Fix& syncs = fixes[static_cast<size_t>(FixKind::syncs)]; report.numbers) {
    syncs.share = std::max(0.0, waits_cost);
    if (!syncs.ceiling) syncs.share = std::max(syncs.share, removed(syncs.speedup));
  }
  // Host work after a wait, which would be hidden without the wait, is the wait's.
  const double could_run_ahead = std::min(
      removed(fixes[static_cast<size_t>(FixKind::syncs)].speedup), long_after_waits(analysis));
  join_growth(fixes, finder.growth(), finder.base_ns());
  // Unless it works on what it waited for: then the wait cannot go without the work. Nor does what is
  // compiled after a wait go with it.
  const DeviceAnalysis& device = analysis.devices.front();
  const double needs = (device.host_lines.needs_value_ns +
                        device.host_lines.compiling_ns[static_cast<size_t>(Leaf::after_sync)]) /
                       static_cast<double>(std::max<int64_t>(1, device.budget.total_ns()));
  const double stays = std::min(could_run_ahead, needs);
  const Budget& budget = device.budget;
  const double busy = static_cast<double>(budget.busy_ns()) /
                      static_cast<double>(std::max<int64_t>(1, budget.total_ns()));
  for (Fix& f : fixes) {
    const bool capped = is_outside_kernels(f.kind) && busy > kBusy && clock.power_part > 0;
    if (capped) keep_to_power(f, budget, clock);
    f.own = f.kind == FixKind::syncs ? removed(f.speedup) : std::min(f.share, removed(f.speedup));
    if (f.kind == FixKind::syncs) f.own = std::max(0.0, f.own - stays);
    if (f.kind == FixKind::host_work) f.own = std::max(0.0, f.own - could_run_ahead + stays);
    // Fewer kernels are fewer launches, too: where the device stands still that is launching's.
    if (f.kind == FixKind::fusion) f.own *= busy;
    finder.add_words_to(f);
    if (capped && !f.assumes.empty()) f.assumes += "; ";
    if (capped) f.assumes += "the power cap stays, so that kernels get slower where gaps close";
  }
  Fix& mixed = fixes[static_cast<size_t>(FixKind::mixed)];  // behind the switch that rounds less
  const Fix& tf32 = fixes[static_cast<size_t>(FixKind::precision)];
  if (tf32.speedup >= kWorthMixed) mixed.own = std::min(mixed.own, tf32.own);
  if (report.numbers) report.together = find_pairs(finder, fixes);
  std::stable_sort(fixes.begin(), fixes.end(), goes_before);
  put_behind_obstacles(fixes);
  put_growth_first(fixes);
  std::vector<Fix> possible = unreplayed(fixes, budget);
  // Beside a device that is busy an estimate counts by what is sure of it.
  const auto counted = [&](const Fix& f) {
    return is_outside_kernels(f.kind) && busy > kBusy && !f.ceiling ? f.low : f.speedup;
  };
  for (Fix& f : fixes)
    (f.unsure && f.high >= kWorthPossible     ? report.possible
     : counted(f) >= least_of(f, clock, busy) ? report.worth
                                              : report.not_worth)
        .push_back(std::move(f));
  if (!report.numbers) report.possible = std::move(possible);
  for (size_t i = 1; i < report.worth.size(); ++i) {
    Fix& f = report.worth[i];
    const Fix& first = report.worth[0];
    const auto cannot = [](const Fix& x) {
      return x.step_ns <= 0 || x.kind == FixKind::growth || x.kind == FixKind::mixed ||
             is_throughput(x.kind);
    };
    if (cannot(f) || cannot(first)) continue;
    const FixKind one[] = {first.kind}, other[] = {f.kind}, both[] = {first.kind, f.kind};
    const double alone = finder.step(one, Assume::surely);
    const double gain = finder.base_ns() - finder.step(other, Assume::surely);
    if (gain > 0)
      f.shared = std::clamp(1 - (alone - finder.step(both, Assume::surely)) / gain, 0.0, 1.0);
  }
  return report;
}

}  // namespace saturate::observe
