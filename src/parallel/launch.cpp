// SPDX-License-Identifier: Apache-2.0
#include "parallel/launch.h"

#include <fmt/format.h>
#include <unistd.h>

#include <charconv>
#include <limits>
#include <optional>

#include "base/error.h"

namespace saturate::parallel {
namespace {

[[noreturn]] void refuse(const std::string& what) {
  throw Error(Errc::invalid_argument, "launch", what);
}

class Variables {
 public:
  explicit Variables(const Environment& environment) : environment_(environment) {}

  bool has(const char* name) const { return find(name) != nullptr; }

  // The first of `names` that is set, or "".
  std::string text(std::initializer_list<const char*> names) const {
    for (const char* name : names)
      if (const std::string* value = find(name)) return *value;
    return "";
  }

  std::optional<int> number(const char* name) const {
    const std::string* value = find(name);
    if (!value) return std::nullopt;
    int n = -1;
    const char* end = value->data() + value->size();
    const auto [stop, error] = std::from_chars(value->data(), end, n);
    if (error != std::errc() || stop != end || n < 0)
      refuse(
          fmt::format("{} is '{}': it must be a whole number from 0 to {}. Start through mpirun, "
                      "torchrun or srun, or unset it to run one process",
                      name, *value, std::numeric_limits<int>::max()));
    return n;
  }

  int needed(const char* name, const char* because) const {
    if (const auto n = number(name)) return *n;
    refuse(
        fmt::format("{} is set but {} is not. Start through mpirun, torchrun or srun, or unset "
                    "{} to run one process",
                    because, name, because));
  }

