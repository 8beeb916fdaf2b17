// SPDX-License-Identifier: Apache-2.0
// From a simulated program to the fixes that the doctor names for it.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "observe/analyse/analyser.h"
#include "observe/analyse/fixes.h"
#include "observe/testing/simulator.h"

namespace saturate::observe::testing {

using Program = std::function<void(Simulator&)>;  // one step

// Of the whole steps of `a`, which is the analysis of `t`.
inline Replay replay_of(const Trace& t, const Analysis& a) {
  const HostTimeline host(t);
  std::vector<int64_t> begins;
  for (const StepStat& one : a.steps.steps) begins.push_back(one.start_ns);
  begins.push_back(a.steps.steps.back().end_ns);
  return Replay(t, host, 0, begins, begins.front(), begins.back());
}

struct Outcome {
  double step_ns;  // by the simulator
  FixReport fixes;
  Analysis analysis;
};

inline Outcome run(const Program& step, Machine machine = {}, const ClockHold& clock = {}) {
  Simulator s(machine);
  constexpr int kSteps = 24;
  for (int i = 0; i < kSteps; ++i) {
    s.begin_step(i);
    step(s);
  }
  const double step_ns = static_cast<double>(s.done_ns() - s.start_ns()) / kSteps;
  Trace t = s.take();
  const Analysis a = analyse(t);
  return {step_ns, find_fixes(replay_of(t, a), a, 0, clock), a};
}

inline const Fix* find(const FixReport& r, FixKind kind) {
  for (const auto* list : {&r.worth, &r.not_worth}) {
    for (const Fix& f : *list) {
      if (f.kind == kind) return &f;
    }
  }
  return nullptr;
}

}  // namespace saturate::observe::testing
