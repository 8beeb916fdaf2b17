// SPDX-License-Identifier: Apache-2.0
// Ranks of a training program that reduce together: traces of all of them with a planted skew,
// delay or imbalance, whose waits the test knows to the nanosecond.
#pragma once
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "observe/ranks/rank_traces.h"
#include "observe/testing/simulator.h"

namespace saturate::observe::testing {

// What one rank does in a step before its gradients are reduced.
struct RankWork {
  int64_t host_ns = 50'000;     // its own code before the forward pass
  int64_t blocked_ns = 0;       // asleep there
  int64_t loader_ns = 0;        // waiting for its data
  int64_t kernel_ns = 400'000;  // of each of its kernels
  int64_t blocks = 1024;
  int64_t clock_ns = 0;  // by which its clock is ahead
};

struct RankProgram {
  int steps = 30;
  int buckets = 2;                // all-reduces of a step, each after two kernels
  int64_t transfer_ns = 300'000;  // of each of them
  int64_t latency_ns = 2'000;     // by which rank i ends later than rank i - 1
  bool overlapped = false;        // all-reduces but the last beside the kernels that follow
  std::vector<RankWork> ranks;
};

// A step: host, then two kernels and an all-reduce for each bucket, a wait for both streams.
// The last one's waits are what the definition says: from each rank's start to the last start.
struct RankRun {
  std::vector<RankTrace> traces;
  double step_ns = 0;                          // mean
  std::vector<double> waiting_ns, exposed_ns;  // of a step, by rank; exposed: nothing computed
};

inline RankRun run_ranks(const RankProgram& p) {
  const size_t n = p.ranks.size();
  constexpr int64_t kCall = 4'000, kLatency = 2'500, kReturn = 6'000, kStart = 1'000'000;
  struct State {
    Trace trace;
    int64_t now, compute_free = 0, comm_free = 0, correlation = 0;
    uint32_t thread, compute, comm;
  };
  std::vector<State> s(n);
  RankRun run;
  run.waiting_ns.assign(n, 0);
  run.exposed_ns.assign(n, 0);
  for (size_t r = 0; r < n; ++r) {
    State& x = s[r];
    x.now = kStart;
    x.trace.source = "simulation";
    x.trace.devices[0] = {"simulated", 132};
    x.thread = x.trace.threads.add({0, 100});
    x.compute = x.trace.streams.add({0, 0, 1, 7});
    x.comm = x.trace.streams.add({0, 0, 1, 20});
  }
  const auto call = [](State& x, const char* name, int64_t ns) {
    x.trace.calls.push_back({x.now, x.now + ns, x.correlation, x.trace.names.add(name), x.thread});
    x.now += ns;
  };
  const auto op = [](State& x, const char* name, uint32_t stream, int64_t start, int64_t end,
                     int64_t blocks) {
    DeviceOp o;
    o.start_ns = start;
    o.end_ns = end;
    o.correlation = x.correlation;
    o.size = blocks;
    o.block_threads = 256;
    o.name = x.trace.names.add(name);
    o.stream = stream;
    x.trace.ops.push_back(o);
  };
  const auto compute = [&](size_t r, const char* name) {
    State& x = s[r];
    ++x.correlation;
    const int64_t start = std::max(x.now + kCall + kLatency, x.compute_free);
    call(x, "cudaLaunchKernel", kCall);
    x.compute_free = start + p.ranks[r].kernel_ns;
    op(x, name, x.compute, start, x.compute_free, p.ranks[r].blocks);
  };
  // Launched by each rank; starts when its gradients are there; ends for all after the last start.
  struct Reduce {
    std::vector<int64_t> start, correlation;
    int64_t end;
  };
  const auto launch_reduce = [&] {
    Reduce c{std::vector<int64_t>(n), std::vector<int64_t>(n), 0};
    for (size_t r = 0; r < n; ++r) {
      State& x = s[r];
      c.correlation[r] = ++x.correlation;
      c.start[r] = std::max({x.now + kCall + kLatency, x.compute_free, x.comm_free});
      call(x, "cudaLaunchKernelExC", kCall);
    }
    c.end = *std::max_element(c.start.begin(), c.start.end()) + p.transfer_ns;
    for (size_t r = 0; r < n; ++r) {
      State& x = s[r];
      const int64_t after = x.correlation;
      x.correlation = c.correlation[r];
      x.comm_free = c.end + static_cast<int64_t>(r) * p.latency_ns;
      op(x, "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", x.comm,
         c.start[r], x.comm_free, 24);
      x.correlation = after;
      if (!p.overlapped) x.compute_free = std::max(x.compute_free, x.comm_free);
    }
    return c;
  };
  for (int step = 0; step < p.steps; ++step) {
    std::vector<int64_t> begin(n);
    for (size_t r = 0; r < n; ++r) {
      State& x = s[r];
      begin[r] = x.now;
      x.now += p.ranks[r].host_ns;
      const auto span = [&](SpanKind kind, const char* name, int64_t ns) {
        if (ns > 0)
          x.trace.spans.push_back({x.now, x.now + ns, x.trace.names.add(name), x.thread, kind});
        x.now += ns;
      };
      span(SpanKind::blocked, "blocked", p.ranks[r].blocked_ns);
      span(SpanKind::loader, "loader", p.ranks[r].loader_ns);
      compute(r, "sm90_gemm_bf16bf16_a");
      compute(r, "sm90_gemm_bf16bf16_b");
    }
    std::vector<Reduce> reduces = {launch_reduce()};
    for (int bucket = 1; bucket < p.buckets; ++bucket) {
      for (size_t r = 0; r < n; ++r) {
        compute(r, "sm90_gemm_bf16bf16_c");
        compute(r, "sm90_gemm_bf16bf16_d");
      }
      reduces.push_back(launch_reduce());
    }
    for (const Reduce& c : reduces) {
      const int64_t last = *std::max_element(c.start.begin(), c.start.end());
      for (size_t r = 0; r < n; ++r) {
        run.waiting_ns[r] += static_cast<double>(last - c.start[r]) / p.steps;
        // Beside the kernels that follow nothing of a wait is exposed before they end.
        const int64_t from = &c != &reduces.back() && p.overlapped
                                 ? std::min(last, std::max(c.start[r], s[r].compute_free))
                                 : c.start[r];
        run.exposed_ns[r] += static_cast<double>(last - from) / p.steps;
      }
    }
    for (size_t r = 0; r < n; ++r) {
      State& x = s[r];
      ++x.correlation;
      x.compute_free = std::max(x.compute_free, x.comm_free);
      call(x, "cudaDeviceSynchronize", std::max(x.compute_free + kReturn - x.now, int64_t{2'000}));
      x.trace.spans.push_back({begin[r], x.now,
                               x.trace.names.add("ProfilerStep#" + std::to_string(step)), x.thread,
                               SpanKind::range});
    }
  }
  for (size_t r = 0; r < n; ++r) {
    run.step_ns = std::max(run.step_ns, static_cast<double>(s[r].now - kStart) / p.steps);
    const int64_t ahead = p.ranks[r].clock_ns;
    for (auto& o : s[r].trace.ops) o.start_ns += ahead, o.end_ns += ahead;
    for (auto& c : s[r].trace.calls) c.start_ns += ahead, c.end_ns += ahead;
    for (auto& c : s[r].trace.spans) c.start_ns += ahead, c.end_ns += ahead;
    s[r].trace.sort();
    const auto place = static_cast<uint32_t>(r);
    run.traces.push_back(
        {static_cast<int64_t>(r), "rank " + std::to_string(r), place, std::move(s[r].trace)});
  }
  return run;
}

}  // namespace saturate::observe::testing
