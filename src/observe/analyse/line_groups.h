// SPDX-License-Identifier: Apache-2.0
// Samples of stacks gathered into lines of the program.
#pragma once
#include <compare>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "observe/analyse/host_lines.h"
#include "observe/analyse/leaf.h"
#include "observe/analyse/stack_kinds.h"
#include "observe/trace/trace.h"

namespace saturate::observe {

// Samples that are alike.
struct LineKey {
  Leaf leaf;
  uint32_t thread, stack, wait, holder, holder_stack;
  HostState state;
  auto operator<=>(const LineKey&) const = default;
};

struct CountedSamples {
  LineKey key;
  int64_t points = 0;
  double ns = 0;  // what they stand for
};

// A line by the numbers of its file's name and the line: what samples are told apart by.
using LineId = std::pair<uint32_t, uint32_t>;
LineId line_of(const Trace& trace, uint32_t stack);

// What lines of a forward pass gave the device to do, in number or time: what the backward pass,
// which has no lines of its own, is shared out by.
using ForwardShares = std::map<LineId, double>;

// The largest first; a line's share is of `all_ns`. The time of a backward pass counts for the
// lines of its forward pass as well (HostLine::backward). Where lines of one function together hold
// half of the time, in whatever they call, and more than any other line, they come first.
std::vector<HostLine> group_lines(const Trace& trace, const StackKinds& kinds,
                                  const std::vector<CountedSamples>& counted, double all_ns,
                                  const ForwardShares& forward);

// Lines that run a backward pass count with the lines that it comes from: behind them, where these are known.
void backward_last(std::vector<HostLine>& lines);

}  // namespace saturate::observe
