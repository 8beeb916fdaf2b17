// SPDX-License-Identifier: Apache-2.0
// A libnvidia-ml.so that answers from a JSON file, for tests on machines without a GPU. The file is
// named by SATURATE_FAKE_NVML:
//   {"driver": "580.1", "cuda": 13000, "init": 0, "gpus": [{"name": "A", "utilization": 50, ...}]}
// A value is given at every call; {"error": N} makes the call fail with N; {"calls": [a, b, c]}
// gives one element a call and then stays at the last; a key that is missing is "not supported".
// Built with FAKE_OLD_DRIVER it lacks the functions that drivers before 2021 lacked.
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "observe/system/nvml_abi.h"

using saturate::observe::nvml::GpmMetric;
using saturate::observe::nvml::GpmQuery;
using saturate::observe::nvml::GpmSample;
using saturate::observe::nvml::GpmSupport;
using saturate::observe::nvml::Handle;
using saturate::observe::nvml::Memory;
using saturate::observe::nvml::MemoryV2;
using saturate::observe::nvml::ProcessInfo;
using saturate::observe::nvml::ProcessSample;
using saturate::observe::nvml::Return;
using saturate::observe::nvml::Utilization;
namespace nvml = saturate::observe::nvml;
using Json = nlohmann::json;

namespace {

Json g_script;
std::map<std::pair<Handle, std::string>, size_t> g_done;  // calls answered from "calls"
std::map<Handle, int> g_calls;

Json& script() { return g_script; }

void load_script() {
  const char* path = std::getenv("SATURATE_FAKE_NVML");
  std::ifstream in(path ? path : "");
  g_script = in ? Json::parse(in, nullptr, false) : Json::object();
  g_done.clear();
  g_calls.clear();
}

Json& gpu_of(Handle gpu) { return script()["gpus"][reinterpret_cast<uintptr_t>(gpu) - 1]; }

// The answer of this call into `value`. `peek`: without moving on to the next of "calls".
Return answer(Handle gpu, const std::string& key, Json& value, bool peek = false) {
  Json& g = gpu_of(gpu);
  if (g.contains("lost_after")) {  // calls of any kind until the GPU falls off the bus
    if (++g_calls[gpu] > g["lost_after"].get<int>()) return nvml::kGpuIsLost;
  }
  if (!g.contains(key)) return nvml::kNotSupported;
  value = g[key];
  if (value.is_object() && value.contains("calls")) {
    size_t& at = g_done[{gpu, key}];
    const Json list = value["calls"];
    value = list[std::min(at, list.size() - 1)];
    if (!peek) ++at;
  }
  if (value.is_object() && value.contains("error")) return Return(value["error"].get<int>());
  return nvml::kSuccess;
}

template <class T>
Return number(Handle gpu, const std::string& key, T* out) {
  Json value;
  const Return r = answer(gpu, key, value);
  if (r == nvml::kSuccess) *out = value.get<T>();
  return r;
}

Return text(const std::string& value, char* out, unsigned size) {
  if (value.size() + 1 > size) return nvml::kInsufficientSize;
  std::memcpy(out, value.c_str(), value.size() + 1);
  return nvml::kSuccess;
}

Return list(Handle gpu, const std::string& key, unsigned* count, ProcessInfo* out) {
  Json value;
  const Return r = answer(gpu, key, value, /*peek=*/true);
  if (r != nvml::kSuccess) return r;
  const unsigned room = *count;
  *count = static_cast<unsigned>(value.size());
  if (room < value.size()) return nvml::kInsufficientSize;
  for (size_t i = 0; i < value.size(); ++i) {
    out[i] = {value[i].at("pid").get<unsigned>(), value[i].value("memory", ~0ull), ~0u, ~0u};
  }
  return answer(gpu, key, value);
}

}  // namespace

