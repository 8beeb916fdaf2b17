// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cmath>
#include <functional>

#include "base/json.h"
#include "base/printable.h"
#include "base/text.h"
#include "observe/system/sample_process.h"

namespace saturate::observe {
namespace {

std::string span(const Range& r, const std::function<std::string(double)>& show) {
  return fmt::format("{} ({} to {})", show(r.mean), show(r.least), show(r.most));
}

void line(std::string& out, const char* name, const std::optional<Range>& r,
          const std::function<std::string(double)>& show, const char* meaning) {
  out += fmt::format("  {:<22} {:<34} {}\n", name, r ? span(*r, show) : "N/A", meaning);
}

std::string percent(double v) { return fmt::format("{:.0f}%", v); }
std::string rate(double v) { return format_bytes(v) + "/s"; }
std::string count(double v) { return format_count(v) + "/s"; }
std::string cores(double v) { return fmt::format("{:.2f}", v); }

std::string growth(const std::optional<double>& first, const std::optional<double>& last,
                   double seconds) {
  if (!first || !last) return "N/A";
  const double by = *last - *first;
  return fmt::format("{}, {}{} in {:.1f} s", format_bytes(*last), by < 0 ? "-" : "+",
                     format_bytes(std::abs(by)), seconds);
}

Json range_json(const std::optional<Range>& r) {
  if (!r) return nullptr;
  return {{"mean", r->mean}, {"least", r->least}, {"most", r->most}, {"samples", r->samples}};
}

const char* next_step(std::string_view word) {
  if (word == "busy")
    return "the GPU is the limit: faster kernels, lower precision or a larger GPU";
  if (word == "narrow?") return "a larger batch or fused kernels; a trace names the small grids";
  if (word == "launch-bound?")
    return "a trace separates launches from host code: torch.profiler, then saturate doctor TRACE";
  if (word == "starved?")
    return "more loader workers while cores are free; a trace confirms the wait";
  if (word == "waiting") return "a trace names what it waits for";
  if (word == "cpu-starved") return "more cores, a higher CPU limit, or fewer threads and workers";
  if (word == "throttled")
    return "cooling or power supply of the GPU: nvidia-smi -q -d PERFORMANCE";
  if (word == "lost") return "dmesg for Xid messages; restart the machine";
  return "";
}

}  // namespace

std::string process_text(const ProcessReport& r) {
  std::string out =
      fmt::format("VERDICT  {}{}\n", r.verdict.word,
                  r.samples > 0 ? fmt::format("   ({:.0f}% of {} samples over {:.1f} s "
                                              "say so one by one)",
                                              100 * r.agreement, r.samples, r.seconds)
                                : "");
  out += fmt::format("why      {}\n", printable(r.verdict.evidence));
  if (*next_step(r.verdict.word)) out += fmt::format("next     {}\n", next_step(r.verdict.word));
  out += fmt::format("process  {} {} {}{}\n", r.pid, printable(r.user),
                     printable(r.command).substr(0, 200), r.ended ? "  (ended meanwhile)" : "");
  out += fmt::format("\nGPU{}: mean (least to most)\n",
                     r.gpus > 1 ? fmt::format(", the busiest of {}", r.gpus) : "");
  line(out, "utilisation", r.utilisation, percent, "time with at least one kernel, of any process");
  line(out, "  of this process", r.process_utilisation, percent, "the same, its own kernels");
  line(out, "SM active", r.sm, percent, "SMs with work; the better measure of a full GPU");
  line(out, "tensor active", r.tensor, percent, "tensor cores; about 93% is the practical top");
  line(out, "DRAM active", r.dram, percent, "memory traffic; about 80% is the practical top");
  line(
      out, "power", r.power_w, [](double v) { return fmt::format("{:.0f} W", v); }, "");
  line(
      out, "SM clock", r.sm_mhz, [](double v) { return fmt::format("{:.0f} MHz", v); },
      r.clock_reasons ? ("held by: " + clock_reason_names(r.clock_reasons)).c_str() : "");
  line(out, "PCIe in", r.pcie_received, rate, "to the GPU");
  line(out, "PCIe out", r.pcie_sent, rate, "from the GPU");
  out += fmt::format("  {:<22} {}\n", "GPU memory",
                     growth(r.gpu_memory_first, r.gpu_memory_last, r.seconds));
  out += "\nCPU\n";
  line(out, "cores used", r.cpu, cores, "by its own threads");
  out += fmt::format("  {:<22} {}\n", "CPU limit (cgroup)",
                     r.cpu_limit ? fmt::format("{:.2f} cores", *r.cpu_limit) : "none seen");
  line(
      out, "periods at the limit", r.throttled,
      [](double v) { return fmt::format("{:.0f}%", 100 * v); }, "it was stopped in these");
  out += fmt::format("  {:<22} {}\n", "descendants", r.workers);
  if (r.workers > 0) line(out, "  their cores", r.workers_cpu, cores, "loader workers, mostly");
  line(out, "voluntary switches", r.voluntary, count, "it waited for something");
  line(out, "involuntary switches", r.involuntary, count, "another thread took its core");
  line(out, "read from storage", r.read_rate, rate, "page cache not counted");
  line(out, "written to storage", r.write_rate, rate, "");
  out += fmt::format("  {:<22} {}\n", "host memory",
                     growth(r.resident_first, r.resident_last, r.seconds));
  if (!r.busiest.empty()) {
    out += fmt::format("\nBusiest of {} threads   on a core   ready, no core   asleep  mostly in\n",
                       r.threads);
    for (const ProcessReport::Thread& t : r.busiest)
      out += fmt::format("  {:<9} {:<15} {:>6.1f}% {:>14.1f}% {:>10.1f}%  {}\n", t.id,
                         printable(t.name), 100 * t.running, 100 * t.ready, 100 * t.asleep,
                         printable(t.waits_in));
  }
  out += "\nNot known from outside\n";
  for (const std::string& u : r.unknown) out += "  - " + printable(u) + "\n";
  return out;
}

std::string process_json(const ProcessReport& r) {
  Json j;
  j["schema"] = kProcessSchema;
  j["pid"] = r.pid;
  j["user"] = printable(r.user);
  j["command"] = printable(r.command);
  j["seconds"] = r.seconds;
  j["samples"] = r.samples;
  j["ended"] = r.ended;
  j["verdict"] = r.verdict.word;
  j["evidence"] = printable(r.verdict.evidence);
  j["agreement_share"] = r.agreement;
  j["next"] = next_step(r.verdict.word);
  j["gpus"] = r.gpus;
  j["gpu_shared"] = r.shared;
  j["pid_guessed"] = r.guessed;
  j["utilisation_percent"] = range_json(r.utilisation);
  j["process_utilisation_percent"] = range_json(r.process_utilisation);
  j["sm_active_percent"] = range_json(r.sm);
  j["tensor_active_percent"] = range_json(r.tensor);
  j["dram_active_percent"] = range_json(r.dram);
  j["power_w"] = range_json(r.power_w);
  j["sm_clock_mhz"] = range_json(r.sm_mhz);
  j["clock_reasons"] = clock_reason_names(r.clock_reasons);
  j["pcie_received_bytes_per_s"] = range_json(r.pcie_received);
  j["pcie_sent_bytes_per_s"] = range_json(r.pcie_sent);
  j["gpu_memory_first_bytes"] = r.gpu_memory_first;
  j["gpu_memory_last_bytes"] = r.gpu_memory_last;
  j["cpu_cores"] = range_json(r.cpu);
  j["cpu_limit_cores"] = r.cpu_limit;
  j["throttled_share"] = range_json(r.throttled);
  j["workers"] = r.workers;
  j["workers_cpu_cores"] = range_json(r.workers_cpu);
  j["voluntary_switches_per_s"] = range_json(r.voluntary);
  j["involuntary_switches_per_s"] = range_json(r.involuntary);
  j["read_bytes_per_s"] = range_json(r.read_rate);
  j["write_bytes_per_s"] = range_json(r.write_rate);
  j["resident_first_bytes"] = r.resident_first;
  j["resident_last_bytes"] = r.resident_last;
  j["threads"] = r.threads;
  j["busiest_threads"] = Json::Array{};
  for (const ProcessReport::Thread& t : r.busiest)
    j["busiest_threads"].push_back({{"id", t.id},
                                    {"name", printable(t.name)},
                                    {"running_share", t.running},
                                    {"ready_share", t.ready},
                                    {"asleep_share", t.asleep},
                                    {"waits_in", printable(t.waits_in)}});
  j["unknown"] = Json::Array(r.unknown.begin(), r.unknown.end());
  return j.dump(2) + "\n";
}

}  // namespace saturate::observe
