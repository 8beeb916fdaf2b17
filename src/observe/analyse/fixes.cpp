// SPDX-License-Identifier: Apache-2.0
#include "observe/analyse/fixes.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "observe/analyse/fix_edits.h"
#include "observe/analyse/fix_words.h"
#include "observe/analyse/growth.h"
#include "observe/analyse/names.h"
#include "observe/analyse/obstacles.h"

namespace saturate::observe {
namespace {

// Of dispatch, once what torch.profiler adds is out: it took 1.7 to 1.9 times as long where that
// showed (an H200, PyTorch 2.11).
constexpr double kProfilerLeaves = 1 / 1.9;
// What is known to go with a cause may differ by as much from what may go with it; more makes the
// bound an estimate.
constexpr double kSameBound = 1.10;
// Between runs of one program, of what loader workers deliver (docs/guide/doctor_case.md).
constexpr double kPaceDiffers = 1.2;
// What a remedy makes of data that come at a pace of their own, at least: a quarter cheaper.
constexpr double kLeastOfLoader = 4.0 / 3;
// Between runs of one program, of what host code takes: they were seen at 0.61 to 1.26 times the
// time of the run before (docs/guide/doctor_case.md).
constexpr double kHostDiffers = 1.65;

// Of a capture without steps, for what it shows to be more than a start: weights that are filled.
constexpr double kLeastComputing = 0.01;

constexpr std::array<FixInfo, 27> kInfo = {{
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
    {"growth", "steps that do not grow"},
    {"batch", "batch x2"},
    {"processes", "several processes (MPS)"},
}};
static_assert(kInfo.size() == static_cast<size_t>(FixKind::processes) + 1);

double removed(double speedup) { return 1 - 1 / std::max(1.0, speedup); }
// Whether it takes out operations that are marked one by one, which no leaf of the budget holds alone:
// the replay then says their share.
constexpr bool is_of_marked_kernels(FixKind kind) {
  return kind == FixKind::recompute || kind == FixKind::weight_casts ||
         kind == FixKind::product_types || kind == FixKind::device_copies ||
         kind == FixKind::kernel_copies || kind == FixKind::one_attention ||
         kind == FixKind::float64 || kind == FixKind::transforms;
}

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

// From a step with what surely goes, and one with all that may go.
void set_bound(Fix& f, double base_ns, double surely_ns, double at_most_ns) {
  const double surely = std::max(1.0, base_ns / std::max(1.0, surely_ns));
  const double at_most = std::max(surely, base_ns / std::max(1.0, at_most_ns));
  f.ceiling = at_most <= kSameBound * surely;
  f.speedup = f.ceiling ? at_most : std::sqrt(surely * at_most);
  f.step_ns = base_ns / f.speedup;
  if (f.ceiling) return;
  f.low = 1 + (surely - 1) / 2;  // a remedy that does half of its work
  f.high = at_most;
}

// What is left of a gain where half of the time that goes stays after all.
double half_of_time(double speedup) { return 1 / (1 - removed(speedup) / 2); }

// A host that keeps ahead of the device gains `ahead`; what of that the fix brings is not known.
void widen(Fix& f, double surely, double ahead) {
  if (ahead <= std::max(f.speedup, f.high)) return;
  if (f.ceiling && ahead <= kSameBound * surely) {
    f.step_ns *= f.speedup / ahead;
    f.speedup = ahead;
    return;
  }
  if (f.ceiling) f.low = 1 + (surely - 1) / 2;
  f.ceiling = false;
  f.high = ahead;
}

// Where the time that goes is the host's own, another run has more of it or less: a gain of
// 1 + h becomes 1 + kHostDiffers * h.
void widen_by_pace(Fix& f, double surely) {
  f.low = half_of_time(surely);
  f.high = std::max(f.high, 1 + kHostDiffers * (f.speedup - 1));
  f.ceiling = false;
}

// What the driver takes differs from run to run, by two fifths down and a half up, and kernels beside
// a release were seen to be a ninth slower (docs/guide/doctor_case.md).
void set_allocation(Fix& f, double base_ns, double surely_ns, double at_most_ns, double call_ns) {
  constexpr double kLargeCallNs = 500'000;  // gives back as much as is worth clearing
  const double gain = std::max(0.0, base_ns - surely_ns);
  const double much = std::min({1.0, gain / base_ns / 0.3, call_ns / kLargeCallNs});
  const auto speedup = [&](double more, double step_ns, double slower) {
    return std::max(1.0, (base_ns + more * gain) / std::max(1.0, step_ns * (1 - slower * much)));
  };
  f.ceiling = false;
  f.speedup = speedup(0.1 * much, at_most_ns, 0.05);
  f.low = speedup(-0.4, surely_ns, 0);
  f.high = speedup(0.5, at_most_ns, 0.11);
  f.step_ns = base_ns / f.speedup;
}

// Causes by what they own; what changes the training or costs memory comes last, whatever it gains.
bool goes_before(const Fix& a, const Fix& b) {
  if (a.cures != b.cures) return a.cures;
  return a.cures && a.own > b.own;
}

// A graph goes behind what is in its way, unless that is small beside it.
void put_behind_obstacles(std::vector<Fix>& fixes) {
  constexpr double kNotSmall = 0.2;
  const auto graphs = std::find_if(fixes.begin(), fixes.end(),
                                   [](const Fix& f) { return f.kind == FixKind::graphs; });
  if (graphs == fixes.end()) return;
  auto last = graphs;
  for (auto f = graphs + 1; f != fixes.end(); ++f)
    if (std::count(graphs->with.begin(), graphs->with.end(), f->kind) > 0 && f->speedup >= kWorth &&
        f->own >= kNotSmall * graphs->own)
      last = f;
  std::rotate(graphs, graphs + 1, last + 1);
}

class Finder {
 public:
  Finder(const Replay& replay, const Analysis& analysis, const ClockHold& clock)
      : replay_(replay), analysis_(analysis), clock_(clock), base_(replay.run().step_ns) {
    const DeviceAnalysis& d = analysis.devices.front();
    settings_ = edit_settings(d.info.name, analysis.copy_rates);
    settings_.clock_speed = clock.speed;
    settings_.crowded = is_crowded(replay, analysis);
    int64_t prepared = 0, out = 0, fed = 0, half = 0, others = 0;
    replay.visit([&](const ReplayEvent& e, const ReplayOp* ops, int64_t) {
      if (e.prepares) prepared += waits_ns(e);
      for (uint32_t i = 0; i < e.ops; ++i) {
        if (ops[i].product && !ops[i].float32_attention)
          (ops[i].half_product ? half : others) += ops[i].duration_ns;
        if (!is_bulk_out(ops[i])) continue;
        out += ops[i].duration_ns;
        fed += e.feeds_host ? ops[i].duration_ns : 0;
      }
    });
    settings_.half_products = half > others;
    settings_.fed = static_cast<double>(fed) / static_cast<double>(std::max<int64_t>(1, out));
    settings_.prepared =
        static_cast<double>(prepared) / std::max(1.0, base_ * static_cast<double>(replay.steps()));
    growth_ = find_growth(analysis.steps);
  }

