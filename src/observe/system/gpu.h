// SPDX-License-Identifier: Apache-2.0
// What the driver reports of its GPUs and of the processes on them, through NVML. No privilege
// needed. A value that the driver, the chip or a permission withholds is empty, never 0.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace saturate::observe {

// Bits of GpuReading::clock_reasons.
enum ClockReason : uint64_t {
  kReasonIdle = 0x1,
  kReasonApplicationClocks = 0x2,
  kReasonPowerCap = 0x4,
  kReasonHardwareSlowdown = 0x8,
  kReasonSyncBoost = 0x10,
  kReasonThermal = 0x20,
  kReasonHardwareThermal = 0x40,
  kReasonPowerBrake = 0x80,
  kReasonDisplayClocks = 0x100,
};
// Bits that hold the clock down against the wish of the load: heat, broken or limited power supply.
constexpr uint64_t kReasonsHarmful =
    kReasonHardwareSlowdown | kReasonThermal | kReasonHardwareThermal | kReasonPowerBrake;
// "power cap, thermal"; "none" for 0; idle is left out beside another reason.
std::string clock_reason_names(uint64_t reasons);

// What does not change while the program runs.
struct GpuInfo {
  int index = 0;
  std::string name, uuid;
  std::optional<int> compute_major, compute_minor;
  std::optional<int> max_sm_mhz;
  std::optional<bool> mig;  // MIG mode is on; then utilisation of the whole GPU does not exist
  std::optional<bool> persistence;
  bool gpm = false;  // the chip counts SM, tensor and DRAM activity (Hopper and later)
};

// Activity of the whole GPU between two calls of GpuMonitor::read, in percent of the interval.
struct GpuActivity {
  std::optional<double> sm, occupancy, tensor, dram;
  std::optional<double> nvlink_received, nvlink_sent;  // bytes/s, all links together
};

struct GpuReading {
  std::string lost;  // not empty: why the GPU does not answer; everything else is then empty
  std::optional<int> utilisation, memory_utilisation;  // percent of the driver's last period
  std::optional<int64_t> memory_used, memory_total;    // bytes
  std::optional<double> power_w, power_limit_w, energy_j;
  std::optional<int> sm_mhz, memory_mhz, temperature_c, slowdown_c, fan_percent;
  std::optional<uint64_t> clock_reasons;
  std::optional<double> pcie_received, pcie_sent;  // bytes/s, seen from the GPU
  GpuActivity activity;
};

struct GpuProcess {
  int64_t pid = 0;  // as the driver counts: normally that of the first pid namespace
  int gpu = 0;
  bool graphics = false;
  std::optional<int64_t> memory;         // bytes
  std::optional<int> utilisation;        // percent of the driver's period with a kernel of it
  std::optional<uint32_t> gpu_instance;  // under MIG
};

class GpuMonitor {
 public:
  // Opens libnvidia-ml.so.1, or the library that SATURATE_NVML names. Null when there is none or
  // the driver does not answer; `why` then says it, with the remedy.
  static std::unique_ptr<GpuMonitor> open(std::string& why);
  virtual ~GpuMonitor() = default;

  virtual std::string driver_version() const = 0;       // "" when not known
  virtual std::optional<int> cuda_version() const = 0;  // 13000 for 13.0: the newest it can run
  virtual const std::vector<GpuInfo>& gpus() const = 0;
  // Blocks about 40 ms when `with_pcie` is set on a chip without GPM, which counts PCIe by itself.
  // Activity is empty at the first call and when two calls lie less than 100 ms apart.
  virtual GpuReading read(int gpu, bool with_pcie) = 0;
  // Joules since the driver was loaded, alone: cheap enough to ask for many times a second.
  virtual std::optional<double> energy_j(int gpu) = 0;
  // Compute and graphics processes of one GPU. Empty when there is none, or when the driver hides
  // them.
  virtual std::vector<GpuProcess> processes(int gpu) = 0;
};

}  // namespace saturate::observe
