// SPDX-License-Identifier: Apache-2.0
// What `parallel = auto` stands for.
#pragma once
#include "base/config.h"
#include "parallel/communicator.h"

namespace saturate::plan {

// With parallel = auto: puts the fastest layout of make_plan() for these ranks and this machine into
// config.parallel and config.batch, and tells why it is that one. The machine is the one that comes
// with the program for this device, else the device is measured (a second); links are measured by all ranks
// (seconds). The first rank plans, all take its choice. Else does nothing. `length`: tokens of a
// sentence, of which as many as divide the batch are planned for. `local_ranks`: of each host. Collective.
// Errors: invalid_argument where no layout fits, with the reasons; where batch.target_tokens is
// missing.
void take_best_layout(RunConfig& config, int64_t length, parallel::Communicator& ranks,
                      int local_ranks, Device device);

}  // namespace saturate::plan
