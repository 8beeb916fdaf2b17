// SPDX-License-Identifier: Apache-2.0
#include "train/recompute.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/text.h"

namespace saturate::train {
namespace {

using Operation = Tape::Operation;

class Costs {
 public:
  Costs(const Tape& tape, const ModelledRates& rates) : tape_(tape), rates_(rates) {}

  double us(const Operation& o) const { return us(o, o.reads, o.writes, o.traits.flops); }
  double us(const Operation& o, Recompute how) const {
    if (how != Recompute::from_kept) return us(o);
    std::vector<Value> reads = o.shortcut->reads, writes = o.writes;
    reads.push_back(o.shortcut->kept);
    std::erase(writes, o.shortcut->kept);
    return us(o, reads, writes, 0);
  }

 private:
  double us(const Operation& o, const std::vector<Value>& reads, const std::vector<Value>& writes,
            double flops) const {
    double bytes = 0;
    for (const auto* values : {&reads, &writes}) {
      for (Value v : *values) bytes += v ? static_cast<double>(tape_.info(v).bytes()) : 0.0;
    }
    return rates_.launch_us +
           std::max({flops / rates_.flops_per_us, bytes / rates_.bytes_per_us,
                     static_cast<double>(o.traits.bytes) / rates_.link_bytes_per_us});
  }

  const Tape& tape_;
  ModelledRates rates_;
};

// For each multiprocessor: {TFLOP/s in 16 bits, TFLOP/s in 32 bits, GB/s}.
struct Processor {
  double narrow, wide, bandwidth;
};
Processor processor_of(int major, int minor) {
  if (major >= 9) return {4.5, 0.3, 30.0};               // H100, H200: 132
  if (major == 8 && minor == 0) return {2.3, 0.17, 14};  // A100: 108
  if (major == 8) return {1.0, 0.25, 8.0};               // GA10x, AD10x: RTX 2050: 16
  return {0.4, 0.2, 12.0};                               // GTX 1650, without tensor cores: 14
}

}  // namespace

ModelledRates modelled_rates(const Capability& device, DType compute) {
  if (device.multiprocessors == 0) return {};  // the CPU
  const Processor p = processor_of(device.major, device.minor);
  const double n = device.multiprocessors;
  return {.flops_per_us = n * 1e6 * (size_of(compute) == 2 ? p.narrow : p.wide),
          .bytes_per_us = n * 1e3 * p.bandwidth,
          .link_bytes_per_us = device.major >= 9 ? 3e5 : 1e4,  // NVLink of one host; PCIe
          .launch_us = 2.0};
}

// One region of a tape, with what its backward pass and those of others read.
class RecomputeUnits::Region {
 public:
  Region(const Tape& tape, const Costs& costs, int32_t number)
      : tape_(tape), costs_(costs), range_(tape.regions()[static_cast<size_t>(number)]) {
    const int32_t segment = operation(range_.begin).segment;
    for (int32_t i = 0; i < static_cast<int32_t>(tape.operations()); ++i) {
      const Operation& o = operation(i);
      if (o.segment == segment) continue;
      for (Value v : o.reads) {
        if (v) (o.region == number ? read_ : read_elsewhere_).insert(tape.storage_of(v));
      }
    }
    for (int32_t i = range_.begin; i < range_.end; ++i) {
      for (Value v : operation(i).writes) {
        if (v && !tape.info({tape.storage_of(v)}).external)
          writers_[tape.storage_of(v)].push_back(i);
      }
    }
  }

  // Operations by themselves.
  std::vector<Unit> singles() const {
    std::vector<Unit> units;
    for (int32_t i = range_.begin; i < range_.end; ++i) {
      Choices choices;
      if (frees(i, way(i)) <= 0 || !require(i, choices)) continue;
      Unit u = weighed(choices);
      if (u.bytes > 0) units.push_back(std::move(u));
    }
    return units;
  }

