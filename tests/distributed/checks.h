// SPDX-License-Identifier: Apache-2.0
// What every communicator must do, checked through its interface on CPU or GPU memory.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "parallel/communicator.h"
#include "parallel/mesh.h"

namespace saturate::distributed {

// Throws std::runtime_error with the text unless `holds`.
void require(bool holds, const std::string& text);

// Collective. Every kind, type and several sizes over all ranks and over groups of them, all in
// flight at once with guards around them; order against other work; bitwise repeatability and
// equality over ranks; refusals; the host-side collectives.
void check_collectives(parallel::Communicator& communicator, Device device);

// Collective, CUDA. All of these kinds captured in one graph and replayed on changing data.
void check_captured(parallel::Communicator& communicator, Device device);

// Steps of one all-reduce each, without end; at step 5 `at_step_5` runs on rank `victim`.
void step_until_failure(parallel::Communicator& communicator, Device device, int victim,
                        const std::function<void()>& at_step_5);

// Seconds on a clock that all processes of this host share.
double now_s();

struct Rank {
  int exit_code = -1;  // -N: ended by signal N; the time limit ends by SIGKILL
  double seconds = 0;
  double ended_at = 0;  // on the clock of now_s()
  std::string errors;   // its standard error
};

// Steps of one collective of `axis`, on four ranks in pairs, until `what` ("throw", "kill" or "stop")
// happens to `victim`, which says when on its standard error ("event SECONDS").
void step_along_axis(parallel::Communicator& communicator, parallel::MeshAxis axis, int victim,
                     const std::string& what);

// Forks `size` processes with the variables of torchrun and runs `body` in each. Kills what is left
// after `limit_s`. Call before this process has threads or has touched a GPU.
std::vector<Rank> spawn_ranks(int size, double limit_s, const std::function<int()>& body);

// GPUs, asked in a child so that this process can still fork.
int count_gpus();

}  // namespace saturate::distributed
