// SPDX-License-Identifier: Apache-2.0
#include "observe/check/check.h"

#include <fmt/format.h>

#include "base/json.h"
#include "base/printable.h"
#include "base/text.h"

namespace saturate::observe {
namespace {

// PyTorch loaders pass batches through /dev/shm; Docker gives 64 MiB by default, and a
// loader that fills it dies with a bus error.
constexpr long long kLittleSharedMemory = 1ll << 30;

std::string cuda_name(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

void check_driver(const CheckInput& in, std::vector<Finding>& out) {
  if (!in.monitor) {
    out.push_back({"driver", Grade::fail, "no GPU can be asked", in.no_gpu});
    return;
  }
  const std::optional<int> cuda = in.monitor->cuda_version();
  out.push_back({"driver", Grade::ok,
                 in.monitor->driver_version() +
                     (cuda ? fmt::format(", runs CUDA up to {}", cuda_name(*cuda)) : ""),
                 ""});
  if (in.cuda_runtime == 0) {
    out.push_back({"CUDA runtime", Grade::skip,
                   "no libcudart on the search path of the loader; programs may bring their own",
                   ""});
  } else if (cuda && *cuda / 1000 < in.cuda_runtime / 1000) {
    out.push_back({"CUDA runtime", Grade::fail,
                   fmt::format("is of CUDA {}, the driver runs {}", cuda_name(in.cuda_runtime),
                               cuda_name(*cuda)),
                   "install a newer driver, or use an older toolkit"});
  } else {
    out.push_back({"CUDA runtime", Grade::ok, cuda_name(in.cuda_runtime), ""});
  }
}

void check_cupti(const CheckInput& in, std::vector<Finding>& out) {
  if (in.cupti.empty()) {
    out.push_back(
        {"CUPTI", Grade::warn, "not found on the search path of the loader",
         "traces need it: install the CUDA toolkit, or put the folder of libcupti.so into "
         "LD_LIBRARY_PATH (PyTorch brings its own and finds it itself)"});
  } else {
    out.push_back({"CUPTI", Grade::ok, in.cupti, ""});
  }
  if (in.injection.empty()) {
    out.push_back({"CUPTI owner", Grade::ok, "CUDA_INJECTION64_PATH is not set", ""});
  } else if (in.injection == "none") {
    out.push_back({"CUPTI owner", Grade::warn,
                   "CUDA_INJECTION64_PATH=none: nothing can be injected",
                   "unset CUDA_INJECTION64_PATH"});
  } else {
    out.push_back({"CUPTI owner", Grade::warn,
                   "programs started here load " + printable(in.injection),
                   "one tool can hold CUPTI; unset CUDA_INJECTION64_PATH to use another"});
  }
}

// Programs that run already may have been started under a tool.
void check_owners(const CheckInput& in, std::vector<Finding>& out) {
  if (!in.monitor) return;
  for (const GpuInfo& g : in.monitor->gpus()) {
    for (const GpuProcess& p : in.monitor->processes(g.index)) {
      const auto path = in.reader.environment(p.pid, "CUDA_INJECTION64_PATH");
      if (path && *path != "none" && !path->empty())
        out.push_back({"CUPTI owner", Grade::warn,
                       fmt::format("process {} on GPU {} was started with {}", p.pid, g.index,
                                   printable(*path)),
                       "its traces belong to that tool; start it without to use another"});
    }
  }
}

void check_permissions(const CheckInput& in, std::vector<Finding>& out) {
  const auto params = in.reader.file("driver/nvidia/params");
  if (!params) {
    out.push_back({"counters", Grade::skip, "the driver's settings are not readable here", ""});
  } else if (params->find("RmProfilingAdminOnly: 1") == std::string::npos) {
    out.push_back({"counters", Grade::ok, "open to every user (RmProfilingAdminOnly 0)", ""});
  } else if (in.user == 0) {
    out.push_back({"counters", Grade::ok, "for administrators only, which you are", ""});
  } else {
    out.push_back({"counters", Grade::warn,
                   "kernel counters are for administrators only; traces work all the same",
                   "options nvidia NVreg_RestrictProfilingToAdminUsers=0 in /etc/modprobe.d, then "
                   "load the driver again"});
  }
  const auto scope = in.reader.file("sys/kernel/yama/ptrace_scope");
  const std::string value(scope ? trim(*scope) : std::string_view());
  if (!scope) {
    out.push_back({"ptrace scope", Grade::ok, "no yama: own processes can be inspected", ""});
  } else if (value == "0" || in.user == 0) {
    out.push_back(
        {"ptrace scope", value == "3" ? Grade::warn : Grade::ok,
         value == "3" ? "3: nobody may attach" : value + ": own processes can be inspected",
         value == "3" ? "only a restart changes it" : ""});
  } else {
    out.push_back({"ptrace scope", Grade::warn,
                   value + ": --pid sees no system calls of processes it did not start",
                   "sysctl kernel.yama.ptrace_scope=0, or start the program under the tool"});
  }
}

void check_gpus(const CheckInput& in, std::vector<Finding>& out) {
  if (!in.monitor) return;
  if (in.monitor->gpus().empty())
    out.push_back({"GPUs", Grade::fail, "the driver shows none",
                   "give the container its GPUs (--gpus all) or check CUDA_VISIBLE_DEVICES"});
  for (const GpuInfo& g : in.monitor->gpus()) {
    const GpuReading r = in.monitor->read(g.index, false);
    const std::string gpu = fmt::format("GPU {}", g.index);
    if (!r.lost.empty()) {
      out.push_back({gpu, Grade::fail, r.lost, "dmesg | grep Xid; restart the machine"});
      continue;
    }
    const std::string chip =
        g.compute_major ? fmt::format(", sm_{}{}", *g.compute_major, g.compute_minor.value_or(0))
                        : "";
    out.push_back({gpu, Grade::ok, printable(g.name) + chip, ""});
    if (g.mig.value_or(false)) {
      out.push_back({gpu + " MIG", Grade::warn,
                     "MIG is on: utilisation and GPM of the whole GPU do not exist",
                     "nothing, if the partition is wanted"});
    } else if (g.gpm) {
      out.push_back({gpu + " GPM", Grade::ok, "SM, tensor and DRAM activity are counted", ""});
    } else {
      out.push_back({gpu + " GPM", Grade::skip,
                     "no counters of SM activity: they need Hopper or later and driver 520", ""});
    }
    if (!r.clock_reasons) {
      out.push_back({gpu + " clocks", Grade::skip, "the driver does not say what holds them", ""});
    } else if (*r.clock_reasons & kReasonsHarmful) {
      out.push_back({gpu + " clocks", Grade::warn,
                     "held down: " + clock_reason_names(*r.clock_reasons),
                     "cooling and power supply: nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER"});
    } else if (*r.clock_reasons & kReasonApplicationClocks) {
      out.push_back({gpu + " clocks", Grade::warn,
                     fmt::format("set by hand, at most {} MHz", g.max_sm_mhz.value_or(0)),
                     "nvidia-smi -rac, if that is not wanted"});
    } else {
      out.push_back({gpu + " clocks", Grade::ok,
                     (r.sm_mhz ? fmt::format("{} MHz", *r.sm_mhz) : "not known") +
                         (g.max_sm_mhz ? fmt::format(" of {}", *g.max_sm_mhz) : "") +
                         ", held by: " + clock_reason_names(*r.clock_reasons),
                     ""});
    }
    if (g.persistence)
      out.push_back({gpu + " persistence", *g.persistence ? Grade::ok : Grade::warn,
                     *g.persistence ? "on" : "off: the first CUDA call of a program waits seconds",
                     *g.persistence ? "" : "nvidia-smi -pm 1, or run nvidia-persistenced"});
  }
}

void check_host(const CheckInput& in, std::vector<Finding>& out) {
  const auto inner = in.reader.inner_namespace();
  if (!inner) {
    out.push_back({"pid namespace", Grade::skip, "not known", ""});
  } else if (*inner) {
    out.push_back({"pid namespace", Grade::warn,
                   "a container's own: processes of others on the GPU have no name here",
                   "start the container with --pid=host to see them"});
  } else {
    out.push_back({"pid namespace", Grade::ok, "the machine's own", ""});
  }
  const auto self = in.reader.file("self/stat");
  const int64_t pid = self ? std::strtoll(self->c_str(), nullptr, 10) : 0;
  const auto cgroup = in.reader.cgroup_cpu(pid);
  const int cores = in.reader.host().cores;
  if (!cgroup) {
    out.push_back({"CPU limit", Grade::skip, "no cgroup of this process can be read", ""});
  } else if (!cgroup->cores) {
    out.push_back({"CPU limit", Grade::ok, fmt::format("none; {} cores", cores), ""});
  } else {
    const double share = cgroup->periods.value_or(0) > 0
                             ? static_cast<double>(cgroup->throttled_periods.value_or(0)) /
                                   static_cast<double>(*cgroup->periods)
                             : 0;
    const bool bad = share > 0.05 || *cgroup->cores < 2;
    out.push_back(
        {"CPU limit", bad ? Grade::warn : Grade::ok,
         fmt::format("{:.2f} of {} cores; {:.1f}% of the periods so far hit it", *cgroup->cores,
                     cores, 100 * share),
         bad ? "a higher limit (docker --cpus, Kubernetes limits.cpu), or fewer threads and "
               "loader workers"
             : ""});
  }
  if (in.shared_memory_bytes < 0) {
    out.push_back(
        {"/dev/shm", Grade::warn, "not there", "mount a tmpfs: loader workers pass data in it"});
  } else {
    const bool little = in.shared_memory_bytes < kLittleSharedMemory;
    out.push_back(
        {"/dev/shm", little ? Grade::warn : Grade::ok,
         format_bytes(static_cast<double>(in.shared_memory_bytes)),
         little ? "docker run --shm-size=8g or --ipc=host, or loader workers may die of it" : ""});
  }
}

}  // namespace

const char* grade_name(Grade grade) {
  constexpr const char* kNames[] = {"OK", "WARN", "FAIL", "SKIP"};
  return kNames[static_cast<size_t>(grade)];
}

std::vector<Finding> check_machine(const CheckInput& in) {
  std::vector<Finding> out;
  check_driver(in, out);
  check_gpus(in, out);
  check_cupti(in, out);
  check_owners(in, out);
  check_permissions(in, out);
  check_host(in, out);
  return out;
}

std::string findings_text(const std::vector<Finding>& findings) {
  std::string out;
  int counts[4] = {};
  for (const Finding& f : findings) {
    ++counts[static_cast<size_t>(f.grade)];
    out += fmt::format("{:<4}  {:<18} {}\n", grade_name(f.grade), f.name, f.found);
    if (!f.remedy.empty()) out += fmt::format("      {:<18} -> {}\n", "", f.remedy);
  }
  return out + fmt::format("{} OK, {} WARN, {} FAIL, {} SKIP\n", counts[0], counts[1], counts[2],
                           counts[3]);
}

std::string findings_json(const std::vector<Finding>& findings) {
  Json j;
  j["schema"] = kCheckSchema;
  j["ready"] = !any_failed(findings);
  j["findings"] = Json::Array{};
  for (const Finding& f : findings)
    j["findings"].push_back({{"name", f.name},
                             {"grade", grade_name(f.grade)},
                             {"found", printable(f.found)},
                             {"remedy", f.remedy.empty() ? Json() : Json(f.remedy)}});
  return j.dump(2) + "\n";
}

bool any_failed(const std::vector<Finding>& findings) {
  for (const Finding& f : findings) {
    if (f.grade == Grade::fail) return true;
  }
  return false;
}

}  // namespace saturate::observe
