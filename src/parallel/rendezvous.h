// SPDX-License-Identifier: Apache-2.0
// How the ranks find each other: rank 0 listens, the others connect and say who they are.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "parallel/launch.h"
#include "parallel/sockets.h"
#include "runtime/device.h"

namespace saturate::parallel {

// Copies `bytes` at `data` from rank 0 to all ranks by means that exist before the connections do
// (MPI).
using Exchange = std::function<void(void* data, int64_t bytes)>;

// Rank 0 gets one connection for each other rank, at index rank; the others get theirs to rank 0 at
// [0]. Rank 0 takes the first free of 8 ports from launch.rendezvous_port and the others try these
// in turn, or, with `exchange`, any free port. One host: loopback only. Collective; launch.size is
// at least 2. Errors: io (nobody there within `timeout_s`; names the missing ranks),
// invalid_argument (ranks disagree on their number or on the kind of `device` that they train on,
// two claim one rank, or neither address nor exchange given).
std::vector<Descriptor> meet(const LaunchInfo& launch, DeviceKind device, double timeout_s,
                             const Exchange& exchange);

}  // namespace saturate::parallel
