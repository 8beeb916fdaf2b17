// SPDX-License-Identifier: Apache-2.0
#include "plan/cost.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "base/error.h"
#include "plan/nearest.h"

namespace saturate::plan {
namespace {

using parallel::CollectiveKind;

// Bytes that a rank sends of a collective of `bytes` among n.
double wire_bytes(CollectiveKind kind, double bytes, int n) {
  const double share = static_cast<double>(n - 1) / n;
  switch (kind) {
    case CollectiveKind::all_reduce:
      return 2 * bytes * share;
    case CollectiveKind::send_receive:
    case CollectiveKind::broadcast:
      return bytes;
    default:
      return bytes * share;
  }
}

// Piecewise linear; the last two points' rate beyond the last, the first one's time before the first.
double interpolated(const LinkTable& t, double bytes) {
  const size_t n = t.bytes.size();
  if (bytes <= t.bytes.front() || n == 1)
    return t.us.front() * std::max(1.0, n == 1 ? bytes / t.bytes.front() : 1.0);
  const auto after = std::upper_bound(t.bytes.begin(), t.bytes.end(), bytes);
  const auto i = std::min(static_cast<size_t>(after - t.bytes.begin()), n - 1);
  const double slope = (t.us[i] - t.us[i - 1]) / (t.bytes[i] - t.bytes[i - 1]);
  return std::max(t.us[i - 1], t.us[i - 1] + slope * (bytes - t.bytes[i - 1]));
}

double steps(int n) { return std::log2(static_cast<double>(n)); }

// Among n ranks that all have a link of their own. `share` ranks use one link at a time.
double level_us(const Link& link, CollectiveKind kind, double bytes, int n, double share) {
  if (n < 2) return 0;
  const double wire = wire_bytes(kind, bytes, n);
  const LinkTable* best = nullptr;
  for (const LinkTable& t : link.tables) {
    if (t.kind == kind && (best == nullptr || std::abs(steps(t.ranks) - steps(n)) <
                                                  std::abs(steps(best->ranks) - steps(n))))
      best = &t;
  }
  if (best == nullptr) return link.latency_us * steps(n) + wire * share / (link.gbs * 1e3);
  // The size at which its ranks sent as much; its latency grows with the depth of a tree.
  const double same = wire / wire_bytes(kind, 1, best->ranks);
  const double first = best->us.front();
  const double transfer = std::max(0.0, interpolated(*best, same) - first);
  return first * std::max(1.0, steps(n) / steps(best->ranks)) + transfer * share;
}

}  // namespace

std::string operation_key(const Tape& tape, const Tape::Operation& o) {
  std::string key = o.name;
  const DType* type = nullptr;
  const auto add = [&](Value v) {
    if (!v) return;
    const Tape::Info& i = tape.info(v);
    // A table of positions, which a list that is only planned may lack.
    if (i.external && i.parameter < 0) return;
    // From ZeRO 2 on gradients of parameters lie in the arena; the operation is the same.
    if (std::string_view(i.label) == "parameter_gradient") return;
    key += fmt::format(" {}x{}", i.rows, i.cols);
    if (type == nullptr) type = &i.dtype;
  };
  for (const Value v : o.reads) add(v);
  key += " >";
  for (const Value v : o.writes) add(v);
  if (type != nullptr) key += fmt::format(" {}", name_of(*type));
  if (o.traits.flops > 0) key += fmt::format(" {:.3g}Gflop", o.traits.flops * 1e-9);
  return key;
}

double traffic_us(const Machine& m, double bytes) {
  return (bytes + m.compute.half_mb * 1e6) / (m.compute.bandwidth_gbs * 1e3);
}

double attention_share(const Compute& c, double flops, double bytes) {
  constexpr double kIntensity = 256;  // operations a byte at which `attention` is the rate
  if (c.attention_long <= c.attention || bytes <= 0) return c.attention;
  const double half = kIntensity * (c.attention_long / c.attention - 1);
  const double intensity = flops / bytes;
  return std::max(c.attention, c.attention_long * intensity / (intensity + half));
}

double rates_us(const Machine& m, std::string_view name, DType type, double bytes, double flops) {
  double us = traffic_us(m, bytes);
  if (flops > 0) {
    const auto rate = m.compute.tflops.find(type);
    const double tflops =
        rate != m.compute.tflops.end() ? rate->second : m.compute.tflops.begin()->second;
    const double part =
        name.starts_with("attention") ? attention_share(m.compute, flops, bytes) : 1.0;
    us = std::max(us, (flops + m.compute.half_gflop * 1e9) / (tflops * part * 1e6));
  }
  return us + m.compute.launch_us;
}

OperationCost operation_cost(const Machine& m, const Tape& tape, const Tape::Operation& o) {
  if (!m.operations.empty()) {
    const std::string key = operation_key(tape, o);
    const auto known = m.operations.find(key);
    if (known != m.operations.end()) return {.us = known->second, .measured = true};
    if (const auto us = nearest_us(m, key)) return {.us = *us, .scaled = true};
  }
  double bytes = 0;
  DType type = tape.compute_type();
  for (const auto* values : {&o.reads, &o.writes}) {
    for (const Value v : *values) {
      if (!v) continue;
      const Tape::Info& i = tape.info(v);
      bytes += static_cast<double>(i.bytes());
    }
  }
  // Of a table rows are read, not the whole of it.
  const std::string_view name = o.name;
  if (name.starts_with("embedding") && !o.writes.empty() && !o.reads.empty()) {
    const Value rows = name == "embedding" ? o.writes[0] : o.reads[0];
    bytes = 3 * static_cast<double>(tape.info(rows).bytes());
  }
  // An operation that only names values launches nothing.
  if (bytes == 0 || name == "copy_to_ranks" || name == "begin_unit_gradient") return {};
  return {.us = rates_us(m, name, type, bytes, o.traits.flops)};
}

Placement placement_of(const Machine& m, const std::vector<int>& ranks) {
  std::map<int, int> on_host;
  for (const int r : ranks) ++on_host[r / m.devices_per_host];
  Placement p{.local = 1, .hosts = static_cast<int>(on_host.size())};
  for (const auto& [host, n] : on_host) p.local = std::max(p.local, n);
  return p;
}

double collective_us(const Machine& m, CollectiveKind kind, double bytes, const Placement& g) {
  if (g.size() < 2 || bytes <= 0) return 0;
  const auto need = [&](const Link& link, const char* name, const char* what) {
    if (link.gbs > 0) return;
    throw Error(Errc::invalid_argument, "plan",
                fmt::format("ranks {} communicate, and the machine '{}' says nothing of that link; "
                            "give it a table [{}], or measure it with saturate bench links",
                            what, m.name, name));
  };
  if (g.hosts == 1) {
    need(m.inside, "inside_host", "of one host");
    return level_us(m.inside, kind, bytes, g.local, 1);
  }
  need(m.between, "between_hosts", "of several hosts");
  // Groups like this one that leave a host together, on its adapters.
  const double groups = std::max(1.0, static_cast<double>(m.devices_per_host) / g.local);
  const double share = groups / m.between.adapters;
  if (g.local == 1) return level_us(m.between, kind, bytes, g.hosts, share);
  need(m.inside, "inside_host", "of one host");
  // A group crosses with all its ranks of a host: what they send together is that of one.
  const double inside = level_us(m.inside, kind, bytes, g.local, 1);
  const bool moves_all = kind == CollectiveKind::all_to_all;
  const double crossing = moves_all ? bytes * g.local : bytes;
  const double between = level_us(m.between, kind, crossing, g.hosts, share);
  return std::max(inside, between) + std::min(m.inside.latency_us, m.between.latency_us);
}

double whole_bytes(const parallel::Collective& c) {
  const auto element = static_cast<double>(size_of(c.dtype));
  const auto sum = [](const std::vector<int64_t>& counts) {
    return static_cast<double>(std::accumulate(counts.begin(), counts.end(), int64_t{0}));
  };
  const auto n = static_cast<double>(c.group.size());
  switch (c.kind) {
    case CollectiveKind::reduce_scatter:
    case CollectiveKind::all_gather:
      return static_cast<double>(c.count) * n * element;
    case CollectiveKind::all_to_all:
    case CollectiveKind::send_receive:
      return std::max(sum(c.send_counts), sum(c.receive_counts)) * element;
    default:
      return static_cast<double>(c.count) * element;
  }
}

}  // namespace saturate::plan
