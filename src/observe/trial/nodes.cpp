// SPDX-License-Identifier: Apache-2.0
#include "observe/trial/nodes.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string_view>

namespace saturate::observe {
namespace {

struct Sign {
  const char *launcher, *option;
  bool count;  // several only when its number is above 1; "1:4" is a range
};
constexpr Sign kSigns[] = {{"torchrun", "--nnodes", true},
                           {"torch.distributed.run", "--nnodes", true},
                           {"torch.distributed.launch", "--nnodes", true},
                           {"accelerate", "--num_machines", true},
                           {"deepspeed", "--num_nodes", true},
                           {"deepspeed", "--hostfile", false},
                           {"srun", "--nodes", true},
                           {"srun", "-N", true},
                           {"mpirun", "--host", false},
                           {"mpirun", "-host", false},
                           {"mpirun", "-H", false},
                           {"mpirun", "--hostfile", false},
                           {"mpirun", "-hostfile", false},
                           {"mpirun", "--machinefile", false},
                           {"mpirun", "-machinefile", false},
                           {"mpirun", "-f", false}};

int most_of(const std::string& number) {
  const size_t range = number.find_first_of(":-");
  return std::max(std::atoi(number.c_str()),
                  range == number.npos ? 0 : std::atoi(number.c_str() + range + 1));
}

}  // namespace

std::string several_nodes(const std::vector<std::string>& command,
                          const std::map<std::string, std::string>& environment) {
  const auto number = [&](const char* variable) {
    const auto at = environment.find(variable);
    return at == environment.end() ? 0 : std::atoi(at->second.c_str());
  };
  for (const char* variable : {"WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "GROUP_WORLD_SIZE",
                               "NNODES", "SLURM_STEP_NUM_NODES"})
    if (number(variable) > 1) return std::string(variable) + "=" + environment.at(variable);
  for (size_t w = 0; w < command.size(); ++w) {
    std::string launcher = std::filesystem::path(command[w]).filename().string();
    if (launcher == "mpiexec") launcher = "mpirun";
    if (launcher == "srun" && number("SLURM_NNODES") > 1)
      return "srun with SLURM_NNODES=" + environment.at("SLURM_NNODES");
    for (const Sign& sign : kSigns) {
      if (launcher != sign.launcher) continue;
      for (size_t i = w + 1; i < command.size(); ++i) {
        const std::string_view option = sign.option;
        std::string value;
        if (command[i] == option && i + 1 < command.size())
          value = command[i + 1];
        else if (command[i].starts_with(std::string(option) + "="))
          value = command[i].substr(option.size() + 1);
        if (!value.empty() && (!sign.count || most_of(value) > 1))
          return launcher + " " + sign.option + " " + value;
      }
    }
  }
  return "";
}

}  // namespace saturate::observe