  double base_ns() const { return base_; }
  const Growth& growth() const { return growth_; }

  Fix find(FixKind kind) const {
    Fix f;
    f.kind = kind;
    std::vector<FixKind> kinds{kind};
    if (kind == FixKind::graphs) {
      const Obstacles obstacles = find_obstacles(replay_);
      f.obstacle = obstacles.words();
      f.with = obstacles.fixes();
      kinds.insert(kinds.begin(), f.with.begin(), f.with.end());
    }
    const double surely = step(kinds, Assume::surely);
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
                 step(kinds, Assume::likely));
    } else if (kind == FixKind::recompute) {
      set_recompute(f, surely);
    } else if (kind == FixKind::weight_casts || kind == FixKind::one_attention) {
      set_sure_part(f, surely, step(kinds, Assume::ahead));
    } else if (kind == FixKind::kernel_copies) {
      // What their launches cost is the launches' matter.
      const double copies =
          replay_.serial_ns([](const ReplayOp& op) { return op.copies ? op.duration_ns : 0; });
      set_sure_part(f, base_ / (base_ - copies) < kWorthCopies ? base_ : surely,
                    step(kinds, Assume::ahead), kWorthCopies);
    } else if (kind == FixKind::product_types || kind == FixKind::float64 ||
               kind == FixKind::transforms) {
      set_sure_part(f, surely, step(kinds, Assume::at_most));
    } else if (kind == FixKind::device_copies) {
      set_device_copies(f, surely);
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
    // A check after every operation has code and kernels of its own.
    // Values at several places of a step steer what it does: the masks, norms and lists around them
    // go with them, or not. One that is read once is for the log.
    if (kind == FixKind::syncs && sure >= kWorth &&
        (replay_.reads_per_kernel() > kChecks || find_obstacles(replay_).waits > kSteers)) {
      widen(f, sure, base_ / step(kinds, Assume::ahead));
      if (!f.ceiling) f.speedup = std::sqrt(sure * f.high);
      f.step_ns = base_ / f.speedup;
    }
    // Graphs may hold what was computed before they were made.
    if (kind == FixKind::float64 && f.speedup == 1) {
      f.high = base_ / step(kinds, Assume::at_most);
      f.unsure = f.high >= kWorthPossible;
    }
    // Whether its kernels read a mask does not show: their names are the same.
    if (kind == FixKind::attention) f.unsure = true;
    if (kind == FixKind::mixed) set_mixed(f, sure, base_ / step(kinds, Assume::ahead));
    if (kind == FixKind::fusion) set_fusion(f, sure, base_ / step(kinds, Assume::likely));
    if (f.unsure) set_unsure(f);
    const bool only_power = clock_.power && !clock_.heat && !clock_.supply && !clock_.settings;
    f.cures = !is_throughput(kind) && kind != FixKind::attention &&
              !(kind == FixKind::clocks && only_power);
    f.share = attributed_share(kind, analysis_, clock_);
    if (kind == FixKind::growth) f.share = removed(growth_gain(growth_.first_ns));
    if (is_of_marked_kernels(kind)) f.share = removed(f.speedup);
    if (kind == FixKind::host_work)
      f.share += settings_.fed * bulk_out_share(analysis_.devices.front());
    return f;
  }

