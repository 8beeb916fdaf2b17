// SPDX-License-Identifier: Apache-2.0
#include "observe/analyse/step_search.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <unordered_map>
#include <vector>

#include "observe/analyse/host_calls_before.h"
#include "observe/analyse/names.h"

namespace saturate::observe {
namespace {

constexpr double kExplains = 0.55;  // of the time, at least
constexpr int64_t kFew = 10;        // stretches are alike by chance
constexpr double kExplainsOfFew = 0.75;
constexpr size_t kCandidates = 32;    // symbols that are tried
constexpr size_t kSampled = 65;       // stretches that say what is usual
constexpr size_t kTriedOps = 40'000;  // for each candidate, where they lie in many stretches
constexpr int64_t kAFewOps = 4;
constexpr int64_t kMostInside = 96;  // layers or micro-batches of a step
constexpr int64_t kMostParts = 8;    // with an optimizer of their own, as of two networks
constexpr double kByKinds = 0.9;     // says less than numbers do
constexpr double kSteady = 0.45;     // of stretches: of two kinds one is half
constexpr double kManyOps = 4;       // more than a loss that is looked at now and then
constexpr double kMostBeside = 1;    // in lengths of those: what else such a step may hold
constexpr double kEach = 0.95;       // of stretches
constexpr int64_t kManyTurns = 6;    // operations once in each stretch: more than a layer has

struct SymbolHash {
  size_t operator()(const StepSymbol& s) const {
    return s.name * 0x9E3779B97F4A7C15u ^
           static_cast<size_t>(s.size * 32 + s.before * 4 + static_cast<int>(s.kind)) *
               0xC2B2AE3D27D4EB4Fu;
  }
};

class Symbols {
 public:
  uint32_t add(const StepSymbol& s) {
    const auto [at, fresh] = ids_.try_emplace(s, static_cast<uint32_t>(all_.size()));
    if (fresh) all_.push_back(s);
    return at->second;
  }
  const StepSymbol& operator[](uint32_t id) const { return all_[id]; }
  size_t size() const { return all_.size(); }

 private:
  std::unordered_map<StepSymbol, uint32_t, SymbolHash> ids_;
  std::vector<StepSymbol> all_;
};

// An operation's symbols: [coarse], and with calls [2 + coarse].
struct Event {
  uint32_t ids[4];
  uint32_t place;  // of the work that it is, or that follows a copy
};
struct Work {
  const DeviceOp* op;
  uint32_t ids[2];
  int64_t weight_ns = 0;  // its time to the next one's start; of long pauses a part
  bool meets = false;     // since the one before the host copied or waited
  bool optimizes = false;
};

// The places of one symbol, and what its stretches have in common.
struct Cut {
  uint32_t id = 0;
  int alphabet = 0;
  std::vector<uint32_t> places;
  double spacing = 0;    // 1: equally many operations apart
  double regular = 0;    // the same, by the share of the work from the first to the last
  double within = 0;     // share of the time of its stretches that is explained
  double explained = 0;  // the same, by the share of all time that they and one more each side have
  double length_ns = 0;
  int64_t ops = 0;      // of a stretch, by the median
  double mean_ops = 0;  // and by the mean
  double steady = 0;    // share of the stretches that have as many operations as the usual one
  double uneven = 0;    // mean distance of stretches' times from their median, by the mean time
  bool optimizes = false, meets = false, graphs = false;  // in nearly every stretch
  int64_t turns =
      0;  // names that occur once in nearly every stretch, as one operation of a step does
  int64_t count() const { return static_cast<int64_t>(places.size()); }
};

class Search {
 public:
  Search(const Trace& trace, const HostTimeline& host, uint32_t device, int64_t from_ns)
      : trace_(trace), before_(trace, host), device_(device) {
    choose_process(from_ns);
    collect(from_ns);
  }

