// SPDX-License-Identifier: Apache-2.0
#include "observe/analyse/fix_finder.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

#include "observe/analyse/fix_bounds.h"
#include "observe/analyse/names.h"
#include "observe/analyse/obstacles.h"

namespace saturate::observe {
namespace {

// Between runs of one program, of what loader workers deliver (docs/guide/doctor_case.md).
constexpr double kPaceDiffers = 1.2;
// What a remedy makes of data that come at a pace of their own, at least: a quarter cheaper.
constexpr double kLeastOfLoader = 4.0 / 3;
constexpr double kMostJoined = 64;     // times: something is left of every program
constexpr double kReadsArrays = 0.05;  // of the time
constexpr double kChecks = 0.2;        // values that are read, a kernel
constexpr double kSteers = 1.5;        // places where a step waits for the device
constexpr double kTooOftenNs = 1e6;    // from wait to wait: no log has a line in each millisecond
// What goes along with waits, of the logarithm of all that lies around them: of 21 programs 0.58 in the median when they were taken
// out; of the three with so little in the waits and so much around them -0.06, 0.01 and 0.19 (docs/guide/doctor_case.md).
constexpr double kLittleWaits = 1.08, kMuchAround = 3, kAlongWithLittle = 0.1, kAlong = 0.5;

// Whether other threads take cores, locks or memory from the one that issues: it is kept from a
// core, or its stretches take more than twice what the fastest tenth of their kind do.
bool is_crowded(const Replay& replay, const Analysis& analysis) {
  const Budget& b = analysis.devices.front().budget;
  const auto total = static_cast<double>(std::max<int64_t>(1, b.total_ns()));
  if (static_cast<double>(b[Leaf::runnable] + b[Leaf::gil] + b[Leaf::lock]) > 0.05 * total)
    return true;
  int64_t host = 0, least = 0;
  replay.visit([&](const ReplayEvent& e, const ReplayOp*, int64_t) {
    if (e.host_ns > kDispatchNs || e.least_host_ns == INT64_MAX) return;
    host += e.host_ns;
    least += std::min(e.host_ns, e.least_host_ns);
  });
  return host > 2 * least;
}

}  // namespace

FixFinder::FixFinder(const Replay& replay, const Analysis& analysis, const ClockHold& clock)
    : replay_(replay), analysis_(analysis), clock_(clock), base_(replay.run().step_ns) {
  const DeviceAnalysis& d = analysis.devices.front();
  settings_ = edit_settings(d.info.name, analysis.copy_rates);
  settings_.clock_speed = clock.speed;
  settings_.crowded = is_crowded(replay, analysis);
  int64_t prepared = 0, out = 0, fed = 0, half = 0, others = 0, looped = 0, all = 0;
  replay.visit([&](const ReplayEvent& e, const ReplayOp* ops, int64_t) {
    if (e.prepares) prepared += waits_ns(e);
    for (uint32_t i = 0; i < e.ops; ++i) {
      ++all;
      looped += ops[i].loops ? 1 : 0;
      settings_.scattered = settings_.scattered || ops[i].of_scattered;
      if (ops[i].product && !ops[i].float32_attention)
        (ops[i].half_product ? half : others) += ops[i].duration_ns;
      if (!is_bulk_out(ops[i])) continue;
      out += ops[i].duration_ns;
      fed += e.feeds_host ? ops[i].duration_ns : 0;
    }
  });
  settings_.half_products = half > others;
  settings_.micro_batches = replay.micro_batches();
  settings_.looped = static_cast<double>(looped) / static_cast<double>(std::max<int64_t>(1, all));
  settings_.fed = static_cast<double>(fed) / static_cast<double>(std::max<int64_t>(1, out));
  if (const HostLines& lines = d.host_lines; lines.samples >= kFewSamples) {
    const auto total = static_cast<double>(std::max<int64_t>(1, d.budget.total_ns()));
    settings_.of_model = lines.model_ns / total;
    settings_.reading =
        std::accumulate(lines.reading_ns.begin(), lines.reading_ns.end(), 0.0) / total;
    if (!lines.lines.empty()) settings_.of_line = lines.lines.front().share * lines.idle_ns / total;
  }
  settings_.prepared =
      static_cast<double>(prepared) / std::max(1.0, base_ * static_cast<double>(replay.steps()));
  growth_ = find_growth(analysis.steps);
}

Fix FixFinder::find(FixKind kind) const {
  Fix f;
  f.kind = kind;
  std::vector<FixKind> kinds{kind};
  if (kind == FixKind::graphs) {
    const Obstacles obstacles = find_obstacles(replay_);
    f.obstacle = obstacles.words();
    f.with = obstacles.fixes();
    f.no_two_alike = obstacles.no_two_alike();
    if (settings_.reading >= kReadsArrays && f.with.empty()) {
      f.obstacle = "a step waits until arrays are read, which a graph cannot hold";
      f.with = {FixKind::syncs};
    }
    kinds.insert(kinds.begin(), f.with.begin(), f.with.end());
  }
  double surely = step(kinds, Assume::surely);
  // Streams that a graph lets run side by side share the device: what they took in turns is not less for certain.
  if (kind == FixKind::graphs) surely = std::max(surely, std::min(base_, busy_ns()));
  if (is_throughput(kind)) {
    const double work = (kind == FixKind::batch ? 2 : 1) * base_;
    set_bound(f, work, surely, step(kinds, Assume::at_most));
    f.step_ns = 0;
    // Whether small kernels find room beside each other does not show: their registers and shared
    // memory, and what they share of caches, decide it.
    f.unsure = work / surely < kWorthProcesses;
  } else if (kind == FixKind::growth) {
    set_growth(f);
  } else if (kind == FixKind::graphs) {
    set_graphs(f, surely, std::min(step(kinds, Assume::at_most), one_program_ns()),
               std::min(step(kinds, settings_.looped > kLooped ? Assume::ahead : Assume::likely),
                        fused_ns(kinds)));
    // Host code that stays may be faster, as that of another run.
    constexpr double kMuch = 1.2;
    if (base_ / surely >= kMuch)
      widen(f, base_ / surely, std::min(kMostJoined, base_ / step(kinds, Assume::ahead)));
    // A compiled model leaves the optimizer, the loader and what else lies outside of it. Where there
    // is no model (JAX, CuPy) people join the operations of the line that issues most, and not all.
    const double joined = settings_.of_model > 0 ? settings_.of_model : settings_.of_line / 2;
    if (!f.ceiling && joined > 0)
      f.low = std::min(f.low, 1 / (1 - std::min(joined, 1 - 1 / kMostJoined)));
  } else if (kind == FixKind::recompute) {
    set_recompute(f, surely);
  } else if (kind == FixKind::micro_batches) {
    f.step_ns = base_;
    // A larger batch has kernels of its own, and its host as much as one of these or more.
    if (const auto n = static_cast<double>(replay_.micro_batches()); n > 1) {
      const auto of_all = [&](double step_ns) {
        return std::max(base_ / n, base_ - (base_ - step_ns) / replay_.later_part_found());
      };
      constexpr double kWorthMemory = 1.1;
      set_sure_part(f, of_all(surely), of_all(step(kinds, Assume::at_most)), kWorthMemory);
    }
  } else if (kind == FixKind::weight_casts) {
    set_sure_part(f, surely, step(kinds, Assume::ahead));
  } else if (kind == FixKind::kernel_copies || kind == FixKind::one_attention ||
             kind == FixKind::sorts || kind == FixKind::slow_kernels) {
    // What their launches cost is the launches' matter.
    const double marked = replay_.serial_ns([=](const ReplayOp& op) {
      const bool is_one = kind == FixKind::kernel_copies   ? op.copies
                          : kind == FixKind::one_attention ? op.of_weights
                          : kind == FixKind::sorts         ? op.sorts
                                                           : op.slow;
      return is_one ? op.duration_ns : 0;
    });
    set_sure_part(f, base_ / std::max(1.0, base_ - marked) < kWorthCopies ? base_ : surely,
                  step(kinds, Assume::ahead),
                  kind == FixKind::one_attention ? kWorth : kWorthCopies);
    // Rows picked by indices may be a look-up, or a copy in another order.
    if (kind == FixKind::kernel_copies && f.speedup == 1) {
      const double picked =
          replay_.serial_ns([](const ReplayOp& op) { return op.gathers ? op.duration_ns : 0; });
      f.high = kSameBound * base_ / std::max(1.0, base_ - picked - marked);
      f.unsure = base_ / std::max(1.0, base_ - picked) >= kWorthPossible;
    }
  } else if (kind == FixKind::product_types || kind == FixKind::float64 ||
             kind == FixKind::transforms) {
    set_sure_part(f, surely, step(kinds, Assume::at_most));
  } else if (kind == FixKind::device_copies) {
    set_device_copies(f, surely);
    // The host has more to do for weights that it collects than to issue their copies.
    if (settings_.scattered && f.speedup >= kWorth)
      set_sure_part(f, f.step_ns, step(kinds, Assume::ahead), kWorth);
  } else if (kind == FixKind::allocator) {
    set_allocation(f, base_, surely, step(kinds, Assume::at_most), allocation_ns());
  } else {
    // A host that is disturbed by something else gains nothing by this.
    const bool relieved = kind == FixKind::host_work || kind == FixKind::loader ||
                          kind == FixKind::cores || kind == FixKind::graphs;
    const bool generous = !relieved || base_ / surely >= kWorth;
    set_bound(f, base_, surely, generous ? step(kinds, Assume::at_most) : surely);
  }
  if (kind == FixKind::loader && paced() && f.speedup >= kWorth) widen_by_deliveries(f);
  const double sure = base_ / std::max(1.0, surely);
  if (kind == FixKind::loader && settings_.prepared > 0 && sure >= kWorth) {
    f.low = 1 + (sure - 1) / 2;
    f.high = std::max(f.speedup, f.high);
    f.ceiling = false;
    widen(f, sure, base_ / step(kinds, Assume::ahead));
  }
  // Steps without the program's own work may be those in which nothing was compiled.
  if (sure >= kWorth && (kind == FixKind::loader || (kind == FixKind::host_work && !compiles())))
    set_as_measured(f, sure);
  if (kind == FixKind::loader && f.ceiling && f.speedup >= kWorth && waits_much())
    widen_by_deliveries(f);
  // Data may be there earlier without being there in time.
  if (kind == FixKind::loader && !f.ceiling) f.low = std::min(f.low, kLeastOfLoader);
  // Many short pieces of the host's code go along with its long ones.
  if (kind == FixKind::host_work && sure >= kWorth && mostly_long_host())
    widen(f, sure, base_ / step(kinds, Assume::ahead));
  if (kind == FixKind::host_work && sure >= kWorth) widen_by_pace(f, sure);
  if (kind == FixKind::code_load && sure >= kWorth && compiles()) widen_by_pace(f, sure);
  // What loads code in every step is made anew each time, and what makes it goes along.
  if (kind == FixKind::code_load && sure >= kWorth && !compiles() && loads_in_each_step()) {
    constexpr FixKind kMaking[] = {FixKind::code_load, FixKind::host_work};
    widen(f, sure, base_ / step(kMaking, Assume::ahead));
    if (!f.ceiling) f.speedup = std::sqrt(sure * f.high);
    f.step_ns = base_ / f.speedup;
    widen_by_pace(f, sure);
  }
  // A check after every operation has code and kernels of its own.
  // Values at several places of a step steer what it does: the masks, norms and lists around them
  // go with them, or not. One that is read once is for the log, unless steps are that short.
  const double waits = kind == FixKind::syncs ? find_obstacles(replay_).waits : 0;
  if (kind == FixKind::syncs && sure >= kWorth &&
      (replay_.reads_per_kernel() > kChecks || waits > kSteers || waits * kTooOftenNs > base_)) {
    widen(f, sure, base_ / step(kinds, Assume::ahead));
    // Waits that are little beside much work are for the log, or for what has to be read.
    const bool little = sure < kLittleWaits && f.high > kMuchAround;
    if (!f.ceiling) f.speedup = sure * std::pow(f.high / sure, little ? kAlongWithLittle : kAlong);
    f.step_ns = base_ / f.speedup;
  }
  if (kind == FixKind::syncs && settings_.reading >= kReadsArrays) set_reads(f);
  // Graphs may hold what was computed before they were made.
  if (kind == FixKind::float64 && f.speedup == 1) {
    f.high = base_ / step(kinds, Assume::at_most);
    f.unsure = f.high >= kWorthPossible;
  }
  if (kind == FixKind::precision && f.speedup < kWorth) {
    const double hidden =
        replay_.serial_ns([](const ReplayOp& op) { return op.may_single ? op.duration_ns : 0; });
    const double high = base_ / std::max(1.0, base_ - hidden * (1 - 1 / settings_.tensor_ratio));
    f.unsure = high >= kWorthPossible;
    if (f.unsure) f.high = high;
  }
  // What type the bytes have does not show. Where other remedies leave copies as they are, the bus
  // is what the step waits for.
  if (kind == FixKind::fewer_bytes) {
    constexpr FixKind kCopies[] = {FixKind::copies};
    f.unsure = f.speedup >= kWorthPossible * base_ / step(kCopies, Assume::surely);
    f.high = f.unsure ? f.speedup : 0;
    f.low = 0;
    f.speedup = 1;
    f.ceiling = true;
    f.step_ns = base_;
  }
  // Whether its kernels read a mask does not show: their names are the same.
  if (kind == FixKind::attention) f.unsure = true;
  if (kind == FixKind::mixed) {
    set_mixed(f, sure, base_ / step(kinds, Assume::ahead));
    const double hidden =
        replay_.serial_ns([](const ReplayOp& op) { return op.may_tf32 ? op.duration_ns : 0; });
    const double high = base_ / std::max(1.0, base_ - hidden * (1 - 1 / kHalfOfTf32));
    f.unsure = f.speedup < kWorth && high >= kWorthPossible;
    if (f.unsure) f.high = kSameBound * high;
  }
  if (kind == FixKind::fusion) set_fusion(f, sure, base_ / step(kinds, Assume::likely));
  if (f.unsure) set_unsure(f);
  const bool only_power = clock_.power && !clock_.heat && !clock_.supply && !clock_.settings;
  f.cures = !is_throughput(kind) && kind != FixKind::attention && kind != FixKind::micro_batches &&
            !(kind == FixKind::clocks && only_power);
  f.share = attributed_share(kind, analysis_, clock_);
  if (kind == FixKind::growth) f.share = removed(growth_gain(growth_.first_ns));
  if (is_of_marked_kernels(kind)) f.share = removed(f.speedup);
  if (kind == FixKind::host_work)
    f.share += settings_.fed * bulk_out_share(analysis_.devices.front());
  return f;
}

double FixFinder::step(std::span<const FixKind> kinds, Assume assume) const {
  return step_with(replay_, kinds, assume, settings_);
}

// Whether long stretches of the host are what the device mostly waits for.
bool FixFinder::mostly_long_host() const {
  const Budget& b = analysis_.devices.front().budget;
  const auto idle = static_cast<double>(b.total_ns() - b.busy_ns());
  return 2 * attributed_share(FixKind::host_work, analysis_, clock_) *
             static_cast<double>(b.total_ns()) >
         idle;
}

// Reading an array is a call of the framework's with a wait in it, which no call of CUDA's shows: half of it goes
// for certain, and the host that need not wait may be faster, as that of another run.
void FixFinder::set_reads(Fix& f) const {
  const double left = std::max(1 / kMostJoined, 1 / f.speedup - settings_.reading);
  f.speedup = 1 / left;
  f.low = 1 + (f.speedup - 1) / 2;
  f.high = std::max(f.high, kHostDiffers * f.speedup);
  f.ceiling = false;
  f.step_ns = base_ / f.speedup;
}

// Steps that have none of it show what all would take: a state that is saved, an epoch that
// begins, a shape that is new.
void FixFinder::set_as_measured(Fix& f, double surely) const {
  const Replay::WithoutPart without = replay_.step_without([&](const ReplayEvent& e) -> int64_t {
    if (f.kind == FixKind::loader) return e.loader_ns;
    return is_own_work(e) ? waits_ns(e) : 0;
  });
  if (without.step_ns <= 0) return;
  const double scale = base_ / replay_.measured().step_ns;  // what recording costs is out
  const double most = base_ / (scale * without.step_ns),
               measured = base_ / (scale * (without.step_ns + without.more_ns));
  if (measured <= surely) return;
  f.low = 1 + (surely - 1) / 2;
  f.high = std::max({f.high, f.speedup, kSameBound * most, 1 + kHostDiffers * (most - 1)});
  f.speedup = measured;
  f.step_ns = base_ / measured;
  f.ceiling = false;
}

// Launches go for certain; whether passes over memory do depends on who else reads what lies
// between them, which does not show.
void FixFinder::set_fusion(Fix& f, double surely, double likely) const {
  if (f.ceiling) f.low = 1 + (surely - 1) / 2;
  f.high = std::max(f.high, f.speedup);
  f.ceiling = false;
  // Norms and reductions lie between what works element by element: a compiler joins them to it.
  f.unsure = surely < kWorthFusion &&
             (likely >= kWorthFusion || (f.high >= kWorthPossible && !fused_already()));
  if (likely < kWorthFusion) {
    f.speedup = std::max(1.0, likely);
    f.step_ns = base_ / f.speedup;
  } else if (f.unsure && of_arrays()) {
    const double most = f.high;
    f.unsure = false;
    set_sure_part(f, base_ / half_of_time(likely), base_ / likely);
    constexpr FixKind kFusion[] = {FixKind::fusion};
    const double whole = base_ / std::max(1.0, step(kFusion, Assume::ahead));
    f.high = std::min(kMostJoined, std::max({f.high, most, whole}));
    f.speedup = std::min(f.speedup, f.high);
    f.step_ns = base_ / f.speedup;
  }
}

// Whether most of what memory bounds was joined by a compiler.
bool FixFinder::fused_already() const {
  int64_t compiled = 0, all = 0;
  for (const KernelStat& k : analysis_.devices.front().kernels) {
    if (classify_kernel(k.name) != KernelClass::memory) continue;
    all += k.total_ns;
    compiled += is_compiled(k.name) ? k.total_ns : 0;
  }
  return 2 * compiled > all;
}

// Whether most of what works element by element is operations on arrays without a backward pass.
bool FixFinder::of_arrays() const {
  int64_t arrays = 0, all = 0;
  for (const KernelStat& k : analysis_.devices.front().kernels) {
    all += is_pointwise(k.name) ? k.total_ns : 0;
    arrays += is_array_operation(k.name) ? k.total_ns : 0;
  }
  return 2 * arrays > all;
}

void FixFinder::set_unsure(Fix& f) const {
  f.high = std::max(f.high, f.speedup);
  f.ceiling = false;
  f.speedup = f.low = 1;
  f.step_ns = is_throughput(f.kind) ? 0 : base_;
}

// What lies between the products may move half of the bytes, or not, and kernels that only help
// slow products go with their launches.
void FixFinder::set_mixed(Fix& f, double surely, double at_most) const {
  f.ceiling = false;
  f.low = 1 + (surely - 1) / 2;
  // Kernels of 16 bits are others: convolutions may be done in another way.
  f.high = kSameBound * std::max(surely, at_most);
  f.speedup = surely < kWorthMixed ? 1 : std::sqrt(surely * f.high);
  f.step_ns = base_ / f.speedup;
}

// Whether batches come at a pace of their own.
bool FixFinder::paced() const {
  bool any = false;
  replay_.visit([&](const ReplayEvent& e, const ReplayOp*, int64_t) {
    any = any || (e.loader_ns > 0 && e.arrival_ns >= 0);
  });
  return any;
}

// What others deliver differs from run to run, and so does how much more they could.
void FixFinder::widen_by_deliveries(Fix& f) const {
  f.low = 1 + (f.speedup - 1) / 2;
  f.high = std::max(f.high, kPaceDiffers * without_stock(f.speedup));
  f.ceiling = false;
}

// Whether a good part of the time is waiting for data, if not again and again: of several workers one
// may be slow.
bool FixFinder::waits_much() const {
  constexpr double kMuch = 0.25;
  const Budget& b = analysis_.devices.front().budget;
  return static_cast<double>(b[Leaf::loader]) >= kMuch * static_cast<double>(b.total_ns());
}

// Batches that were ready before the first step run out: a longer run waits in all of its steps
// as these do after that. The stock is what came without a wait at first, beyond what comes so
// later on.
double FixFinder::without_stock(double speedup) const {
  constexpr int64_t kEnough = 8;  // steps that wait
  const int64_t n = replay_.steps();
  std::vector<int64_t> waits(static_cast<size_t>(std::max<int64_t>(0, n)));
  replay_.visit([&](const ReplayEvent& e, const ReplayOp*, int64_t step) {
    if (step >= 0 && step < n) waits[static_cast<size_t>(step)] += e.loader_ns;
  });
  const double least = 0.1 * std::accumulate(waits.begin(), waits.end(), 0.0) /
                       static_cast<double>(std::max<int64_t>(1, n));
  int64_t first = -1, run = 0, longest = 0, waiting = 0;
  for (const int64_t ns : waits) {
    if (static_cast<double>(ns) <= least) {
      ++run;
      if (first >= 0) longest = std::max(longest, run);
      continue;
    }
    if (first < 0) first = run;
    run = 0;
    ++waiting;
  }
  const int64_t stock = first - longest;
  if (stock <= 0 || waiting < kEnough) return speedup;
  return 1 + (speedup - 1) * static_cast<double>(n) / static_cast<double>(n - stock);
}

// Mean of the calls that take and give back memory of the device.
double FixFinder::allocation_ns() const {
  int64_t ns = 0, calls = 0;
  replay_.visit([&](const ReplayEvent& e, const ReplayOp*, int64_t) {
    if (e.kind != ReplayCall::allocate || e.pins) return;
    ns += e.call_ns;
    ++calls;
  });
  return static_cast<double>(ns) / static_cast<double>(std::max<int64_t>(1, calls));
}

// What a step gains that takes `ns` less than the mean one. Irregular stretches do not grow.
double FixFinder::growth_gain(double ns) const {
  if (!growth_.found) return 1;
  const double all = analysis_.steps.stretch_ns, less = growth_.mean_ns - ns;
  return all / std::max(1.0, all - std::max(0.0, less));
}

// XLA issues from threads of its own, whose waits for the thread that calls them look like waits for data.
// Where that is much, operations that become one program may leave the device's work alone: no bound else.
double FixFinder::one_program_ns() const {
  constexpr double kMuch = 0.05;
  const Budget& b = analysis_.devices.front().budget;
  const auto total = static_cast<double>(std::max<int64_t>(1, b.total_ns()));
  if (analysis_.framework != "JAX" || static_cast<double>(b[Leaf::loader]) < kMuch * total)
    return base_;
  return base_ * static_cast<double>(b.busy_ns()) / total;
}

// What the device works in a step.
double FixFinder::busy_ns() const {
  const Budget& b = analysis_.devices.front().budget;
  return replay_.measured().step_ns * static_cast<double>(b.busy_ns()) /
         static_cast<double>(std::max<int64_t>(1, b.total_ns()));
}

// A compiler that makes graphs fuses what works element by element as well.
double FixFinder::fused_ns(std::vector<FixKind> kinds) const {
  if (analysis_.framework != "PyTorch") return base_;
  kinds.push_back(FixKind::fusion);
  return step(kinds, Assume::likely);
}

// How far it goes on is the program's; a run as long again begins where this one ends.
void FixFinder::set_growth(Fix& f) const {
  f.step_ns = base_;
  if (!growth_.found) return;
  const double early = growth_gain(growth_.early_ns), first = growth_gain(growth_.first_ns);
  f.ceiling = false;
  f.speedup = std::sqrt(early * first);
  f.low = 1 + (early - 1) / 2;
  f.high = 1 + (first - 1) * std::max(1.0, (growth_.late_ns - growth_.first_ns) /
                                               (growth_.mean_ns - growth_.first_ns));
  f.step_ns = base_ / f.speedup;
}

// Issuing at once leaves the kernels as they are. What writes short ones anew, as compilers do
// and operations on lists of tensors, makes fewer of them: then the gain has no ceiling here.
void FixFinder::set_graphs(Fix& f, double surely_ns, double at_most_ns, double joined_ns) const {
  const double surely = base_ / std::max(1.0, surely_ns);
  set_bound(f, base_, surely_ns, surely >= kWorth ? at_most_ns : surely_ns);
  const double joined = base_ / std::max(1.0, joined_ns);
  if (surely < kWorth || joined <= kSameBound * std::max(f.speedup, f.high)) return;
  if (f.ceiling) f.low = 1 + (surely - 1) / 2;
  f.ceiling = false;
  f.high = std::max(f.high, std::min(joined, kMostJoined));
}

// The stretch before the first kernel of the backward pass does not show; nor do what saves and
// restores states of random numbers, and casts, which have no counterpart in the forward pass.
void FixFinder::set_recompute(Fix& f, double surely_ns) const {
  constexpr double kBeside = 1.25;
  const double n = replay_.recomputed_stretches();
  f.step_ns = base_;
  if (n == 0) return;
  const double less = (base_ - surely_ns) * (n + 1) / n;
  f.ceiling = false;
  f.speedup = base_ / std::max(1.0, base_ - less);
  f.low = 1 + (base_ / std::max(1.0, surely_ns) - 1) / 2;
  f.high = 1 + kBeside * (f.speedup - 1);
  f.step_ns = base_ / f.speedup;
}

// Half of what is sure, to a tenth more than all that may go: what goes along with kernels of
// another type, such as casts, does not show. Weights that have as many elements as what is
// computed do not show, nor whether the host keeps ahead of a device that has less to do. Products
// find what was rounded just before in the caches, and read it from memory where that was long ago.
void FixFinder::set_sure_part(Fix& f, double surely_ns, double at_most_ns, double least) const {
  const double surely = base_ / std::max(1.0, surely_ns);
  f.ceiling = false;
  f.speedup = f.low = f.high = 1;
  f.step_ns = base_;
  if (surely < least) return;
  const double at_most = std::max(surely, base_ / std::max(1.0, at_most_ns));
  f.speedup = std::sqrt(surely * at_most);
  f.low = half_of_time(surely);
  f.high = kSameBound * at_most;
  f.step_ns = base_ / f.speedup;
}

// At most the time of the copies goes. All of it where the device is busy: then the host waits for
// it, in ways too that the replay has for the host's own (a library that sleeps, a full queue).
void FixFinder::set_device_copies(Fix& f, double surely_ns) const {
  const Budget& b = analysis_.devices.front().budget;
  const bool busy = static_cast<double>(b.busy_ns()) > kBusy * static_cast<double>(b.total_ns());
  const double copies = replay_.serial_ns(
      [](const ReplayOp& op) { return op.of_update ? op.duration_ns : int64_t{0}; });
  const double step_ns = busy ? std::min(surely_ns, base_ - copies) : surely_ns;
  f.speedup = std::max(1.0, base_ / std::max(1.0, step_ns));
  f.step_ns = base_ / f.speedup;
}

// Whether most steps load code.
bool FixFinder::loads_in_each_step() const {
  std::vector<bool> loads(static_cast<size_t>(std::max<int64_t>(0, replay_.steps())));
  replay_.visit([&](const ReplayEvent& e, const ReplayOp*, int64_t step) {
    if (e.kind == ReplayCall::load && step >= 0 && step < std::ssize(loads))
      loads[static_cast<size_t>(step)] = true;
  });
  return replay_.whole_steps() &&
         2 * std::count(loads.begin(), loads.end(), true) > std::ssize(loads);
}

// Whether making code holds up the host for a good part of the time.
bool FixFinder::compiles() const {
  constexpr double kPartOfIt = 0.05;
  int64_t ns = 0;
  replay_.visit(
      [&](const ReplayEvent& e, const ReplayOp*, int64_t) { ns += e.compiles ? waits_ns(e) : 0; });
  return static_cast<double>(ns) >= kPartOfIt * static_cast<double>(replay_.measured().total_ns);
}

}  // namespace saturate::observe