  void add_words_to(Fix& f) const { add_words(f, analysis_, clock_, settings_, growth_); }

  double step(std::span<const FixKind> kinds, Assume assume) const {
    return step_with(replay_, kinds, assume, settings_);
  }

 private:
  static constexpr double kChecks = 0.2;  // values that are read, a kernel
  static constexpr double kSteers = 1.5;  // places where a step waits for the device
  // Whether long stretches of the host are what the device mostly waits for.
  bool mostly_long_host() const {
    const Budget& b = analysis_.devices.front().budget;
    const auto idle = static_cast<double>(b.total_ns() - b.busy_ns());
    return 2 * attributed_share(FixKind::host_work, analysis_, clock_) *
               static_cast<double>(b.total_ns()) >
           idle;
  }
  // Steps that have none of it show what all would take: a state that is saved, an epoch that
  // begins, a shape that is new.
  void set_as_measured(Fix& f, double surely) const {
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
  void set_fusion(Fix& f, double surely, double likely) const {
    if (f.ceiling) f.low = 1 + (surely - 1) / 2;
    f.high = std::max(f.high, f.speedup);
    f.ceiling = false;
    f.unsure = surely < kWorthFusion && likely >= kWorthFusion;
    if (likely < kWorthFusion) {
      f.speedup = std::max(1.0, likely);
      f.step_ns = base_ / f.speedup;
    } else if (f.unsure && of_arrays()) {
      const double most = f.high;
      f.unsure = false;
      set_sure_part(f, base_ / half_of_time(likely), base_ / likely);
      f.high = std::max(f.high, most);
    }
  }
  // Whether most of what works element by element is operations on arrays without a backward pass.
  bool of_arrays() const {
    int64_t arrays = 0, all = 0;
    for (const KernelStat& k : analysis_.devices.front().kernels) {
      all += is_pointwise(k.name) ? k.total_ns : 0;
      arrays += is_array_operation(k.name) ? k.total_ns : 0;
    }
    return 2 * arrays > all;
  }
  void set_unsure(Fix& f) const {
    f.high = std::max(f.high, f.speedup);
    f.ceiling = false;
    f.speedup = f.low = 1;
    f.step_ns = is_throughput(f.kind) ? 0 : base_;
  }
  // What lies between the products may move half of the bytes, or not, and kernels that only help
  // slow products go with their launches.
  void set_mixed(Fix& f, double surely, double at_most) const {
    f.ceiling = false;
    f.low = 1 + (surely - 1) / 2;
    // Kernels of 16 bits are others: convolutions may be done in another way.
    f.high = kSameBound * std::max(surely, at_most);
    f.speedup = surely < kWorthMixed ? 1 : std::sqrt(surely * f.high);
    f.step_ns = base_ / f.speedup;
  }
  // Whether batches come at a pace of their own.
  bool paced() const {
    bool any = false;
    replay_.visit([&](const ReplayEvent& e, const ReplayOp*, int64_t) {
      any = any || (e.loader_ns > 0 && e.arrival_ns >= 0);
    });
    return any;
  }
  // What others deliver differs from run to run, and so does how much more they could.
  void widen_by_deliveries(Fix& f) const {
    f.low = 1 + (f.speedup - 1) / 2;
    f.high = std::max(f.high, kPaceDiffers * without_stock(f.speedup));
    f.ceiling = false;
  }
  // Whether a good part of the time is waiting for data, if not again and again: of several workers one
  // may be slow.
  bool waits_much() const {
    constexpr double kMuch = 0.25;
    const Budget& b = analysis_.devices.front().budget;
    return static_cast<double>(b[Leaf::loader]) >= kMuch * static_cast<double>(b.total_ns());
  }
  // Batches that were ready before the first step run out: a longer run waits in all of its steps
  // as these do after that. The stock is what came without a wait at first, beyond what comes so
  // later on.
  double without_stock(double speedup) const {
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
  double allocation_ns() const {
    int64_t ns = 0, calls = 0;
    replay_.visit([&](const ReplayEvent& e, const ReplayOp*, int64_t) {
      if (e.kind != ReplayCall::allocate || e.pins) return;
      ns += e.call_ns;
      ++calls;
    });
    return static_cast<double>(ns) / static_cast<double>(std::max<int64_t>(1, calls));
  }
  // What a step gains that takes `ns` less than the mean one. Irregular stretches do not grow.
  double growth_gain(double ns) const {
    if (!growth_.found) return 1;
    const double all = analysis_.steps.stretch_ns, less = growth_.mean_ns - ns;
    return all / std::max(1.0, all - std::max(0.0, less));
  }
  // XLA issues from threads of its own, whose waits for the thread that calls them look like waits for data.
  // Where that is much, operations that become one program may leave the device's work alone: no bound else.
  double one_program_ns() const {
    constexpr double kMuch = 0.05;
    const Budget& b = analysis_.devices.front().budget;
    const auto total = static_cast<double>(std::max<int64_t>(1, b.total_ns()));
    if (analysis_.framework != "JAX" || static_cast<double>(b[Leaf::loader]) < kMuch * total)
      return base_;
    return base_ * static_cast<double>(b.busy_ns()) / total;
  }
  // How far it goes on is the program's; a run as long again begins where this one ends.
  void set_growth(Fix& f) const {
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
  void set_graphs(Fix& f, double surely_ns, double at_most_ns, double joined_ns) const {
    const double surely = base_ / std::max(1.0, surely_ns);
    set_bound(f, base_, surely_ns, surely >= kWorth ? at_most_ns : surely_ns);
    const double joined = base_ / std::max(1.0, joined_ns);
    if (surely < kWorth || joined <= kSameBound * std::max(f.speedup, f.high)) return;
    if (f.ceiling) f.low = 1 + (surely - 1) / 2;
    f.ceiling = false;
    f.high = joined;
  }
  // The stretch before the first kernel of the backward pass does not show; nor do what saves and
  // restores states of random numbers, and casts, which have no counterpart in the forward pass.
  void set_recompute(Fix& f, double surely_ns) const {
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
  void set_sure_part(Fix& f, double surely_ns, double at_most_ns, double least = kWorth) const {
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
  void set_device_copies(Fix& f, double surely_ns) const {
    const Budget& b = analysis_.devices.front().budget;
    const bool busy = static_cast<double>(b.busy_ns()) > kBusy * static_cast<double>(b.total_ns());
    const double copies = replay_.serial_ns(
        [](const ReplayOp& op) { return op.of_update ? op.duration_ns : int64_t{0}; });
    const double step_ns = busy ? std::min(surely_ns, base_ - copies) : surely_ns;
    f.speedup = std::max(1.0, base_ / std::max(1.0, step_ns));
    f.step_ns = base_ / f.speedup;
  }
  // Whether making code holds up the host for a good part of the time.
  bool compiles() const {
    constexpr double kPartOfIt = 0.05;
    int64_t ns = 0;
    replay_.visit([&](const ReplayEvent& e, const ReplayOp*, int64_t) {
      ns += e.compiles ? waits_ns(e) : 0;
    });
    return static_cast<double>(ns) >= kPartOfIt * static_cast<double>(replay_.measured().total_ns);
  }

  const Replay& replay_;
  const Analysis& analysis_;
  const ClockHold& clock_;
  EditSettings settings_;
  Growth growth_;
  double base_;
};

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
      if (ops[i].blocks > 0 || ops[i].leaf == Leaf::graph) ns += ops[i].duration_ns;
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
std::vector<Pair> find_pairs(const Finder& finder, const std::vector<Fix>& fixes) {
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
  const Finder recorded(replay, analysis, clock);
  const double waits_cost = 1 - recorded.step(kWaits, Assume::surely) / recorded.base_ns();
  report.step_given = untraced_step_ns > 0;
  if (report.step_given)
    report.dispatch = replay.scale_dispatch(untraced_step_ns,
                                            analysis.source == kKinetoSource ? kProfilerLeaves : 1);
  const Finder finder(replay, analysis, clock);
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
  // Unless it works on what it waited for: then the wait cannot go without the work.
  const DeviceAnalysis& device = analysis.devices.front();
  const double needs = device.host_lines.needs_value_ns /
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
  for (Fix& f : fixes)
    (f.unsure && f.high >= kWorthPossible    ? report.possible
     : f.speedup >= least_of(f, clock, busy) ? report.worth
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
