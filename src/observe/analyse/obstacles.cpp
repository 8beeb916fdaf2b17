// SPDX-License-Identifier: Apache-2.0
#include "observe/analyse/obstacles.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

namespace saturate::observe {
namespace {

// One place is as good as none: the graph ends there.
constexpr double kPlaces = 1.5;
constexpr double kOften = 0.5;  // a step

bool is_kernel(const ReplayOp& op) { return op.leaf <= Leaf::communication && !op.graph; }

}  // namespace

std::vector<FixKind> Obstacles::fixes() const {
  std::vector<FixKind> kinds;
  if (waits + copies > kPlaces) {
    if (waits >= kOften) kinds.push_back(FixKind::syncs);
    if (copies >= kOften) kinds.push_back(FixKind::copies);
  }
  if (allocations >= kOften) kinds.push_back(FixKind::allocator);
  return kinds;
}

std::string Obstacles::words() const {
  std::string text;
  const auto add = [&](const std::string& part) { text += (text.empty() ? "" : ", ") + part; };
  for (const FixKind kind : fixes()) {
    if (kind == FixKind::syncs) add(fmt::format("waits for the device at {:.0f} places", waits));
    if (kind == FixKind::copies)
      add(fmt::format("copies pageable memory at {:.0f} places", copies));
    if (kind == FixKind::allocator) add(fmt::format("allocates {:.0f} times", allocations));
  }
  if (!text.empty()) text = "a step " + text + " on average, which a graph cannot hold";
  if (shapes_change())
    text += fmt::format(
        "{}only {:.0f}% of the steps have the same kernels and grids: a graph is of one shape",
        text.empty() ? "" : "; ", 100 * same_steps);
  return text;
}

Obstacles find_obstacles(const Replay& replay) {
  Obstacles o;
  std::map<int64_t, uint64_t> sequences;  // by step, of kernels and grids in any order
  bool kernels = false;
  replay.visit([&](const ReplayEvent& e, const ReplayOp* ops, int64_t step) {
    bool in = e.ops > 0;
    for (uint32_t i = 0; i < e.ops; ++i) {
      in = in && (ops[i].leaf == Leaf::copy_in || ops[i].leaf == Leaf::copy_in_pageable);
      if (!is_kernel(ops[i])) continue;
      kernels = true;
      const uint64_t what = (uint64_t{ops[i].name} << 32 ^ static_cast<uint64_t>(ops[i].blocks)) *
                            0x9E3779B97F4A7C15u;
      sequences[step] += what ^ what >> 29;
    }
    if (e.kind == ReplayCall::allocate) ++o.allocations;
    if (kernels && (e.kind == ReplayCall::sync || e.kind == ReplayCall::blocking_copy)) {
      ++(in ? o.copies : o.waits);
      kernels = false;
    }
  });
  const auto steps = static_cast<double>(std::max<int64_t>(1, replay.steps()));
  for (double* const count : {&o.waits, &o.copies, &o.allocations}) *count /= steps;
  if (!replay.whole_steps()) return o;
  sequences.erase(-1);
  sequences.erase(replay.steps());  // the last is cut
  std::map<uint64_t, int64_t> counts;
  int64_t most = 0;
  for (const auto& [step, sequence] : sequences) most = std::max(most, ++counts[sequence]);
  if (!sequences.empty())
    o.same_steps = static_cast<double>(most) / static_cast<double>(sequences.size());
  return o;
}

}  // namespace saturate::observe
