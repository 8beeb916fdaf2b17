// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "observe/analyse/host_lines.h"
#include "observe/trace/code_owner.h"
#include "observe/trace/trace.h"

namespace saturate::observe {

// A stack with its plumbing folded: the line that its reader can change.
struct StackWords {
  CodePlace at, innermost, caller;  // as in HostLine
  CodePlace native;                 // below a line of Python
  std::string via, remark;
  bool idle_worker = false;  // of a loader, without work
  uint32_t file = 0;         // number of the name of at's whole file
  uint32_t node = kNoStack;  // of the stack, at
};

// How the remark of a line inside a loader's sampler begins.
constexpr std::string_view kSamplerRuns = "the sampler runs in the training process";

// Cost: O(depth).
StackWords stack_words(const Trace& trace, uint32_t stack);

}  // namespace saturate::observe
