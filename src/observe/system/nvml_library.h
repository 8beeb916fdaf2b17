// SPDX-License-Identifier: Apache-2.0
// The functions of libnvidia-ml.so.1 by name. One that the driver does not have answers
// kNotSupported, so that no caller asks whether it is there.
#pragma once
#include <string>

#include "observe/system/nvml_abi.h"

namespace saturate::observe::nvml {

template <class... Args>
class Function {
 public:
  void bind(void* symbol) noexcept { call_ = reinterpret_cast<Return (*)(Args...)>(symbol); }
  explicit operator bool() const noexcept { return call_ != nullptr; }
  Return operator()(Args... args) const { return call_ ? call_(args...) : kNotSupported; }

 private:
  Return (*call_)(Args...) = nullptr;
};

// The library stays loaded until the program ends: some drivers leave threads behind.
class Library {
 public:
  // `path` empty: the system's library. False when it cannot be loaded or has no nvmlInit_v2;
  // `why` says what the loader said.
  bool load(const std::string& path, std::string& why);

  Function<> init, shutdown;
  Function<char*, unsigned> driver_version;
  Function<int*> cuda_version;
  Function<unsigned*> count;
  Function<unsigned, Handle*> by_index;
  Function<Handle, char*, unsigned> name, uuid;
  Function<Handle, int*, int*> compute_capability;
  Function<Handle, Utilization*> utilization;
  Function<Handle, Memory*> memory;
  Function<Handle, MemoryV2*> memory_v2;
  Function<Handle, unsigned*> power, power_limit, fan, persistence;
  Function<Handle, unsigned long long*> energy, clock_reasons;
  Function<Handle, int, unsigned*> clock, max_clock, temperature, temperature_limit, pcie;
  Function<Handle, unsigned*, unsigned*> mig_mode;
  Function<Handle, unsigned*, ProcessInfo*> compute_processes, graphics_processes;
  Function<Handle, ProcessSample*, unsigned*, unsigned long long> process_utilization;
  Function<Handle, GpmSupport*> gpm_support;
  Function<GpmSample*> gpm_alloc;
  Function<GpmSample> gpm_free;
  Function<Handle, GpmSample> gpm_sample;
  Function<GpmQuery*> gpm_metrics;
};

// "the driver is not loaded" and the like, with the remedy where there is one.
std::string explain(Return code);

}  // namespace saturate::observe::nvml
