// SPDX-License-Identifier: Apache-2.0
// A running process sampled from outside for a while: no privilege, nothing injected, so nothing
// that only the inside knows.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "observe/system/range.h"
#include "observe/system/snapshot.h"

namespace saturate::observe {

struct ProcessReport {
  int64_t pid = 0;
  std::string command, user;
  double seconds = 0;  // of sampling
  int samples = 0;     // views with rates
  bool ended = false;  // the process went away meanwhile
  std::string no_gpu;
  // Each empty when no sample knew it.
  std::optional<Range> utilisation, process_utilisation, sm, tensor, dram;  // percent
  std::optional<Range> power_w, sm_mhz, cpu, workers_cpu;                   // cpu in cores
  std::optional<Range> pcie_received, pcie_sent;                            // bytes/s
  std::optional<double> gpu_memory_first, gpu_memory_last, resident_first, resident_last;  // bytes
  std::optional<Range> voluntary, involuntary;  // context switches a second
  std::optional<Range> read_rate, write_rate;   // storage, bytes/s
  std::optional<Range> throttled;               // share of the cgroup's periods
  std::optional<double> cpu_limit;
  uint64_t clock_reasons = 0;  // all that were seen
  int workers = 0, threads = 0, gpus = 0;
  bool shared = false;  // another process used the same GPU
  bool guessed = false;
  struct Thread {
    int64_t id = 0;
    std::string name, waits_in;                 // where it was met asleep most often
    double running = 0, ready = 0, asleep = 0;  // mean shares
  };
  std::vector<Thread> busiest;       // at most 5
  LiveVerdict verdict;               // of the means
  double agreement = 0;              // share of the single samples with the same word
  std::vector<std::string> unknown;  // what cannot be said, and why
};

// Takes samples every `period_s` for `seconds`. `wait` sleeps and returns false to stop early.
// Errors: invalid_argument when there is no such process.
ProcessReport sample_process(Sampler& sampler, int64_t pid, double seconds, double period_s,
                             const std::function<bool(double)>& wait);

constexpr int kProcessSchema = 1;
std::string process_text(const ProcessReport& r);
std::string process_json(const ProcessReport& r);

}  // namespace saturate::observe
