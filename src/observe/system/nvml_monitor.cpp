// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "observe/system/gpu.h"
#include "observe/system/nvml_library.h"

namespace saturate::observe {
namespace {

using nvml::Handle;
using nvml::Library;
using Clock = std::chrono::steady_clock;

// GPM gives nothing useful on shorter intervals.
constexpr auto kShortestGpm = std::chrono::milliseconds(100);
constexpr double kMiB = 1024.0 * 1024.0;

// Counters of one GPU at two moments; the driver subtracts them.
class Gpm {
 public:
  Gpm(const Library& library, Handle gpu) : library_(library), gpu_(gpu) {
    for (nvml::GpmSample& s : samples_) ok_ = ok_ && library_.gpm_alloc(&s) == nvml::kSuccess;
  }
  ~Gpm() {
    for (nvml::GpmSample s : samples_) {
      if (s) library_.gpm_free(s);
    }
  }
  Gpm(const Gpm&) = delete;
  Gpm& operator=(const Gpm&) = delete;

  // Since the last call that took a sample. Fills `activity` and the PCIe rates of `reading`.
  void read(GpuReading& reading) {
    const Clock::time_point now = Clock::now();
    if (!ok_ || (taken_ && now - at_ < kShortestGpm)) return;
    if (library_.gpm_sample(gpu_, samples_[1 - last_]) != nvml::kSuccess) {
      taken_ = false;
      return;
    }
    last_ = 1 - last_;
    at_ = now;
    if (!std::exchange(taken_, true)) return;
    query_ = {};
    query_.version = 1;
    query_.first = samples_[1 - last_];
    query_.second = samples_[last_];
    for (unsigned id : kIds) query_.metrics[query_.count++].id = id;
    if (library_.gpm_metrics(&query_) != nvml::kSuccess) return;
    const auto value = [&](unsigned id, double unit = 1) -> std::optional<double> {
      for (unsigned i = 0; i < query_.count; ++i) {
        const nvml::GpmMetric& m = query_.metrics[i];
        // Not a number, negative or absurd: what drivers give for a counter that the chip lacks.
        if (m.id == id && m.result == nvml::kSuccess && m.value >= 0 && m.value < 1e9)
          return m.value * unit;
      }
      return {};
    };
    reading.activity = {.sm = value(nvml::kGpmSm),
                        .occupancy = value(nvml::kGpmOccupancy),
                        .tensor = value(nvml::kGpmTensor),
                        .dram = value(nvml::kGpmDram),
                        .nvlink_received = value(nvml::kGpmNvlinkReceived, kMiB),
                        .nvlink_sent = value(nvml::kGpmNvlinkSent, kMiB)};
    reading.pcie_received = value(nvml::kGpmPcieReceived, kMiB);
    reading.pcie_sent = value(nvml::kGpmPcieSent, kMiB);
  }

 private:
  static constexpr std::array kIds = {
      nvml::kGpmSm,       nvml::kGpmOccupancy,    nvml::kGpmTensor,         nvml::kGpmDram,
      nvml::kGpmPcieSent, nvml::kGpmPcieReceived, nvml::kGpmNvlinkReceived, nvml::kGpmNvlinkSent};
  const Library& library_;
  Handle gpu_;
  std::array<nvml::GpmSample, 2> samples_{};
  nvml::GpmQuery query_{};
  int last_ = 0;
  bool ok_ = true, taken_ = false;
  Clock::time_point at_;
};

struct Gpu {
  Handle handle = nullptr;
  std::string lost;
  std::unique_ptr<Gpm> gpm;
  unsigned long long seen_us = 0;  // newest process sample of the last call
};

class Monitor final : public GpuMonitor {
 public:
  explicit Monitor(std::unique_ptr<Library> library) : library_(std::move(library)) {}
  ~Monitor() override {
    state_.clear();
    library_->shutdown();
  }

  bool start(std::string& why) {
    unsigned count = 0;
    if (const nvml::Return r = library_->count(&count); r != nvml::kSuccess) {
      why = nvml::explain(r);
      return false;
    }
    for (unsigned i = 0; i < count; ++i) add(static_cast<int>(i));
    return true;
  }

  std::string driver_version() const override {
    char text[96] = {};
    return library_->driver_version(text, sizeof text - 1) == nvml::kSuccess ? text : "";
  }
  std::optional<int> cuda_version() const override {
    int version = 0;
    if (library_->cuda_version(&version) != nvml::kSuccess) return {};
    return version;
  }
  const std::vector<GpuInfo>& gpus() const override { return info_; }

