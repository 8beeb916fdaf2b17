// SPDX-License-Identifier: Apache-2.0
// What the doctor says of a simulated program: planted against repaired.
#pragma once
#include <gtest/gtest.h>

#include <functional>
#include <utility>
#include <vector>

#include "observe/report/diagnosis.h"
#include "observe/testing/fix_report.h"
#include "observe/testing/stacks.h"

namespace saturate::observe::testing {

using Step = std::function<void(Simulator&, int)>;

struct Told {
  double step_ns = 0;
  Analysis analysis;
  FixReport fixes;
  Verdict verdict;
};

inline Told tell(const Step& step, const std::function<void(Trace&)>& amend = {},
                 Machine machine = {}) {
  constexpr int kSteps = 24;
  Simulator s(machine);
  for (int i = 0; i < kSteps; ++i) {
    s.begin_step(i);
    step(s, i);
  }
  Told t;
  t.step_ns = static_cast<double>(s.done_ns() - s.start_ns()) / kSteps;
  Trace trace = s.take();
  if (amend) amend(trace);
  t.analysis = analyse(trace);
  t.fixes = find_fixes(replay_of(trace, t.analysis), t.analysis);
  t.verdict = judge(t.analysis, t.fixes);
  return t;
}

inline void layers(Simulator& s, int n, int64_t kernel_ns, int64_t host_ns) {
  for (int i = 0; i < n; ++i) {
    s.host(host_ns);
    s.kernel("sm90_gemm_bf16bf16", kernel_ns);
  }
}

// What the repaired program gained keeps to what was promised.
inline void expect_sound(const Told& before, FixKind kind, double gain) {
  const Fix& f = *find(before.fixes, kind);
  if (f.ceiling) {
    EXPECT_LE(gain, 1.03 * f.speedup) << fix_info(kind).id;
  } else {
    EXPECT_LE(gain, 1.03 * f.high) << fix_info(kind).id << " about " << f.speedup;
    EXPECT_GE(gain, f.low) << fix_info(kind).id << " about " << f.speedup;
  }
}

// Stretches of the host's time and the stacks it is in meanwhile.
class Phases {
 public:
  // The host works for `ns`; a sample of its stack a millisecond says that it was in `frames`.
  void work(Simulator& s, int64_t ns, std::vector<Frame> frames) {
    phases_.push_back({s.now_ns(), s.now_ns() + ns, std::move(frames)});
    s.host(ns);
  }
  // The same while the host sleeps, until data come as it seems.
  void wait(Simulator& s, int64_t ns, std::vector<Frame> frames) {
    phases_.push_back({s.now_ns(), s.now_ns() + ns, std::move(frames)});
    s.wait(SpanKind::loader, "another thread", ns);
  }
  void sample(Trace& t) const {
    std::vector<uint32_t> stacks;
    for (const Phase& p : phases_) stacks.push_back(stack_of(t, p.frames));
    const uint32_t other = stack_of(t, std::vector<Frame>{{"main", "/home/a/train.py", 90}});
    add_samples(t, 0, 1'000'000, [&](int64_t at) {
      for (size_t i = 0; i < phases_.size(); ++i)
        if (at >= phases_[i].from && at < phases_[i].to) return stacks[i];
      return other;
    });
  }

 private:
  struct Phase {
    int64_t from, to;
    std::vector<Frame> frames;
  };
  std::vector<Phase> phases_;
};

}  // namespace saturate::observe::testing
