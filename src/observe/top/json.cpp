// SPDX-License-Identifier: Apache-2.0
#include "observe/top/json.h"

#include "base/json.h"
#include "base/printable.h"

namespace saturate::observe {
namespace {

Json reasons_json(const std::optional<uint64_t>& reasons) {
  if (!reasons) return nullptr;
  Json list = Json::Array{};
  for (uint64_t bit = 1; bit <= kReasonDisplayClocks; bit <<= 1) {
    if (*reasons & bit) list.push_back(clock_reason_names(bit));
  }
  return list;
}

Json gpu_json(const GpuView& g) {
  const GpuReading& r = g.reading;
  Json j;
  j["index"] = g.info.index;
  j["name"] = printable(g.info.name);
  j["uuid"] = printable(g.info.uuid);
  j["mig"] = g.info.mig;
  j["lost"] = r.lost.empty() ? Json(nullptr) : Json(r.lost);
  j["utilisation_percent"] = r.utilisation;
  j["memory_utilisation_percent"] = r.memory_utilisation;
  j["sm_active_percent"] = r.activity.sm;
  j["sm_occupancy_percent"] = r.activity.occupancy;
  j["tensor_active_percent"] = r.activity.tensor;
  j["dram_active_percent"] = r.activity.dram;
  j["memory_used_bytes"] = r.memory_used;
  j["memory_total_bytes"] = r.memory_total;
  j["power_w"] = r.power_w;
  j["power_limit_w"] = r.power_limit_w;
  j["energy_j"] = r.energy_j;
  j["sm_clock_mhz"] = r.sm_mhz;
  j["sm_clock_max_mhz"] = g.info.max_sm_mhz;
  j["memory_clock_mhz"] = r.memory_mhz;
  j["clock_reasons"] = reasons_json(r.clock_reasons);
  j["temperature_c"] = r.temperature_c;
  j["fan_percent"] = r.fan_percent;
  j["pcie_received_bytes_per_s"] = r.pcie_received;
  j["pcie_sent_bytes_per_s"] = r.pcie_sent;
  j["nvlink_received_bytes_per_s"] = r.activity.nvlink_received;
  j["nvlink_sent_bytes_per_s"] = r.activity.nvlink_sent;
  return j;
}

Json process_json(const ProcessView& p) {
  Json j;
  // A pid that means nothing here is only the driver's.
  j["pid"] = p.pid > 0 ? Json(p.pid) : Json(nullptr);
  j["driver_pid"] = p.guessed ? Json(nullptr) : Json(std::abs(p.pid));
  j["seen"] = p.seen;
  j["guessed"] = p.guessed;
  j["worker"] = p.worker;
  j["parent"] = p.seen ? Json(p.parent) : Json(nullptr);
  j["container_pid"] = p.container_pid;
  j["user"] = printable(p.user);
  j["command"] = printable(p.command);
  j["state"] = std::string(1, p.state);
  j["gpus"] = Json::Array{};
  for (const GpuUse& g : p.gpus)
    j["gpus"].push_back(
        {{"gpu", g.gpu}, {"memory_bytes", g.memory}, {"utilisation_percent", g.utilisation}});
  j["cpu_cores"] = p.cpu;
  j["cpu_limit_cores"] = p.cpu_limit;
  j["throttled_share"] = p.throttled;
  j["resident_bytes"] = p.resident;
  j["resident_growth_bytes_per_s"] = p.resident_growth;
  j["voluntary_switches_per_s"] = p.voluntary;
  j["involuntary_switches_per_s"] = p.involuntary;
  j["read_bytes_per_s"] = p.read_rate;
  j["write_bytes_per_s"] = p.write_rate;
  j["threads"] = p.threads;
  if (!p.thread_rates.empty()) {
    const ThreadRates& t = p.thread_rates[0];
    j["busiest_thread"] = {{"id", t.id},
                           {"name", printable(t.name)},
                           {"running_share", t.running},
                           {"ready_share", t.ready},
                           {"waits_in", printable(t.waits_in)}};
  }
  if (p.worker) return j;
  j["workers"] = p.workers;
  j["workers_cpu_cores"] = p.workers_cpu;
  j["verdict"] = p.verdict.word;
  j["evidence"] = printable(p.verdict.evidence);
  return j;
}

}  // namespace

std::string snapshot_json(const Snapshot& s, bool indented) {
  Json j;
  j["schema"] = kTopSchema;
  j["time_unix_s"] = s.unix_s;
  j["interval_s"] = s.interval_s;
  j["driver"] = s.driver;
  j["cuda"] = s.cuda;
  j["no_gpu"] = s.no_gpu.empty() ? Json(nullptr) : Json(printable(s.no_gpu));
  j["host"] = {{"cores", s.cores},
               {"cpu_share", s.host_cpu},
               {"io_wait_share", s.host_io_wait},
               {"memory_total_bytes", s.memory_total},
               {"memory_available_bytes", s.memory_available}};
  j["gpus"] = Json::Array{};
  for (const GpuView& g : s.gpus) j["gpus"].push_back(gpu_json(g));
  j["processes"] = Json::Array{};
  for (const ProcessView& p : s.processes) j["processes"].push_back(process_json(p));
  return j.dump(indented ? 2 : -1) + "\n";
}

}  // namespace saturate::observe
