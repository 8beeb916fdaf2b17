// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <map>
#include <string>
#include <vector>

namespace saturate::observe {

// What says that a command would run on several machines, or is one rank of a program that another
// process starts: "torchrun --nnodes 2", "SLURM_STEP_NUM_NODES=2". Empty when nothing does. Knows the
// launchers of PyTorch, Accelerate, DeepSpeed, MPI and Slurm.
std::string several_nodes(const std::vector<std::string>& command,
                          const std::map<std::string, std::string>& environment);

}  // namespace saturate::observe