  StepAnchor find() {
    StepAnchor anchor;
    if (work_.size() < 3) return anchor;
    const std::vector<Cut> cuts = candidates();
    Cut turns;  // the most that take turns
    for (const bool coarsely : {false, true}) {
      std::vector<Cut> good;
      for (const Cut& candidate : cuts) {
        Cut cut = candidate;
        explain(cut, 0);
        // Where the host and the device meet in each, stretches of several shapes are alike too.
        if (coarsely || cut.meets || cut.optimizes) {
          Cut coarse = candidate;
          explain(coarse, 1);
          if (coarse.explained > cut.explained) cut = std::move(coarse);
        }
        const bool few = cut.count() <= kFew;
        if (takes_turns(cut) && cut.turns > turns.turns) turns = cut;
        if (cut.explained >= (few ? kExplainsOfFew : kExplains)) good.push_back(std::move(cut));
      }
      if (good.empty()) continue;
      Cut step = choose(good);
      const bool by_turns = step.steady < kSteady && turns.count() > step.count();
      if (by_turns) step = std::move(turns);
      anchor.explained = step.explained;
      anchor.process = process_;
      anchor.with_copies = with_copies_;
      anchor.coarse = step.alphabet % 2 == 1;
      anchor.with_calls = step.alphabet >= 2;
      place_anchor(step, anchor);
      if (by_turns) anchor.most_ops = INT64_MAX;  // with whatever else was tried in it
      return anchor;
    }
    return anchor;
  }

 private:
  // Of several processes on the device the one with most work.
  void choose_process(int64_t from_ns) {
    struct Use {
      int64_t ops = 0, work = 0, busy_ns = 0, work_ns = 0;
    };
    std::map<uint32_t, Use> uses;
    for (const DeviceOp& op : trace_.ops) {
      const StreamKey& s = trace_.streams[op.stream];
      if (s.device != device_ || op.start_ns < from_ns) continue;
      Use& use = uses[s.process];
      const int64_t ns = op.end_ns - op.start_ns;
      ++use.ops;
      use.busy_ns += ns;
      if (!step_work(op, false)) continue;
      ++use.work;
      use.work_ns += ns;
    }
    int64_t most = -1;
    for (const auto& [process, use] : uses) {
      if (use.busy_ns <= most) continue;
      most = use.busy_ns;
      process_ = process;
      // A few kernels of a program that copies tell nothing.
      with_copies_ = 50 * use.work < use.ops && 20 * use.work_ns < use.busy_ns;
    }
  }

  bool on_device(const DeviceOp& op) const {
    const StreamKey& s = trace_.streams[op.stream];
    return s.device == device_ && s.process == process_;
  }

  void collect(int64_t from_ns) {
    bool met = false;
    std::vector<uint8_t> optimizes(trace_.names.size(), 2);
    for (const DeviceOp& op : trace_.ops) {
      if (op.start_ns < from_ns || !on_device(op)) continue;
      const uint8_t before = before_.of(op);
      met = met || (before & HostCallsBefore::kWaited) != 0 ||
            (op.kind == OpKind::copy && op.copy != CopyKind::device_to_device);
      Event& e = events_.emplace_back();
      for (const int a : {0, 1, 2, 3})
        e.ids[a] = symbols_[a].add(step_symbol(op, a % 2 == 1, a >= 2 ? before : uint8_t{0}));
      e.place = static_cast<uint32_t>(work_.size());
      if (!step_work(op, with_copies_)) continue;
      Work w{&op, {e.ids[0], e.ids[1]}};
      w.meets = met;
      met = false;
      if (optimizes[op.name] == 2)
        optimizes[op.name] =
            op.kind == OpKind::kernel && is_optimizer(trace_.names[op.name]) ? 1 : 0;
      w.optimizes = optimizes[op.name] == 1;
      work_.push_back(w);
    }
    if (work_.size() < 3) return;
    while (events_.back().place == work_.size()) events_.pop_back();
    // A pause (a build, a checkpoint) says little of what repeats: it counts as a 500th of the time
    // at most.
    const int64_t all = work_.back().op->start_ns - work_.front().op->start_ns;
    for (size_t i = 0; i < work_.size(); ++i) {
      const DeviceOp& op = *work_[i].op;
      const int64_t runs = std::max<int64_t>(1, op.end_ns - op.start_ns);
      const int64_t until = i + 1 < work_.size() ? work_[i + 1].op->start_ns - op.start_ns : runs;
      work_[i].weight_ns = std::min(until, std::max<int64_t>(std::min(runs, until), all / 500));
      weight_ns_ += static_cast<double>(work_[i].weight_ns);
    }
  }

