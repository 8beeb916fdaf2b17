// SPDX-License-Identifier: Apache-2.0
// Words from counters. Counters cannot separate a launch from Python code, nor a loader from any other
// wait, so those words carry a question mark; a trace answers them.
#include <fmt/format.h>

#include <algorithm>

#include "observe/system/snapshot.h"

namespace saturate::observe {
namespace {

// Percent. At 90 the remaining gaps could win back 11% at most; under 3 the driver's own sampling
// cannot separate work from none.
constexpr int kFull = 90, kNone = 3;
constexpr double kNarrow = 40;     // SMs with a warp: DCGM's guide calls less than 50 ineffective
constexpr double kOneCore = 0.85;  // of a core: the thread has little left to give
constexpr double kSleeping = 0.5;
constexpr double kStopped = 0.1;  // of the cgroup's periods
constexpr double kReady = 0.15;   // of the time ready without a core
constexpr double kQuiet = 0.03;   // cores

std::string percent(double share) { return fmt::format("{:.0f}%", share * 100); }

struct DeviceUse {
  std::optional<int> utilisation;  // of the process where the driver counts it, else of its GPUs
  bool of_process = true;
  std::optional<double> sm;
  uint64_t reasons = 0;
  std::string lost;
};

DeviceUse device_use(const ProcessView& p, const Snapshot& s) {
  DeviceUse use;
  for (const GpuUse& g : p.gpus) {
    const auto gpu = std::find_if(s.gpus.begin(), s.gpus.end(),
                                  [&](const GpuView& v) { return v.info.index == g.gpu; });
    if (gpu == s.gpus.end()) continue;
    if (!gpu->reading.lost.empty()) use.lost = gpu->reading.lost;
    const auto sharing =
        std::count_if(s.processes.begin(), s.processes.end(), [&](const ProcessView& other) {
          return std::any_of(other.gpus.begin(), other.gpus.end(),
                             [&](const GpuUse& o) { return o.gpu == g.gpu; });
        });
    std::optional<int> value = g.utilisation;
    // Alone on the GPU, all of its work is this process's.
    if (!value && sharing == 1) {
      value = gpu->reading.utilisation;
      use.of_process = false;
    }
    if (sharing == 1 && gpu->reading.activity.sm)
      use.sm = std::max(use.sm.value_or(0), *gpu->reading.activity.sm);
    if (value) use.utilisation = std::max(use.utilisation.value_or(0), *value);
    use.reasons |= gpu->reading.clock_reasons.value_or(0);
  }
  return use;
}

}  // namespace

LiveVerdict judge(const ProcessView& p, const Snapshot& s) {
  const DeviceUse gpu = device_use(p, s);
  if (!gpu.lost.empty()) return {"lost", gpu.lost};
  if (p.state == 'Z') return {"unknown", "it has ended; its parent has not collected it yet"};
  if (p.gpus.empty()) return {"unknown", "it is on no GPU that the driver shows"};
  if (!gpu.utilisation)
    return {"unknown", "the driver gives no utilisation for it, and it shares the GPU"};
  const int util = *gpu.utilisation;
  const std::string on_gpu = fmt::format("GPU {}%", util);
  const ThreadRates* thread =
      p.thread_rates.empty() || !p.thread_rates[0].running ? nullptr : &p.thread_rates[0];

  if (util >= kNone && (gpu.reasons & kReasonsHarmful))
    return {"throttled", on_gpu + ", clocks held down: " + clock_reason_names(gpu.reasons)};
  if (util >= kFull) {
    if (gpu.sm && *gpu.sm < kNarrow)
      return {"narrow?", fmt::format("{}, but only {:.0f}% of the SMs have work: small grids",
                                     on_gpu, *gpu.sm)};
    return {"busy", gpu.sm ? fmt::format("{}, SM {:.0f}%", on_gpu, *gpu.sm) : on_gpu};
  }
  if (!p.seen) return {"unknown", on_gpu + "; its CPU side is not visible from here"};
  if (!thread || !p.cpu) return {"unknown", on_gpu + "; no CPU times yet"};

  const double running = *thread->running, ready = thread->ready.value_or(0);
  const double workers = p.workers_cpu.value_or(0);
  if (util < kNone && *p.cpu < kQuiet && workers < kQuiet)
    return {"idle", fmt::format("{}, CPU {:.2f} cores", on_gpu, *p.cpu)};
  if (p.throttled.value_or(0) >= kStopped)
    return {"cpu-starved", fmt::format("{}; its cgroup hit the CPU limit in {} of the periods",
                                       on_gpu, percent(*p.throttled))};
  if (ready >= kReady)
    return {"cpu-starved", fmt::format("{}; thread {} was ready without a core {} of the time",
                                       on_gpu, thread->id, percent(ready))};
  if (running >= kOneCore)
    return {"launch-bound?",
            fmt::format("{}; thread {} ran {} of the time: launching, host code or a spinning wait",
                        on_gpu, thread->id, percent(running))};
  if (1 - running - ready >= kSleeping) {
    if (workers > 0.5 || thread->state == 'D' || p.state == 'D')
      return {"starved?",
              fmt::format("{}; thread {} slept {} while {} workers used {:.1f} cores", on_gpu,
                          thread->id, percent(1 - running - ready), p.workers, workers)};
    return {"waiting", fmt::format("{}; its busiest thread slept {} of the time{}", on_gpu,
                                   percent(1 - running - ready),
                                   thread->waits_in.empty() ? "" : ", now in " + thread->waits_in)};
  }
  return {"unknown", fmt::format("{}; busiest thread ran {}: no clear cause in the counters",
                                 on_gpu, percent(running))};
}

}  // namespace saturate::observe