  GpuReading read(int gpu, bool with_pcie) override {
    Gpu& g = state_.at(static_cast<size_t>(gpu));
    GpuReading r;
    r.lost = g.lost;
    if (!g.handle || !g.lost.empty()) return r;
    nvml::Utilization use{};
    if (ok(g, library_->utilization(g.handle, &use))) {
      r.utilisation = static_cast<int>(use.gpu);
      r.memory_utilisation = static_cast<int>(use.memory);
    }
    read_memory(g, r);
    r.power_w = scaled(g, library_->power, 1e-3);
    r.power_limit_w = scaled(g, library_->power_limit, 1e-3);
    r.fan_percent = number(g, library_->fan);
    r.sm_mhz = number(g, library_->clock, nvml::kClockSm);
    r.memory_mhz = number(g, library_->clock, nvml::kClockMemory);
    r.temperature_c = number(g, library_->temperature, 0);
    r.slowdown_c = number(g, library_->temperature_limit, 1);
    r.energy_j = energy_of(g);
    unsigned long long wide = 0;
    if (ok(g, library_->clock_reasons(g.handle, &wide))) r.clock_reasons = wide;
    if (g.gpm) {
      g.gpm->read(r);
    } else if (with_pcie) {
      r.pcie_sent = kilobytes(g, nvml::kPcieSent);
      r.pcie_received = kilobytes(g, nvml::kPcieReceived);
    }
    if (g.lost.empty()) return r;
    GpuReading gone;
    gone.lost = g.lost;
    return gone;
  }

  std::optional<double> energy_j(int gpu) override {
    Gpu& g = state_.at(static_cast<size_t>(gpu));
    if (!g.handle || !g.lost.empty()) return {};
    return energy_of(g);
  }

  std::vector<GpuProcess> processes(int gpu) override {
    Gpu& g = state_.at(static_cast<size_t>(gpu));
    std::vector<GpuProcess> found;
    list(g, gpu, library_->compute_processes, false, found);
    list(g, gpu, library_->graphics_processes, true, found);
    add_utilisation(g, found);
    return found;
  }

 private:
  // A lost GPU is remembered: what it answered before in the same reading is not worth showing.
  bool ok(Gpu& g, nvml::Return r) {
    if (r == nvml::kGpuIsLost || r == nvml::kResetRequired) g.lost = nvml::explain(r);
    return r == nvml::kSuccess;
  }
  std::optional<double> energy_of(Gpu& g) {
    unsigned long long millijoules = 0;
    if (!ok(g, library_->energy(g.handle, &millijoules))) return {};
    return static_cast<double>(millijoules) * 1e-3;
  }
  template <class... Args, class... Given>
  std::optional<int> number(Gpu& g, const nvml::Function<Handle, Args...>& f, Given... given) {
    unsigned value = 0;
    if (!ok(g, f(g.handle, given..., &value))) return {};
    return static_cast<int>(value);
  }
  std::optional<double> scaled(Gpu& g, const nvml::Function<Handle, unsigned*>& f, double unit) {
    const std::optional<int> value = number(g, f);
    if (!value) return {};
    return *value * unit;
  }
  std::optional<double> kilobytes(Gpu& g, int counter) {
    const std::optional<int> value = number(g, library_->pcie, counter);
    if (!value) return {};
    return *value * 1024.0;
  }

  void add(int index) {
    GpuInfo info;
    info.index = index;
    Gpu g;
    const nvml::Return r = library_->by_index(static_cast<unsigned>(index), &g.handle);
    if (r != nvml::kSuccess) {
      // It keeps its index and says why it is silent; without a handle nothing may be asked.
      info.name = "GPU";
      g.lost = nvml::explain(r);
      info_.push_back(info);
      state_.push_back(std::move(g));
      return;
    }
    char text[128] = {};
    info.name = library_->name(g.handle, text, sizeof text - 1) == nvml::kSuccess ? text : "GPU";
    std::memset(text, 0, sizeof text);
    if (library_->uuid(g.handle, text, sizeof text - 1) == nvml::kSuccess) info.uuid = text;
    int major = 0, minor = 0;
    if (library_->compute_capability(g.handle, &major, &minor) == nvml::kSuccess) {
      info.compute_major = major;
      info.compute_minor = minor;
    }
    info.max_sm_mhz = number(g, library_->max_clock, nvml::kClockSm);
    unsigned on = 0, pending = 0;
    if (library_->mig_mode(g.handle, &on, &pending) == nvml::kSuccess) info.mig = on != 0;
    if (library_->persistence(g.handle, &on) == nvml::kSuccess) info.persistence = on != 0;
    nvml::GpmSupport support{1, 0};
    info.gpm = library_->gpm_support(g.handle, &support) == nvml::kSuccess && support.supported &&
               !info.mig.value_or(false);
    if (info.gpm) g.gpm = std::make_unique<Gpm>(*library_, g.handle);
    info_.push_back(info);
    state_.push_back(std::move(g));
  }

