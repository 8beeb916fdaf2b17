// SPDX-License-Identifier: Apache-2.0
#include "observe/top/json.h"

#include <nlohmann/json.hpp>

#include "base/printable.h"

namespace saturate::observe {
namespace {

using Json = nlohmann::ordered_json;

template <class T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

Json reasons_json(const std::optional<uint64_t>& reasons) {
  if (!reasons) return nullptr;
  Json list = Json::array();
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
  j["mig"] = or_null(g.info.mig);
  j["lost"] = r.lost.empty() ? Json(nullptr) : Json(r.lost);
  j["utilisation_percent"] = or_null(r.utilisation);
  j["memory_utilisation_percent"] = or_null(r.memory_utilisation);
  j["sm_active_percent"] = or_null(r.activity.sm);
  j["sm_occupancy_percent"] = or_null(r.activity.occupancy);
  j["tensor_active_percent"] = or_null(r.activity.tensor);
  j["dram_active_percent"] = or_null(r.activity.dram);
  j["memory_used_bytes"] = or_null(r.memory_used);
  j["memory_total_bytes"] = or_null(r.memory_total);
  j["power_w"] = or_null(r.power_w);
  j["power_limit_w"] = or_null(r.power_limit_w);
  j["energy_j"] = or_null(r.energy_j);
  j["sm_clock_mhz"] = or_null(r.sm_mhz);
  j["sm_clock_max_mhz"] = or_null(g.info.max_sm_mhz);
  j["memory_clock_mhz"] = or_null(r.memory_mhz);
  j["clock_reasons"] = reasons_json(r.clock_reasons);
  j["temperature_c"] = or_null(r.temperature_c);
  j["fan_percent"] = or_null(r.fan_percent);
  j["pcie_received_bytes_per_s"] = or_null(r.pcie_received);
  j["pcie_sent_bytes_per_s"] = or_null(r.pcie_sent);
  j["nvlink_received_bytes_per_s"] = or_null(r.activity.nvlink_received);
  j["nvlink_sent_bytes_per_s"] = or_null(r.activity.nvlink_sent);
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
  j["container_pid"] = or_null(p.container_pid);
  j["user"] = printable(p.user);
  j["command"] = printable(p.command);
  j["state"] = std::string(1, p.state);
  j["gpus"] = Json::array();
  for (const GpuUse& g : p.gpus)
    j["gpus"].push_back({{"gpu", g.gpu},
                         {"memory_bytes", or_null(g.memory)},
                         {"utilisation_percent", or_null(g.utilisation)}});
  j["cpu_cores"] = or_null(p.cpu);
  j["cpu_limit_cores"] = or_null(p.cpu_limit);
  j["throttled_share"] = or_null(p.throttled);
  j["resident_bytes"] = or_null(p.resident);
  j["resident_growth_bytes_per_s"] = or_null(p.resident_growth);
  j["voluntary_switches_per_s"] = or_null(p.voluntary);
  j["involuntary_switches_per_s"] = or_null(p.involuntary);
  j["read_bytes_per_s"] = or_null(p.read_rate);
  j["write_bytes_per_s"] = or_null(p.write_rate);
  j["threads"] = p.threads;
  if (!p.thread_rates.empty()) {
    const ThreadRates& t = p.thread_rates[0];
    j["busiest_thread"] = {{"id", t.id},
                           {"name", printable(t.name)},
                           {"running_share", or_null(t.running)},
                           {"ready_share", or_null(t.ready)},
                           {"waits_in", printable(t.waits_in)}};
  }
  if (p.worker) return j;
  j["workers"] = p.workers;
  j["workers_cpu_cores"] = or_null(p.workers_cpu);
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
  j["cuda"] = or_null(s.cuda);
  j["no_gpu"] = s.no_gpu.empty() ? Json(nullptr) : Json(printable(s.no_gpu));
  j["host"] = {{"cores", s.cores},
               {"cpu_share", or_null(s.host_cpu)},
               {"io_wait_share", or_null(s.host_io_wait)},
               {"memory_total_bytes", or_null(s.memory_total)},
               {"memory_available_bytes", or_null(s.memory_available)}};
  j["gpus"] = Json::array();
  for (const GpuView& g : s.gpus) j["gpus"].push_back(gpu_json(g));
  j["processes"] = Json::array();
  for (const ProcessView& p : s.processes) j["processes"].push_back(process_json(p));
  // A name may hold what is almost UTF-8.
  return j.dump(indented ? 2 : -1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace saturate::observe