  // Of symbols that occur equally often one: those of a step give the same stretches.
  std::vector<Cut> candidates() const {
    std::vector<Cut> found;
    for (int a = 0; a < 4; ++a) {
      struct Spacing {
        int64_t count = 0, first = 0, last = 0;
        double squares = 0;
      };
      std::vector<Spacing> of(symbols_[a].size());
      for (const Event& e : events_) {
        Spacing& s = of[e.ids[a]];
        const auto at = static_cast<int64_t>(e.place);
        if (s.count++ == 0)
          s.first = at;
        else
          s.squares += static_cast<double>((at - s.last) * (at - s.last));
        s.last = at;
      }
      struct Best {
        double spacing, regular;
        uint32_t id;
      };
      std::map<int64_t, Best> best;  // by count
      for (uint32_t id = 0; id < of.size(); ++id) {
        const Spacing& s = of[id];
        if (s.count < 3) continue;
        const auto reach = static_cast<double>(s.last - s.first);
        if (reach == 0) continue;
        const double spacing = reach * reach / (static_cast<double>(s.count - 1) * s.squares);
        const double regular = spacing * reach / static_cast<double>(work_.size());
        const auto [at, fresh] = best.try_emplace(s.count, Best{spacing, regular, id});
        if (!fresh && regular > at->second.regular) at->second = {spacing, regular, id};
      }
      for (const auto& [count, symbol] : best) {
        // What is told by less wins.
        const bool known = std::any_of(found.begin(), found.end(), [&](const Cut& c) {
          return c.count() == count && c.regular >= 0.98 * symbol.regular;
        });
        if (known) continue;
        Cut cut;
        cut.id = symbol.id;
        cut.alphabet = a;
        cut.spacing = symbol.spacing;
        cut.regular = symbol.regular;
        cut.places.resize(static_cast<size_t>(count));  // the number, until it is tried
        found.push_back(std::move(cut));
      }
    }
    std::stable_sort(found.begin(), found.end(),
                     [](const Cut& x, const Cut& y) { return x.regular > y.regular; });
    if (found.size() > kCandidates) found.resize(kCandidates);
    for (Cut& cut : found) {
      cut.places.clear();
      for (const Event& e : events_) {
        if (e.ids[cut.alphabet] == cut.id) cut.places.push_back(e.place);
      }
    }
    return found;
  }

  // How often each symbol occurs in the usual stretch: the median over a sample of them.
  std::vector<uint32_t> usual_of(const std::vector<uint32_t>& places, int bag) const {
    const size_t stretches = places.size() - 1, sampled = std::min(stretches, kSampled);
    std::unordered_map<uint32_t, std::vector<uint32_t>> counts;
    for (size_t k = 0; k < sampled; ++k) {
      const size_t j = stretches * (2 * k + 1) / (2 * sampled);
      std::unordered_map<uint32_t, uint32_t> own;
      for (uint32_t i = places[j]; i < places[j + 1]; ++i) ++own[work_[i].ids[bag]];
      for (const auto& [id, n] : own) counts[id].push_back(n);
    }
    std::vector<uint32_t> usual(symbols_[bag].size());
    for (auto& [id, list] : counts) {
      list.resize(sampled);  // it does not occur in the others
      const auto middle = list.begin() + static_cast<std::ptrdiff_t>(sampled / 2);
      std::nth_element(list.begin(), middle, list.end());
      usual[id] = *middle;
    }
    return usual;
  }

  // Of an operation, and what it takes at least to launch it.
  static double busy_ns(const DeviceOp& op) {
    return static_cast<double>(op.end_ns - op.start_ns) + 2'000;
  }