 private:
  const std::string* find(const char* name) const {
    const auto it = environment_.find(name);
    return it == environment_.end() || it->second.empty() ? nullptr : &it->second;
  }
  const Environment& environment_;
};

bool is_loopback(const std::string& host) {
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

// Entry `node` of Slurm's "2(x3),1", which stands for 2,2,2,1.
int slurm_tasks_of_node(const std::string& list, int node) {
  const char* at = list.data();
  const char* const end = at + list.size();
  for (int before = 0;;) {
    int tasks = 0, repeat = 1;
    auto got = std::from_chars(at, end, tasks);
    if (got.ec != std::errc() || tasks < 1) break;
    at = got.ptr;
    if (end - at > 2 && at[0] == '(' && at[1] == 'x') {
      got = std::from_chars(at + 2, end, repeat);
      if (got.ec != std::errc() || repeat < 1 || got.ptr == end || *got.ptr != ')') break;
      at = got.ptr + 1;
    }
    if (node - before < repeat) return tasks;
    before += repeat;
    if (at == end || *at != ',') break;
    ++at;
  }
  refuse(
      fmt::format("SLURM_TASKS_PER_NODE is '{}': a list such as 2(x3),1 that reaches node {} is "
                  "needed. Start through srun",
                  list, node));
}

LaunchInfo from_open_mpi(const Variables& v) {
  constexpr const char* kRank = "OMPI_COMM_WORLD_RANK";
  LaunchInfo info;
  info.source = "mpirun";
  info.rank = v.needed(kRank, "OMPI_COMM_WORLD_SIZE");
  info.size = v.needed("OMPI_COMM_WORLD_SIZE", kRank);
  info.local_rank = v.needed("OMPI_COMM_WORLD_LOCAL_RANK", kRank);
  info.local_size = v.needed("OMPI_COMM_WORLD_LOCAL_SIZE", kRank);
  info.job = v.text({"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"});
  info.mpi_ready = true;
  return info;
}

LaunchInfo from_torchrun(const Variables& v) {
  LaunchInfo info;
  info.source = "torchrun";
  info.rank = v.needed("RANK", "WORLD_SIZE");
  info.size = v.needed("WORLD_SIZE", "RANK");
  if (info.size == 1) return info;
  info.rendezvous_host = v.text({"MASTER_ADDR"});
  if (info.rendezvous_host.empty())
    refuse(
        "RANK and WORLD_SIZE are set but MASTER_ADDR is not: set it to the host of rank 0, "
        "or start through torchrun");
  // torchrun's own store may hold MASTER_PORT itself.
  info.rendezvous_port = v.needed("MASTER_PORT", "RANK") + 1;
  info.local_rank = v.needed("LOCAL_RANK", "RANK");
  info.local_size = v.has("LOCAL_WORLD_SIZE") || !is_loopback(info.rendezvous_host)
                        ? v.needed("LOCAL_WORLD_SIZE", "RANK")
                        : info.size;
  info.job = v.text({"TORCHELASTIC_RUN_ID"});
  return info;
}

LaunchInfo from_slurm(const Variables& v) {
  LaunchInfo info;
  info.source = "slurm";
  info.rank = v.needed("SLURM_PROCID", "SLURM_NTASKS");
  info.size = v.has("SLURM_STEP_NUM_TASKS") ? v.needed("SLURM_STEP_NUM_TASKS", "SLURM_PROCID")
                                            : v.needed("SLURM_NTASKS", "SLURM_PROCID");
  info.mpi_ready = v.has("PMIX_RANK") || v.has("PMI_RANK");
  if (info.size == 1) return info;
  info.local_rank = v.needed("SLURM_LOCALID", "SLURM_PROCID");
  // The launch node may be a login node, so the list of the step's own nodes comes first.
  info.rendezvous_host = v.text({"MASTER_ADDR"});
  if (info.rendezvous_host.empty())
    info.rendezvous_host = first_slurm_host(v.text({"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"}));
  if (info.rendezvous_host.empty()) info.rendezvous_host = v.text({"SLURM_LAUNCH_NODE_IPADDR"});
  if (info.rendezvous_host.empty())
    refuse(
        "SLURM_PROCID is set but neither SLURM_JOB_NODELIST nor SLURM_LAUNCH_NODE_IPADDR is: "
        "start through srun, or set MASTER_ADDR to the host of rank 0");
  const std::string tasks = v.text({"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"});
  if (!tasks.empty())
    info.local_size = slurm_tasks_of_node(tasks, v.number("SLURM_NODEID").value_or(0));
  else if (is_loopback(info.rendezvous_host))
    info.local_size = info.size;
  else
    refuse("SLURM_PROCID is set but SLURM_TASKS_PER_NODE is not: start through srun");
  info.job = fmt::format("{}.{}", v.text({"SLURM_JOB_ID"}), v.text({"SLURM_STEP_ID"}));
  // Steps of all jobs that meet on one host should get different ports; the job name settles the
  // rest.
  const int64_t job = v.number("SLURM_JOB_ID").value_or(0),
                step = v.number("SLURM_STEP_ID").value_or(0);
  info.rendezvous_port =
      v.number("MASTER_PORT").value_or(static_cast<int>(20000 + (job * 16 + step * 8) % 10000));
  return info;
}

LaunchInfo from_pmi(const Variables& v) {
  LaunchInfo info;
  info.source = "mpirun";
  info.rank = v.needed("PMI_RANK", "PMI_SIZE");
  info.size = v.needed("PMI_SIZE", "PMI_RANK");
  if (info.size == 1) return info;
  info.local_rank = v.needed("MPI_LOCALRANKID", "PMI_RANK");
  info.local_size = v.needed("MPI_LOCALNRANKS", "PMI_RANK");
  info.mpi_ready = true;
  return info;
}

bool is_slurm_step(const Variables& v) {
  if (!v.has("SLURM_PROCID")) return false;
  return v.has("SLURM_STEP_ID") || v.has("SLURM_STEP_NUM_TASKS") || !v.has("SLURM_JOB_ID");
}

void check(const LaunchInfo& info) {
  if (info.size < 1 || info.rank >= info.size)
    refuse(fmt::format("{} gives rank {} of {}: ranks go from 0 to size - 1", info.source,
                       info.rank, info.size));
  if (info.local_size < 1 || info.local_size > info.size || info.local_rank >= info.local_size)
    refuse(fmt::format(
        "{} gives local rank {} of {} on this host, {} ranks in all: these contradict each other",
        info.source, info.local_rank, info.local_size, info.size));
  if (info.rendezvous_port > 65500)
    refuse(
        fmt::format("MASTER_PORT is {}: ports up to 65499 can be used", info.rendezvous_port - 1));
}

}  // namespace

std::string first_slurm_host(const std::string& list) {
  std::string host;
  for (size_t i = 0; i < list.size() && list[i] != ','; ++i) {
    if (list[i] != '[') {
      host += list[i];
      continue;
    }
    const size_t stop = list.find_first_of("-,]", i);
    const size_t close = list.find(']', i);
    if (close == std::string::npos)
      refuse(fmt::format("the Slurm node list '{}' lacks a ']'", list));
    host += list.substr(i + 1, stop - i - 1);
    i = close;
  }
  return host;
}

LaunchInfo launch_from(const Environment& environment) {
  const Variables v(environment);
  const bool mpi = v.has("OMPI_COMM_WORLD_RANK") || v.has("OMPI_COMM_WORLD_SIZE");
  const bool torch = v.has("RANK") || v.has("WORLD_SIZE");
  LaunchInfo info;
  if (mpi) {
    info = from_open_mpi(v);
    const int rank = v.number("RANK").value_or(info.rank),
              size = v.number("WORLD_SIZE").value_or(info.size);
    if (rank != info.rank || size != info.size)
      refuse(fmt::format(
          "mpirun says rank {} of {}, RANK and WORLD_SIZE say rank {} of {}: unset the latter "
          "or start without mpirun",
          info.rank, info.size, rank, size));
  } else if (torch) {
    info = from_torchrun(v);
  } else if (is_slurm_step(v)) {
    info = from_slurm(v);
  } else if (v.has("PMI_RANK") || v.has("PMI_SIZE")) {
    info = from_pmi(v);
  }
  check(info);
  return info;
}

LaunchInfo restartable(LaunchInfo info) {
  info.mpi_ready = false;
  if (info.size == 1 || !info.rendezvous_host.empty()) return info;
  if (!info.one_host() || info.job.empty())
    throw Error(
        Errc::unsupported, "restart",
        fmt::format("{} started {} ranks that find each other through MPI only, which cannot "
                    "start again in their place: start them with torchrun or srun, or leave "
                    "train.restart out",
                    info.source, info.size));
  info.rendezvous_host = "127.0.0.1";
  // Jobs of one host get different ports; the job's name settles the rest.
  uint32_t h = 2166136261u;  // FNV-1a
  for (const char c : info.job) h = (h ^ static_cast<unsigned char>(c)) * 16777619u;
  info.rendezvous_port = 20000 + static_cast<int>(h % 1250) * 8;
  return info;
}

LaunchInfo current_launch() {
  Environment environment;
  for (char** entry = environ; entry && *entry; ++entry) {
    const std::string text = *entry;
    const size_t equals = text.find('=');
    if (equals != std::string::npos)
      environment.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return launch_from(environment);
}

}  // namespace saturate::parallel