  // All of the layer from what it reads, less what `before` does already.
  Unit whole(const Unit& before) const {
    Choices choices;
    std::set<int32_t> wanted = read_;
    for (int32_t i = range_.end; i-- > range_.begin;) {
      const Operation& o = operation(i);
      const bool is_wanted = std::any_of(o.writes.begin(), o.writes.end(), [&](Value v) {
        return v && made_here(v) && wanted.contains(tape_.storage_of(v));
      });
      if (!is_wanted || works_on_others(i)) continue;
      const Recompute how =
          o.shortcut && needs_more_kept(o) ? Recompute::from_kept : Recompute::whole;
      choices[i] = how;
      for (Value v : reads_of(o, how)) {
        if (v) wanted.insert(tape_.storage_of(v));
      }
    }
    Unit u = weighed(choices);
    u.bytes -= before.bytes;
    u.us = std::max(0.0, u.us - before.us);
    return u;
  }

 private:
  using Choices = std::map<int32_t, Recompute>;  // in the order of the list

  const Operation& operation(int32_t i) const { return tape_.operation(static_cast<size_t>(i)); }
  bool lives_on(int32_t storage) const {
    return read_.contains(storage) || read_elsewhere_.contains(storage);
  }
  bool made_here(Value v) const { return writers_.contains(tape_.storage_of(v)); }
  static const std::vector<Value>& reads_of(const Operation& o, Recompute how) {
    return how == Recompute::from_kept ? o.shortcut->reads : o.reads;
  }
  // The cheapest way to make an operation's results again by itself.
  Recompute way(int32_t i) const {
    const Operation& o = operation(i);
    return o.shortcut && lives_on(tape_.storage_of(o.shortcut->kept)) ? Recompute::from_kept
                                                                      : Recompute::whole;
  }
  // In place on memory that another region wrote.
  bool works_on_others(int32_t i) const {
    const auto& writes = operation(i).writes;
    return std::any_of(writes.begin(), writes.end(), [&](Value v) {
      if (!v || tape_.info(v).root < 0) return false;
      const Value root{tape_.info(v).root};
      const auto by = writers_.find(root.id);
      if (by == writers_.end()) return true;
      const auto& makes = operation(by->second.front()).writes;
      return std::find(makes.begin(), makes.end(), root) == makes.end();
    });
  }
  // From another region, and dropped when the forward pass is over.
  bool is_dropped(Value v) const {
    if (!v || tape_.info({tape_.storage_of(v)}).external || made_here(v)) return false;
    return !lives_on(tape_.storage_of(v));
  }
  bool needs_more_kept(const Operation& o) const {
    return std::any_of(o.reads.begin(), o.reads.end(), [&](Value v) { return is_dropped(v); });
  }

  int64_t frees(int32_t i, Recompute how) const {
    const Operation& o = operation(i);
    int64_t sum = 0;
    for (Value v : o.writes) {
      if (!v || !made_here(v) || (how == Recompute::from_kept && v == o.shortcut->kept)) continue;
      const int32_t s = tape_.storage_of(v);
      // Of operations that work in place the last stands for all.
      if (writers_.at(s).back() != i) continue;
      if (read_.contains(s) && !read_elsewhere_.contains(s))
        sum += static_cast<int64_t>(tape_.info({s}).bytes());
    }
    return sum;
  }

  // What must run again for operation i to: those that wrote its memory before it, and those whose
  // results it reads and nobody keeps. False when it cannot.
  bool require(int32_t i, Choices& needed) const {
    const Operation& o = operation(i);
    const Recompute how = way(i);
    if (!needed.emplace(i, how).second) return true;
    if (works_on_others(i)) return false;
    for (Value v : o.writes) {
      if (v && made_here(v) && how == Recompute::whole && !require_writers(v, needed)) return false;
    }
    for (Value v : reads_of(o, how)) {
      if (!v || tape_.info({tape_.storage_of(v)}).external) continue;
      if (is_dropped(v)) return false;
      if (!made_here(v)) continue;
      // What is overwritten later must be made again, as must what nobody keeps.
      const int32_t s = tape_.storage_of(v);
      const auto& last = operation(writers_.at(s).back()).writes;
      const bool overwritten = std::find(last.begin(), last.end(), v) == last.end();
      if ((overwritten || !lives_on(s)) && !require_writers(v, needed)) return false;
    }
    return true;
  }
  bool require_writers(Value v, Choices& needed) const {
    const auto& writers = writers_.at(tape_.storage_of(v));
    return std::all_of(writers.begin(), writers.end(),
                       [&](int32_t k) { return require(k, needed); });
  }