  void explain(Cut& cut, int bag) const {
    const std::vector<uint32_t> usual = usual_of(cut.places, bag);
    int64_t in_usual = 0, usual_kinds = 0;
    for (const uint32_t n : usual) in_usual += n, usual_kinds += n > 0;
    in_usual = std::max<int64_t>(1, in_usual);  // nothing explains nothing
    std::vector<uint32_t> seen(usual.size()), in(usual.size(), kNone);
    std::vector<int64_t> once(usual.size());  // stretches with one of it, and no second
    double explained = 0, reach = 0, covered = 0, explained_kinds = 0, covered_kinds = 0;
    int64_t optimize = 0, meet = 0, graph = 0;
    std::vector<int64_t> lengths, sizes;
    const size_t stretches = cut.places.size() - 1;
    // Of many stretches a part tells as much.
    const size_t stride =
        std::clamp<size_t>(work_.size() / kTriedOps, 1, std::max<size_t>(1, stretches / kSampled));
    size_t tried = 0;
    for (size_t k = 0; k < stretches; k += stride, ++tried) {
      const auto j = static_cast<uint32_t>(k);
      double ns = 0, matched = 0, all = 0;
      lengths.push_back(work_[cut.places[j + 1]].op->start_ns - work_[cut.places[j]].op->start_ns);
      double of_kind = 0;
      int64_t present = 0, kinds = 0;
      bool optimizes = false, meets = false, graphs = false;
      for (uint32_t i = cut.places[j]; i < cut.places[j + 1]; ++i) {
        const Work& w = work_[i];
        const uint32_t id = w.ids[bag];
        if (in[id] != j) in[id] = j, seen[id] = 0;
        if (usual[id] > 0) {
          kinds += seen[id] == 0;
          of_kind += busy_ns(*w.op);
        }
        if (seen[id] < 2) once[id] += seen[id] == 0 ? 1 : -1;
        if (seen[id]++ < usual[id]) {
          ++present;
          matched += busy_ns(*w.op);
        }
        all += busy_ns(*w.op);
        ns += static_cast<double>(w.weight_ns);
        optimizes = optimizes || w.optimizes;
        meets = meets || w.meets;
        graphs = graphs || w.op->kind == OpKind::graph;
      }
      reach += ns;
      // Pauses between the operations are shared by them, whoever came before.
      const double coverage = static_cast<double>(present) / static_cast<double>(in_usual);
      covered += coverage;
      sizes.push_back(static_cast<int64_t>(cut.places[j + 1] - cut.places[j]));
      const double kinds_covered =
          static_cast<double>(kinds) / static_cast<double>(std::max<int64_t>(1, usual_kinds));
      covered_kinds += kinds_covered;
      if (all > 0) explained += ns * matched / all * coverage;
      if (all > 0) explained_kinds += ns * of_kind / all * kinds_covered;
      optimize += optimizes;
      meet += meets;
      graph += graphs;
    }
    const auto n = static_cast<double>(tried);
    cut.turns = std::count_if(once.begin(), once.end(), [&](int64_t stretches_with) {
      return static_cast<double>(stretches_with) >= kEach * n;
    });
    reach *= static_cast<double>(stretches) / n;
    explained *= static_cast<double>(stretches) / n;
    explained_kinds *= static_cast<double>(stretches) / n;
    // What lies before the first and behind the last may be parts of one more each.
    const double whole =
        std::min(1.0, reach * (1 + 2 / static_cast<double>(stretches)) / std::max(1.0, weight_ns_));
    cut.optimizes = static_cast<double>(optimize) >= 0.9 * n;
    cut.meets = static_cast<double>(meet) >= 0.8 * n;
    cut.graphs = static_cast<double>(graph) >= 0.8 * n;
    // Short stretches that hold little of what is usual take no time, but they are no steps.
    const auto usual_ops = sizes.begin() + static_cast<std::ptrdiff_t>(sizes.size() / 2);
    std::nth_element(sizes.begin(), usual_ops, sizes.end());
    cut.ops = *usual_ops;
    cut.mean_ops = static_cast<double>(cut.places.back() - cut.places.front()) /
                   static_cast<double>(stretches);
    cut.steady = static_cast<double>(std::count_if(
                     sizes.begin(), sizes.end(),
                     [&](int64_t ops) { return std::abs(ops - cut.ops) * 50 <= cut.ops; })) /
                 n;
    cut.within = reach > 0 ? explained / reach * covered / n : 0;
    // Where lengths vary each kind of operation is still there, in other numbers.
    if (reach > 0 && (cut.meets || cut.optimizes) && cut.steady < kSteady)
      cut.within = std::max(cut.within, kByKinds * explained_kinds / reach * covered_kinds / n);
    cut.explained = cut.within * whole;
    cut.length_ns = reach / static_cast<double>(stretches);
    const auto middle = lengths.begin() + static_cast<std::ptrdiff_t>(lengths.size() / 2);
    std::nth_element(lengths.begin(), middle, lengths.end());
    double away = 0, sum = 0;
    for (const int64_t ns : lengths) {
      away += std::fabs(static_cast<double>(ns - *middle));
      sum += static_cast<double>(ns);
    }
    cut.uneven = sum > 0 ? away / sum : 0;
  }

  // Whether many operations, the optimizer's among them, occur once in each stretch and most stretches
  // are alike: steps, even where a few hold so much else (each new shape has its kernels tried) that
  // what repeats explains little of the time.
  static bool takes_turns(const Cut& cut) {
    return cut.count() > kFew && cut.optimizes && cut.steady >= kSteady && cut.turns >= kManyTurns;
  }

