// SPDX-License-Identifier: Apache-2.0
// Source of the format: Prometheus, "Exposition formats", text format 0.0.4.
#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <utility>

#include "base/printable.h"
#include "observe/top/json.h"

namespace saturate::observe {
namespace {

std::string label(std::string_view value) {
  std::string out;
  for (const char c : printable(value)) {
    if (c == '\\' || c == '"') out += '\\';
    out += c;
  }
  return out;
}

// One metric at a time: its HELP and TYPE must stand before all of its lines.
class Metric {
 public:
  Metric(std::string& out, const char* name, const char* help, const char* type = "gauge")
      : out_(out), name_(name), help_(help), type_(type) {}
  template <class T>
  void add(const std::string& labels, const std::optional<T>& value, double unit = 1) {
    if (!value || !std::isfinite(static_cast<double>(*value))) return;
    if (!std::exchange(begun_, true))
      out_ += fmt::format("# HELP {0} {1}\n# TYPE {0} {2}\n", name_, help_, type_);
    out_ += fmt::format("{}{{{}}} {:.15g}\n", name_, labels, static_cast<double>(*value) * unit);
  }

 private:
  std::string& out_;
  const char *name_, *help_, *type_;
  bool begun_ = false;
};

template <class Get>
void each_gpu(std::string& out, const Snapshot& s, const char* name, const char* help, Get get,
              double unit = 1, const char* type = "gauge") {
  Metric metric(out, name, help, type);
  for (const GpuView& g : s.gpus)
    metric.add(fmt::format("gpu=\"{}\",name=\"{}\",uuid=\"{}\"", g.info.index, label(g.info.name),
                           label(g.info.uuid)),
               get(g), unit);
}

template <class Get>
void each_process(std::string& out, const Snapshot& s, const char* name, const char* help,
                  Get get) {
  Metric metric(out, name, help);
  for (const ProcessView& p : s.processes) {
    if (p.worker) continue;
    metric.add(fmt::format("pid=\"{}\",user=\"{}\",name=\"{}\"", std::abs(p.pid), label(p.user),
                           label(p.name)),
               get(p));
  }
}

}  // namespace

std::string snapshot_prometheus(const Snapshot& s) {
  std::string out;
  if (s.unix_s > 0)
    out += fmt::format(
        "# HELP saturate_sample_timestamp_seconds When the values were taken.\n"
        "# TYPE saturate_sample_timestamp_seconds gauge\nsaturate_sample_timestamp_seconds "
        "{:.3f}\n",
        s.unix_s);
  using G = const GpuView&;
  each_gpu(out, s, "saturate_gpu_up", "1 while the GPU answers, 0 when it is lost.",
           [](G g) { return std::optional(g.reading.lost.empty() ? 1 : 0); });
  each_gpu(
      out, s, "saturate_gpu_utilisation_ratio", "Share of the driver's period with a kernel.",
      [](G g) { return g.reading.utilisation; }, 0.01);
  each_gpu(
      out, s, "saturate_gpu_sm_active_ratio", "SMs with at least one warp, mean over time.",
      [](G g) { return g.reading.activity.sm; }, 0.01);
  each_gpu(
      out, s, "saturate_gpu_tensor_active_ratio", "Cycles with the tensor pipe active.",
      [](G g) { return g.reading.activity.tensor; }, 0.01);
  each_gpu(
      out, s, "saturate_gpu_dram_active_ratio", "Cycles with data moving to or from memory.",
      [](G g) { return g.reading.activity.dram; }, 0.01);
  each_gpu(out, s, "saturate_gpu_memory_used_bytes", "Memory in use.",
           [](G g) { return g.reading.memory_used; });
  each_gpu(out, s, "saturate_gpu_memory_total_bytes", "Memory there is.",
           [](G g) { return g.reading.memory_total; });
  each_gpu(out, s, "saturate_gpu_power_watts", "Power drawn.",
           [](G g) { return g.reading.power_w; });
  each_gpu(
      out, s, "saturate_gpu_energy_joules_total", "Energy since the driver was loaded.",
      [](G g) { return g.reading.energy_j; }, 1, "counter");
  each_gpu(
      out, s, "saturate_gpu_sm_clock_hertz", "Clock of the SMs.",
      [](G g) { return g.reading.sm_mhz; }, 1e6);
  each_gpu(out, s, "saturate_gpu_temperature_celsius", "Temperature of the chip.",
           [](G g) { return g.reading.temperature_c; });
  each_gpu(out, s, "saturate_gpu_clock_reasons", "Bits of NVML's clock event reasons.",
           [](G g) { return g.reading.clock_reasons; });
  each_gpu(out, s, "saturate_gpu_pcie_received_bytes_per_second", "PCIe traffic to the GPU.",
           [](G g) { return g.reading.pcie_received; });
  each_gpu(out, s, "saturate_gpu_pcie_sent_bytes_per_second", "PCIe traffic from the GPU.",
           [](G g) { return g.reading.pcie_sent; });
  using P = const ProcessView&;
  each_process(out, s, "saturate_process_gpu_memory_bytes", "GPU memory, all GPUs.", [](P p) {
    std::optional<int64_t> sum;
    for (const GpuUse& g : p.gpus) {
      if (g.memory) sum = sum.value_or(0) + *g.memory;
    }
    return sum;
  });
  each_process(out, s, "saturate_process_cpu_cores", "CPU time used per second.",
               [](P p) { return p.cpu; });
  each_process(out, s, "saturate_process_workers_cpu_cores", "The same of its descendants.",
               [](P p) { return p.workers_cpu; });
  each_process(out, s, "saturate_process_resident_bytes", "Host memory.",
               [](P p) { return p.resident; });
  each_process(out, s, "saturate_process_voluntary_switches_per_second",
               "Context switches to wait.", [](P p) { return p.voluntary; });
  each_process(out, s, "saturate_process_involuntary_switches_per_second",
               "Context switches forced by the scheduler.", [](P p) { return p.involuntary; });
  Metric verdict(out, "saturate_process_verdict", "1 for the word that holds.");
  for (const ProcessView& p : s.processes) {
    if (!p.worker)
      verdict.add(fmt::format("pid=\"{}\",verdict=\"{}\"", std::abs(p.pid), p.verdict.word),
                  std::optional(1));
  }
  return out;
}

}  // namespace saturate::observe
