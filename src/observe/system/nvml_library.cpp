// SPDX-License-Identifier: Apache-2.0
#include "observe/system/nvml_library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <initializer_list>

namespace saturate::observe::nvml {
namespace {

// The first name that the library has: drivers rename functions when their structures grow.
void* find(void* library, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (void* symbol = dlsym(library, name)) return symbol;
  }
  return nullptr;
}

}  // namespace

bool Library::load(const std::string& path, std::string& why) {
  void* library = dlopen(path.empty() ? "libnvidia-ml.so.1" : path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    const char* error = dlerror();
    why = fmt::format(
        "no NVIDIA driver is here ({}); install one, or start the container with its GPUs",
        error ? error : "libnvidia-ml.so.1 cannot be loaded");
    return false;
  }
  const auto get = [&](auto& function, std::initializer_list<const char*> names) {
    function.bind(find(library, names));
  };
  get(init, {"nvmlInit_v2"});
  get(shutdown, {"nvmlShutdown"});
  get(driver_version, {"nvmlSystemGetDriverVersion"});
  get(cuda_version, {"nvmlSystemGetCudaDriverVersion_v2", "nvmlSystemGetCudaDriverVersion"});
  get(count, {"nvmlDeviceGetCount_v2"});
  get(by_index, {"nvmlDeviceGetHandleByIndex_v2"});
  get(name, {"nvmlDeviceGetName"});
  get(uuid, {"nvmlDeviceGetUUID"});
  get(compute_capability, {"nvmlDeviceGetCudaComputeCapability"});
  get(utilization, {"nvmlDeviceGetUtilizationRates"});
  get(memory, {"nvmlDeviceGetMemoryInfo"});
  get(memory_v2, {"nvmlDeviceGetMemoryInfo_v2"});
  get(power, {"nvmlDeviceGetPowerUsage"});
  get(power_limit, {"nvmlDeviceGetEnforcedPowerLimit"});
  get(fan, {"nvmlDeviceGetFanSpeed"});
  get(persistence, {"nvmlDeviceGetPersistenceMode"});
  get(energy, {"nvmlDeviceGetTotalEnergyConsumption"});
  get(clock_reasons,
      {"nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"});
  get(clock, {"nvmlDeviceGetClockInfo"});
  get(max_clock, {"nvmlDeviceGetMaxClockInfo"});
  get(temperature, {"nvmlDeviceGetTemperature"});
  get(temperature_limit, {"nvmlDeviceGetTemperatureThreshold"});
  get(pcie, {"nvmlDeviceGetPcieThroughput"});
  get(mig_mode, {"nvmlDeviceGetMigMode"});
  get(compute_processes,
      {"nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2"});
  get(graphics_processes,
      {"nvmlDeviceGetGraphicsRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v2"});
  get(process_utilization, {"nvmlDeviceGetProcessUtilization"});
  get(gpm_support, {"nvmlGpmQueryDeviceSupport"});
  get(gpm_alloc, {"nvmlGpmSampleAlloc"});
  get(gpm_free, {"nvmlGpmSampleFree"});
  get(gpm_sample, {"nvmlGpmSampleGet"});
  get(gpm_metrics, {"nvmlGpmMetricsGet"});
  if (init) return true;
  why = "libnvidia-ml.so.1 has no nvmlInit_v2; the driver is too old (390 or later is needed)";
  return false;
}

std::string explain(Return code) {
  switch (code) {
    case kDriverNotLoaded:
      return "the NVIDIA driver is not loaded; install it or start it (modprobe nvidia)";
    case kLibraryMismatch:
      return "the driver's library and kernel module are of different versions; restart the "
             "machine "
             "after an update of the driver";
    case kNoPermission:
      return "no permission to use the GPUs; are /dev/nvidia* readable for this user?";
    case kGpuIsLost:
      return "the GPU is lost: it fell off the bus; see dmesg for Xid messages and restart";
    case kResetRequired:
      return "the GPU needs a reset; see dmesg for Xid messages";
    case kNotSupported:
      return "not supported";
    default:
      return fmt::format("NVML error {}", static_cast<int>(code));
  }
}

}  // namespace saturate::observe::nvml