  // The step among cuts that explain enough.
  const Cut& choose(std::vector<Cut>& good) const {
    std::stable_sort(good.begin(), good.end(),
                     [](const Cut& x, const Cut& y) { return x.count() > y.count(); });
    // Two or three epochs explain all, steps less: they do not decide what is enough for steps.
    double of_many = 0, of_all = 0;
    for (const Cut& c : good) {
      if (!c.optimizes) continue;
      of_all = std::max(of_all, c.explained);
      if (c.count() > kFew) of_many = std::max(of_many, c.explained);
    }
    const double most = of_many >= kExplainsOfFew ? of_many : of_all;
    if (most > 0) {
      // An optimizer may itself be a loop over parameters.
      std::erase_if(good, [&](const Cut& c) {
        return !c.optimizes || !(c.meets || c.explained >= 0.9 * most);
      });
    }
    size_t step = 0;
    for (size_t next = 1; next < good.size(); ++next) {
      const Cut &a = good[step], &b = good[next];
      if (b.mean_ops < 1.25 * a.mean_ops) {  // the same stretches, nearly
        if (b.explained > a.explained) step = next;
        continue;
      }
      if (b.explained < 0.8 * a.explained) continue;
      const double more = b.within - a.within;
      const double inside = b.mean_ops / a.mean_ops;
      // Too little for a step of its own, unless a graph holds it.
      const bool alike = kAFewOps * a.count() >= static_cast<int64_t>(work_.size()) && !a.graphs;
      bool larger;
      // Where lengths vary, larger stretches vary less and explain more, which says nothing.
      const bool a_steady = a.steady >= kSteady, b_steady = b.steady >= kSteady,
                 steady = a_steady && b_steady && b.count() > 3;
      const double extra_ops =
          static_cast<double>(b.ops) - std::round(inside) * static_cast<double>(a.ops);
      if (a.optimizes && !(!a_steady && b_steady && more >= 0.1))
        larger = steady && more >= 0.05 && inside <= kMostParts && more * inside <= kMostBeside;
      else if (!a_steady && b_steady && more >= 0.1)
        larger = inside <= kMostInside;
      else if (a.meets || a.graphs)
        larger = steady && (more >= 0.02 || (extra_ops >= kManyOps && b.spacing >= 0.99)) &&
                 inside <= kMostInside && more * inside <= kMostBeside;
      else if (alike)
        larger = b.spacing >= 0.99 || (b.alphabet < 2 && b.regular >= 0.5 && b.explained >= 0.8);
      else if (b.alphabet >= 2)
        larger = b.regular >= 0.5 && a.uneven >= 0.2 && b.uneven <= a.uneven / 2;
      else
        larger = more >= 0.005 || (b.meets && inside <= kMostInside && more > -0.35);
      if (larger) step = next;
    }
    return good[step];
  }

  // Of all that happens once in most stretches what the device waits for longest, copies too.
  void place_anchor(const Cut& step, StepAnchor& anchor) {
    struct Seen {
      uint32_t stretch = kNone, in_stretch = 0;
      int64_t stretches = 0, once = 0;
      std::vector<int64_t> pauses;
    };
    Symbols symbols;
    std::vector<Seen> of;
    const int64_t begin = work_[step.places.front()].op->start_ns,
                  end = work_[step.places.back()].op->start_ns;
    int64_t reach = INT64_MIN;
    uint32_t stretch = 0;
    for (const DeviceOp& op : trace_.ops) {
      if (!on_device(op)) continue;
      const int64_t pause = reach == INT64_MIN ? 0 : op.start_ns - reach;
      reach = std::max(reach, op.end_ns);
      if (op.start_ns < begin) continue;
      if (op.start_ns >= end) break;
      while (op.start_ns >= work_[step.places[stretch + 1]].op->start_ns) ++stretch;
      const uint32_t id = symbols.add(
          step_symbol(op, anchor.coarse, anchor.with_calls ? before_.of(op) : uint8_t{0}));
      if (id == of.size()) of.emplace_back();
      Seen& s = of[id];
      if (s.stretch != stretch) {
        s.stretch = stretch;
        s.in_stretch = 0;
        ++s.stretches;
        ++s.once;
      }
      if (++s.in_stretch == 2) --s.once;
      s.pauses.push_back(pause);
    }
    int64_t longest = INT64_MIN;
    const auto stretches = static_cast<int64_t>(step.places.size()) - 1;
    for (uint32_t id = 0; id < of.size(); ++id) {
      Seen& s = of[id];
      if (10 * s.once < 9 * stretches) continue;
      if (10 * static_cast<int64_t>(s.pauses.size()) > 11 * stretches) continue;
      const auto middle = s.pauses.begin() + static_cast<std::ptrdiff_t>(s.pauses.size() / 2);
      std::nth_element(s.pauses.begin(), middle, s.pauses.end());
      if (*middle <= longest) continue;
      longest = *middle;
      anchor.symbol = symbols[id];
    }
    if (longest == INT64_MIN) anchor.symbol = symbols_[step.alphabet][step.id];
    bound_ops(begin, end, anchor);
  }

