// SPDX-License-Identifier: Apache-2.0
// One moment of the machine: every GPU, every process on one, with rates over the interval since
// the moment before. What is not known is empty.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "observe/system/gpu.h"
#include "observe/system/processes.h"

namespace saturate::observe {

struct ThreadRates {
  int64_t id = 0;
  std::string name, waits_in;
  char state = '?';
  // Shares of the interval: on a core, and ready without one. The rest it slept.
  std::optional<double> running, ready;
  std::optional<double> voluntary, involuntary;  // context switches a second
};

struct GpuUse {
  int gpu = 0;
  std::optional<int64_t> memory;   // bytes
  std::optional<int> utilisation;  // percent of the driver's period with a kernel of the process
};

// A word for what the process does with its GPU, and the numbers that led to it. The words:
// busy, narrow?, launch-bound?, starved?, waiting, cpu-starved, throttled, idle, lost, unknown.
struct LiveVerdict {
  std::string word = "unknown", evidence;
};

struct ProcessView {
  int64_t pid = 0;  // as /proc here shows it; as the driver gave it when `seen` is false
  int64_t parent = 0;
  std::optional<int64_t> container_pid;  // inside its own pid namespace
  bool seen = false;     // /proc shows it; false: another container, or another user's and hidden
  bool guessed = false;  // the driver's pid means nothing here; the only process that fits
  bool worker = false;   // on no GPU itself, but a descendant of one that is
  int64_t start_ticks = 0;  // after boot; with the pid it names the process
  std::string user, name, command;
  char state = '?';
  int threads = 0;
  std::vector<GpuUse> gpus;
  std::optional<double> cpu;  // cores
  std::optional<int64_t> resident;
  std::optional<double> resident_growth;         // bytes/s
  std::optional<double> voluntary, involuntary;  // context switches a second, all threads
  std::optional<double> read_rate, write_rate;   // storage, bytes/s
  std::optional<double> throttled;               // share of cgroup periods that hit the CPU limit
  std::optional<double> cpu_limit;               // cores of the cgroup
  std::vector<ThreadRates> thread_rates;         // by time on a core, most first
  int workers = 0;                               // descendants
  std::optional<double> workers_cpu;             // cores, all descendants together
  LiveVerdict verdict;
};

struct GpuView {
  GpuInfo info;
  GpuReading reading;
};

struct Snapshot {
  double unix_s = 0, interval_s = 0;  // interval 0: the first, without rates
  std::string driver;
  std::optional<int> cuda;  // 13000 for 13.0
  std::string no_gpu;       // why there are no GPUs, with the remedy
  std::vector<GpuView> gpus;
  std::vector<ProcessView> processes;  // those on GPUs by pid, each followed by its descendants
  std::optional<double> host_cpu, host_io_wait;  // shares of all cores
  std::optional<int64_t> memory_total, memory_available;
  int cores = 0;
};

struct SamplerOptions {
  std::vector<int> gpus = {};      // only these; empty: all
  bool pcie = true;                // also where reading it blocks (chips without GPM)
  bool workers = true;             // also descendants of the processes on GPUs
  std::vector<int64_t> also = {};  // processes to show whether they are on a GPU or not
};

class Sampler {
 public:
  // `monitor` may be null: then `no_gpu` says why and only `also` is shown.
  Sampler(std::unique_ptr<GpuMonitor> monitor, std::string no_gpu, ProcessReader reader,
          SamplerOptions options);
  ~Sampler();
  Sampler(Sampler&&) noexcept;
  // Reads four small files for each thread of a process on a GPU. Never throws on what the
  // machine answers.
  Snapshot take();

 private:
  struct Past;
  void add_process(const GpuProcess& use, Snapshot& s);
  void map_hidden(std::vector<GpuProcess>& uses, std::vector<int64_t>& guessed) const;
  void add_workers(Snapshot& s);
  void fill(ProcessView& view, double interval_s);

  std::unique_ptr<GpuMonitor> monitor_;
  std::string no_gpu_;
  ProcessReader reader_;
  SamplerOptions options_;
  std::unique_ptr<Past> past_;
};

// The word for one process from what `s` holds. Says "unknown" when the evidence is missing.
LiveVerdict judge(const ProcessView& process, const Snapshot& s);

}  // namespace saturate::observe
