// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "parallel/communicator.h"

namespace saturate::parallel {

// Collective over the ranks of `channel`. `device` is this rank's GPU. Built with NCCL only.
// Errors: collective (NCCL call failed), device.
std::unique_ptr<Communicator> make_nccl_communicator(Device device,
                                                     std::unique_ptr<ControlChannel> channel);

}  // namespace saturate::parallel