  // A step has a usual number of operations; where that varies (lengths of sequences), nearly all
  // there are. One with less than half of the usual copies is of another loop (validation).
  void bound_ops(int64_t begin, int64_t end, StepAnchor& anchor) const {
    std::vector<int64_t> works, copies;
    for (const DeviceOp& op : trace_.ops) {
      if (op.start_ns < begin || !on_device(op)) continue;
      if (op.start_ns > end) break;
      if (is_anchor(anchor, op, anchor.with_calls ? before_.of(op) : uint8_t{0})) {
        works.push_back(0);
        copies.push_back(0);
      }
      if (works.empty()) continue;
      works.back() += step_work(op, with_copies_);
      copies.back() += op.kind == OpKind::copy;
    }
    if (works.size() < 2) return;
    works.pop_back();  // not whole
    copies.pop_back();
    std::vector<int64_t> in_order = works;
    std::sort(works.begin(), works.end());
    std::sort(copies.begin(), copies.end());
    const auto at = [](const std::vector<int64_t>& sorted, double q) {
      return sorted[static_cast<size_t>(q * static_cast<double>(sorted.size() - 1))];
    };
    anchor.usual_ops = at(works, 0.5);
    anchor.least_ops = (4 * anchor.usual_ops + 4) / 5;
    anchor.most_ops = 6 * anchor.usual_ops / 5;
    anchor.least_copies = (at(copies, 0.5) + 1) / 2;
    if (at(copies, 0.25) < anchor.least_copies) anchor.least_copies = 0;
    // Two loops one after the other do not vary: they change once. What grows by little from step to
    // step is one loop.
    int64_t outside = 0, changes = 0, jumps = 0, more = 0;
    for (size_t i = 0; i < in_order.size(); ++i) {
      jumps += i > 0 && 20 * std::abs(in_order[i] - in_order[i - 1]) > anchor.usual_ops;
      more += i > 0 && in_order[i] > in_order[i - 1];
      const auto is_out = [&](int64_t n) { return n < anchor.least_ops || n > anchor.most_ops; };
      outside += is_out(in_order[i]);
      changes += i > 0 && is_out(in_order[i]) != is_out(in_order[i - 1]);
    }
    const auto steps = static_cast<int64_t>(in_order.size());
    // Nearly every step has more than the one before: so it jumps where others were tried at the
    // start, or where a recording in windows left some out.
    const bool grows = outside > 0 && (50 * jumps <= steps || 10 * more >= 8 * steps);
    if (!grows && (4 * outside < steps || 4 * changes < outside)) return;
    anchor.least_ops = std::min(anchor.least_ops, (4 * at(works, 0.05) + 4) / 5);
    anchor.most_ops = std::max(anchor.most_ops, 6 * at(works, 0.95) / 5);
  }

  const Trace& trace_;
  const HostCallsBefore before_;
  const uint32_t device_;
  uint32_t process_ = 0;
  bool with_copies_ = false;
  Symbols symbols_[4];
  std::vector<Event> events_;
  std::vector<Work> work_;
  double weight_ns_ = 0;
};

}  // namespace

StepSymbol step_symbol(const DeviceOp& op, bool coarse, uint8_t before) {
  StepSymbol s{op.kind, op.name, op.size, before};
  if (coarse) s.size = -1;
  if (coarse && op.kind == OpKind::graph) s.name = kNone;
  return s;
}

bool is_anchor(const StepAnchor& anchor, const DeviceOp& op, uint8_t before) {
  return op.kind == anchor.symbol.kind && step_symbol(op, anchor.coarse, before) == anchor.symbol;
}

StepAnchor find_step_anchor(const Trace& trace, const HostTimeline& host, uint32_t device,
                            int64_t from_ns) {
  return Search(trace, host, device, from_ns).find();
}

}  // namespace saturate::observe