  void read_memory(Gpu& g, GpuReading& r) {
    nvml::MemoryV2 second{};
    second.version = nvml::kMemoryV2;
    if (ok(g, library_->memory_v2(g.handle, &second))) {
      r.memory_used = static_cast<int64_t>(second.used);
      r.memory_total = static_cast<int64_t>(second.total);
      return;
    }
    nvml::Memory first{};
    if (!ok(g, library_->memory(g.handle, &first))) return;
    r.memory_used = static_cast<int64_t>(first.used);
    r.memory_total = static_cast<int64_t>(first.total);
  }

  void list(Gpu& g, int gpu, const nvml::Function<Handle, unsigned*, nvml::ProcessInfo*>& f,
            bool graphics, std::vector<GpuProcess>& found) {
    if (!g.handle) return;
    std::vector<nvml::ProcessInfo> infos(64);
    unsigned count = 0;
    // Processes may start between the two calls: a few tries with room to spare.
    for (int tries = 0; tries < 4; ++tries) {
      count = static_cast<unsigned>(infos.size());
      const nvml::Return r = f(g.handle, &count, infos.data());
      if (r == nvml::kSuccess) break;
      if (!ok(g, r) && r != nvml::kInsufficientSize) return;
      if (count > 1u << 20) return;
      infos.resize(count + 64u);
      count = 0;
    }
    for (unsigned i = 0; i < count && i < infos.size(); ++i) {
      const nvml::ProcessInfo& p = infos[i];
      bool known = false;
      for (const GpuProcess& other : found) known = known || other.pid == p.pid;
      if (known) continue;  // a program that computes and draws is listed twice
      GpuProcess process;
      process.pid = p.pid;
      process.gpu = gpu;
      process.graphics = graphics;
      if (p.used_bytes != ~0ull) process.memory = static_cast<int64_t>(p.used_bytes);
      if (p.gpu_instance != ~0u && p.gpu_instance != 0) process.gpu_instance = p.gpu_instance;
      found.push_back(process);
    }
  }

  // The mean of the samples since the last call, as a process that just ended or came has fewer.
  void add_utilisation(Gpu& g, std::vector<GpuProcess>& found) {
    if (!g.handle || found.empty()) return;
    unsigned count = 0;
    const nvml::Return r = library_->process_utilization(g.handle, nullptr, &count, g.seen_us);
    if ((r != nvml::kInsufficientSize && r != nvml::kSuccess) || count == 0 || count > 1u << 20)
      return;
    std::vector<nvml::ProcessSample> samples(count);
    if (library_->process_utilization(g.handle, samples.data(), &count, g.seen_us) !=
        nvml::kSuccess)
      return;
    samples.resize(std::min<size_t>(count, samples.size()));
    const unsigned long long since = g.seen_us;
    for (const nvml::ProcessSample& s : samples) g.seen_us = std::max(g.seen_us, s.time_us);
    for (GpuProcess& p : found) {
      double sum = 0;
      int n = 0;
      for (const nvml::ProcessSample& s : samples) {
        // Drivers fill the rest of the buffer with old samples and with more than 100 percent.
        if (s.pid != p.pid || s.time_us <= since || s.sm > 100) continue;
        sum += s.sm;
        ++n;
      }
      if (n > 0) p.utilisation = static_cast<int>(sum / n + 0.5);
    }
  }

  std::unique_ptr<Library> library_;
  std::vector<GpuInfo> info_;
  std::vector<Gpu> state_;
};

}  // namespace

std::unique_ptr<GpuMonitor> GpuMonitor::open(std::string& why) {
  const char* path = std::getenv("SATURATE_NVML");
  auto library = std::make_unique<Library>();
  if (!library->load(path ? path : "", why)) return nullptr;
  if (const nvml::Return r = library->init(); r != nvml::kSuccess) {
    why = nvml::explain(r);
    return nullptr;
  }
  auto monitor = std::make_unique<Monitor>(std::move(library));
  if (!monitor->start(why)) return nullptr;
  return monitor;
}

std::string clock_reason_names(uint64_t reasons) {
  static constexpr std::pair<uint64_t, const char*> kNames[] = {
      {kReasonPowerCap, "power cap"},
      {kReasonThermal, "thermal"},
      {kReasonHardwareThermal, "hardware thermal"},
      {kReasonHardwareSlowdown, "hardware slowdown"},
      {kReasonPowerBrake, "power brake"},
      {kReasonApplicationClocks, "application clocks"},
      {kReasonSyncBoost, "sync boost"},
      {kReasonDisplayClocks, "display clocks"},
  };
  std::string text;
  for (const auto& [bit, name] : kNames) {
    if (reasons & bit) text += (text.empty() ? "" : ", ") + std::string(name);
  }
  if (!text.empty()) return text;
  return reasons & kReasonIdle ? "idle" : "none";
}

}  // namespace saturate::observe
