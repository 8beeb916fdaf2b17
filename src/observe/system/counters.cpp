// SPDX-License-Identifier: Apache-2.0
#include "observe/system/counters.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <string_view>

namespace saturate::observe {
namespace {

constexpr std::array kInfos = {
    CounterInfo{"utilisation", "utilisation", CounterUnit::percent, false,
                "time with at least one kernel, as nvidia-smi shows it; not how much of the GPU "
                "the kernel uses"},
    CounterInfo{"sm_active", "SM active", CounterUnit::percent, false,
                "multiprocessors with work, on average; not whether that work waits for memory"},
    CounterInfo{"tensor_active", "tensor active", CounterUnit::percent, false,
                "time in which tensor cores multiply, about 93% at best; none of fp32 without "
                "TF32"},
    CounterInfo{"dram_active", "DRAM active", CounterUnit::percent, false,
                "time in which memory moves data, about 80% at best; not traffic of caches"},
    CounterInfo{"memory_used", "memory used", CounterUnit::bytes, false,
                "taken from the driver by all processes; a framework keeps what it has freed"},
    CounterInfo{"power", "power", CounterUnit::watts, true,
                "of the whole board, averaged by it over a second or less; a step's in joules"},
    CounterInfo{"sm_clock", "SM clock", CounterUnit::mhz, false,
                "at the moment of the sample; an idle GPU clocks down by itself"},
    CounterInfo{"pcie_received", "PCIe to the GPU", CounterUnit::bytes_per_s, true,
                "with the protocol's share; copies inside the GPU and NVLink are not in it"},
    CounterInfo{"pcie_sent", "PCIe from the GPU", CounterUnit::bytes_per_s, true,
                "the same, the other way"},
    CounterInfo{"cpu_cores", "CPU", CounterUnit::cores, false,
                "time on cores, all threads of all processes of the run; 1 is one core all the "
                "time"},
    CounterInfo{"voluntary_switches", "voluntary switches", CounterUnit::per_s, true,
                "a thread waited for something: a lock, data, the GPU"},
    CounterInfo{"involuntary_switches", "involuntary switches", CounterUnit::per_s, true,
                "a thread lost its core to another: more threads than cores, or a CPU limit"},
    CounterInfo{"cpu_throttled", "at the CPU limit", CounterUnit::percent, false,
                "periods in which the cgroup's limit stopped the process; docker --cpus and "
                "Kubernetes limits do that"},
    CounterInfo{"io_wait", "machine waits for I/O", CounterUnit::percent, false,
                "idle cores with storage requests under way, of the whole machine; busy cores "
                "hide it"},
};

size_t number_of(std::string_view id) {
  size_t n = 0;
  while (n < kInfos.size() && id != kInfos[n].id) ++n;
  return n;
}

std::optional<double> times(const std::optional<double>& value, double factor) {
  if (!value) return {};
  return *value * factor;
}
void add_to(std::optional<double>& sum, const std::optional<double>& value) {
  if (value) sum = sum.value_or(0) + *value;
}

}  // namespace

std::span<const CounterInfo> counter_infos() { return kInfos; }

const CounterInfo* counter_info(std::string_view id) {
  const size_t n = number_of(id);
  return n < kInfos.size() ? &kInfos[n] : nullptr;
}

template <class T>
void CounterCollector::put(const char* id, int gpu, const std::optional<T>& value) {
  if (!value) return;
  Sum& sum = sums_[{gpu, number_of(id)}];
  sum.last = static_cast<double>(*value);
  if (!sum.range) sum.first = sum.last;
  observe::add(sum.range, value);
}

void CounterCollector::add(const Snapshot& s) {
  no_gpu_ = s.no_gpu;
  if (s.interval_s <= 0) return;
  seconds_ += s.interval_s;
  std::set<int64_t> run{root_};
  for (bool grew = true; grew;) {  // parents may come after their children
    grew = false;
    for (const ProcessView& p : s.processes)
      if (run.count(p.parent) != 0) grew = run.insert(p.pid).second || grew;
  }
  std::optional<double> cpu, voluntary, involuntary, throttled;
  std::set<int> used;
  std::map<int, int> others;          // processes, by GPU
  std::map<int, int64_t> own_memory;  // by GPU, of the processes of which the driver tells it
  for (const ProcessView& p : s.processes) {
    if (run.count(p.pid) == 0) {
      for (const GpuUse& use : p.gpus) ++others[use.gpu];
      continue;
    }
    add_to(cpu, p.cpu);
    add_to(voluntary, p.voluntary);
    add_to(involuntary, p.involuntary);
    if (p.throttled && p.throttled > throttled) throttled = p.throttled;
    for (const GpuUse& use : p.gpus) {
      used.insert(use.gpu);
      if (use.memory) own_memory[use.gpu] += *use.memory;
    }
  }
  put("cpu_cores", -1, cpu);
  put("voluntary_switches", -1, voluntary);
  put("involuntary_switches", -1, involuntary);
  put("cpu_throttled", -1, times(throttled, 100));
  put("io_wait", -1, times(s.host_io_wait, 100));
  for (const GpuView& g : s.gpus) {
    if (used.count(g.info.index) == 0) continue;
    const int gpu = g.info.index;
    gpus_[gpu] = g.info.name;
    if (others.count(gpu) != 0) neighbours_[gpu] = std::max(neighbours_[gpu], others[gpu]);
    if (g.reading.clock_reasons) reasons_[gpu] |= *g.reading.clock_reasons & ~kReasonIdle;
    add_clock(g);
    put("utilisation", gpu, g.reading.utilisation);
    put("sm_active", gpu, g.reading.activity.sm);
    put("tensor_active", gpu, g.reading.activity.tensor);
    put("dram_active", gpu, g.reading.activity.dram);
    put("memory_used", gpu, g.reading.memory_used);
    add_memory(gpu, own_memory, g.reading.memory_used);
    put("power", gpu, g.reading.power_w);
    put("sm_clock", gpu, g.reading.sm_mhz);
    put("pcie_received", gpu, g.reading.pcie_received);
    put("pcie_sent", gpu, g.reading.pcie_sent);
  }
}

// One source a GPU: what another program takes is no growth of this one.
void CounterCollector::add_memory(int gpu, const std::map<int, int64_t>& own,
                                  std::optional<int64_t> all) {
  const auto mine = own.find(gpu);
  if (mine != own.end() && own_memory_.insert(gpu).second) memory_.erase(gpu);
  const std::optional<int64_t> bytes = mine != own.end() ? std::optional(mine->second) : all;
  if (!bytes || (mine == own.end() && own_memory_.count(gpu) != 0)) return;
  memory_[gpu].add(static_cast<int64_t>(seconds_ * 1e9), static_cast<double>(*bytes));
}

void CounterCollector::add_clock(const GpuView& g) {
  const GpuReading& r = g.reading;
  if (!r.clock_reasons || !r.sm_mhz || (*r.clock_reasons & kReasonIdle) != 0) return;
  if (r.utilisation && *r.utilisation == 0) return;
  ClockView& c = clocks_[g.info.index];
  const uint64_t held = *r.clock_reasons & ~uint64_t{kReasonDisplayClocks};
  const double mhz = *r.sm_mhz;
  c.full_mhz = g.info.max_sm_mhz.value_or(0);
  ++c.samples;
  c.held += held != 0;
  for (uint64_t bit = 1; bit != 0 && bit <= held; bit <<= 1)
    if (held & bit) ++c.by_reason[bit];
  c.mean_mhz += (mhz - c.mean_mhz) / c.samples;
  const double part = held != 0 && c.full_mhz > 0 ? std::min(1.0, mhz / c.full_mhz) : 1;
  c.speed += (part - c.speed) / c.samples;
}

std::string held_by(const ClockView& c) {
  std::vector<std::pair<int, uint64_t>> by_count;
  for (const auto& [bit, n] : c.by_reason) by_count.emplace_back(-n, bit);
  std::sort(by_count.begin(), by_count.end());
  std::string text;
  for (const auto& [minus, bit] : by_count)
    text += fmt::format("{}{} {:.0f}%", text.empty() ? "" : ", ", clock_reason_names(bit),
                        -100.0 * minus / std::max(1, c.samples));
  return text;
}

Counters CounterCollector::finish() const {
  Counters c;
  c.seconds = seconds_;
  c.no_gpu = no_gpu_;
  c.gpus = gpus_;
  c.memory = memory_;
  c.clocks = clocks_;
  c.neighbours = neighbours_;
  for (const auto& [gpu, reasons] : reasons_) c.clocks_held_by[gpu] = clock_reason_names(reasons);
  const auto of = [&](bool gpus) {
    for (const auto& [key, sum] : sums_)
      if ((key.first >= 0) == gpus)
        c.values.push_back({&kInfos[key.second], key.first, *sum.range, sum.first, sum.last});
  };
  of(true);
  of(false);
  return c;
}

}  // namespace saturate::observe