extern "C" {

Return nvmlInit_v2() {
  load_script();
  return Return(script().value("init", 0));
}
Return nvmlShutdown() { return nvml::kSuccess; }
Return nvmlSystemGetDriverVersion(char* out, unsigned size) {
  return text(script().value("driver", "0"), out, size);
}
Return nvmlSystemGetCudaDriverVersion_v2(int* out) {
  *out = script().value("cuda", 0);
  return nvml::kSuccess;
}
Return nvmlDeviceGetCount_v2(unsigned* out) {
  *out = static_cast<unsigned>(script()["gpus"].size());
  return nvml::kSuccess;
}
Return nvmlDeviceGetHandleByIndex_v2(unsigned index, Handle* out) {
  *out = reinterpret_cast<Handle>(static_cast<uintptr_t>(index) + 1);
  return Return(gpu_of(*out).value("handle_error", 0));
}
Return nvmlDeviceGetName(Handle gpu, char* out, unsigned size) {
  return text(gpu_of(gpu).value("name", "Fake GPU"), out, size);
}
Return nvmlDeviceGetUUID(Handle gpu, char* out, unsigned size) {
  return text(gpu_of(gpu).value("uuid", "GPU-fake"), out, size);
}
Return nvmlDeviceGetCudaComputeCapability(Handle, int* major, int* minor) {
  *major = 9;
  *minor = 0;
  return nvml::kSuccess;
}
Return nvmlDeviceGetUtilizationRates(Handle gpu, Utilization* out) {
  out->memory = 7;
  return number(gpu, "utilization", &out->gpu);
}
Return nvmlDeviceGetMemoryInfo(Handle gpu, Memory* out) {
  out->total = 80ull << 30;
  return number(gpu, "memory", &out->used);
}
Return nvmlDeviceGetPowerUsage(Handle gpu, unsigned* out) { return number(gpu, "power", out); }
Return nvmlDeviceGetEnforcedPowerLimit(Handle gpu, unsigned* out) {
  return number(gpu, "power_limit", out);
}
Return nvmlDeviceGetTotalEnergyConsumption(Handle gpu, unsigned long long* out) {
  return number(gpu, "energy", out);
}
Return nvmlDeviceGetClockInfo(Handle gpu, int kind, unsigned* out) {
  return number(gpu, kind == nvml::kClockMemory ? "memory_clock" : "sm_clock", out);
}
Return nvmlDeviceGetMaxClockInfo(Handle gpu, int, unsigned* out) {
  return number(gpu, "max_clock", out);
}
Return nvmlDeviceGetTemperature(Handle gpu, int, unsigned* out) {
  return number(gpu, "temperature", out);
}
Return nvmlDeviceGetCurrentClocksThrottleReasons(Handle gpu, unsigned long long* out) {
  return number(gpu, "reasons", out);
}
Return nvmlDeviceGetPcieThroughput(Handle gpu, int counter, unsigned* out) {
  return number(gpu, counter == nvml::kPcieSent ? "pcie_sent" : "pcie_received", out);
}
Return nvmlDeviceGetComputeRunningProcesses_v2(Handle gpu, unsigned* count, ProcessInfo* out) {
  return list(gpu, "processes", count, out);
}
Return nvmlDeviceGetProcessUtilization(Handle gpu, ProcessSample* out, unsigned* count,
                                       unsigned long long since) {
  Json value;
  const Return r = answer(gpu, "process_utilization", value, !out);
  if (r != nvml::kSuccess) return r;
  *count = static_cast<unsigned>(value.size());
  if (!out) return nvml::kInsufficientSize;
  for (size_t i = 0; i < value.size(); ++i)
    out[i] = {
        value[i].at("pid").get<unsigned>(), since + 1, value[i].at("sm").get<unsigned>(), 0, 0, 0};
  return nvml::kSuccess;
}

#ifndef FAKE_OLD_DRIVER
Return nvmlDeviceGetMigMode(Handle gpu, unsigned* current, unsigned* pending) {
  *pending = 0;
  return number(gpu, "mig", current);
}
Return nvmlDeviceGetPersistenceMode(Handle gpu, unsigned* out) {
  return number(gpu, "persistence", out);
}
Return nvmlDeviceGetMemoryInfo_v2(Handle gpu, MemoryV2* out) {
  if (out->version != nvml::kMemoryV2) return nvml::kInvalidArgument;
  out->total = 80ull << 30;
  return number(gpu, "memory", &out->used);
}
Return nvmlDeviceGetCurrentClocksEventReasons(Handle gpu, unsigned long long* out) {
  return number(gpu, "reasons", out);
}
Return nvmlGpmQueryDeviceSupport(Handle gpu, GpmSupport* out) {
  if (out->version != 1) return nvml::kInvalidArgument;
  out->supported = gpu_of(gpu).contains("gpm");
  return nvml::kSuccess;
}
Return nvmlGpmSampleAlloc(GpmSample* out) {
  static unsigned samples = 0;
  *out = reinterpret_cast<GpmSample>(static_cast<uintptr_t>(++samples));
  return nvml::kSuccess;
}
Return nvmlGpmSampleFree(GpmSample) { return nvml::kSuccess; }
Return nvmlGpmSampleGet(Handle gpu, GpmSample) { return Return(gpu_of(gpu).value("gpm_error", 0)); }
// "gpm": {"2": 76.5}: metrics by id; one that is not there is not supported. Of the first GPU.
Return nvmlGpmMetricsGet(GpmQuery* query) {
  if (query->version != 1 || !query->first || query->first == query->second)
    return nvml::kInvalidArgument;
  const Json& values = script()["gpus"][0]["gpm"];
  for (unsigned i = 0; i < query->count; ++i) {
    GpmMetric& m = query->metrics[i];
    const std::string id = std::to_string(m.id);
    m.result = values.contains(id) ? nvml::kSuccess : nvml::kNotSupported;
    m.value = values.contains(id) ? values[id].get<double>() : -1;
  }
  return nvml::kSuccess;
}
#endif

}  // extern "C"