  Unit weighed(const Choices& choices) const {
    Unit u{.choices = {choices.begin(), choices.end()}};
    std::set<int32_t> longer;
    for (const auto& [i, how] : choices) {
      u.bytes += frees(i, how);
      u.us += costs_.us(operation(i), how);
      for (Value v : reads_of(operation(i), how)) {
        if (is_dropped(v) && longer.insert(tape_.storage_of(v)).second)
          u.bytes -= static_cast<int64_t>(tape_.info(v).bytes());
      }
    }
    return u;
  }

  const Tape& tape_;
  const Costs& costs_;
  OperationRange range_;
  std::set<int32_t> read_, read_elsewhere_;          // storage, by later segments
  std::map<int32_t, std::vector<int32_t>> writers_;  // of storage of the arena, in order
};

RecomputeUnits::RecomputeUnits(const Tape& probe, const ModelledRates& rates) {
  const Costs costs(probe, rates);
  // Without what has no result: one rank counts totals for several, and all must choose alike.
  for (size_t i = 0; i < probe.operations(); ++i)
    if (const Operation& o = probe.operation(i); !o.writes.empty()) step_us_ += costs.us(o);
  std::vector<Unit> whole;
  for (int32_t r = 0; r < static_cast<int32_t>(probe.regions().size()); ++r) {
    const Region region(probe, costs, r);
    Unit all;
    for (Unit& u : region.singles()) {
      all.bytes += u.bytes;
      all.us += u.us;
      units_.push_back(std::move(u));
    }
    Unit rest = region.whole(all);
    if (rest.bytes > 0) whole.push_back(std::move(rest));
  }
  // Among equals those of earlier layers first: their results are kept longest.
  std::stable_sort(units_.begin(), units_.end(),
                   [](const Unit& a, const Unit& b) { return a.value() > b.value(); });
  for (Unit& u : whole) units_.push_back(std::move(u));
}

int64_t RecomputeUnits::within(double share) const {
  double us = 0;
  int64_t n = 0;
  for (; n < count(); ++n) {
    us += units_[static_cast<size_t>(n)].us;
    if (us > share * step_us_) break;
  }
  return n;
}

void RecomputeUnits::apply(Tape& tape, int64_t count) const {
  for (int64_t n = 0; n < count; ++n) {
    for (const auto& [operation, how] : units_[static_cast<size_t>(n)].choices)
      tape.recompute(operation, how);
  }
}

double RecomputeUnits::added_us(int64_t count) const {
  double us = 0;
  for (int64_t n = 0; n < count; ++n) us += units_[static_cast<size_t>(n)].us;
  return us;
}

int64_t RecomputeUnits::bytes(int64_t count) const {
  int64_t bytes = 0;
  for (int64_t n = 0; n < count; ++n) bytes += units_[static_cast<size_t>(n)].bytes;
  return bytes;
}

std::string text_of(const RecomputeChoice& c) {
  return fmt::format(
      "the backward pass computes {} again ({} of {} units), about {:.3g} ms of {:.3g} ms a "
      "micro-batch",
      format_bytes(static_cast<double>(c.bytes)), c.units, c.of, c.added_ms, c.micro_batch_ms);
}

RecomputeChoice choose_recomputation(Tape& tape, const std::string& recompute,
                                     std::optional<int64_t> units,
                                     const std::function<void(Tape&)>& forward) {
  constexpr double kSelectiveShare = 0.03;
  if (!units && recompute != "selective" && recompute != "full") return {};
  Tape probe(tape.parameters(), TapeMode::training, nullptr);
  probe.set_workspace_bytes(tape.workspace_bytes());
  forward(probe);
  probe.backward();
  const RecomputeUnits all(probe,
                           modelled_rates(capability_of(tape.device()), tape.compute_type()));
  RecomputeChoice c{.units = all.count(), .of = all.count()};
  if (units) {
    c.units = std::min(*units, all.count());
  } else if (recompute == "selective") {
    c.units = all.within(kSelectiveShare);
  }
  all.apply(tape, c.units);
  c.bytes = all.bytes(c.units);
  c.added_ms = all.added_us(c.units) / 1e3;
  c.micro_batch_ms = (all.step_us() + all.added_us(c.units)) / 1e3;
  return c;
}

}  // namespace saturate::train
