// SPDX-License-Identifier: Apache-2.0
// Which tuned tables (matrix products, attention) a run uses, and how the run remembers them
// (ADR 21).
#pragma once
#include "base/config.h"
#include "kernels/options.h"
#include "kernels/tune/machine.h"
#include "parallel/communicator.h"
#include "runtime/device.h"

namespace saturate::train {

// What the configuration and the environment decide about kernels: train.tf32, SATURATE_MATMUL and,
// on a GPU, the tables that train.gemm_table and train.attention_table name: auto (the user's cache;
// a stale or broken file is one warning), none, or a file.
// Errors    invalid_argument when a named file cannot be used.
kernels::KernelOptions kernel_options(const RunConfig& config, Device device);

// The same for a training run: a new one copies the tables to <out>/gemm_table.json and
// <out>/attention_table.json and uses the copies; a resumed one uses those whatever was tuned
// since, so that it goes on bit for bit. A run without a copy was made without a table and stays
// so. All ranks call it together.
kernels::KernelOptions kernel_options_of_run(const RunConfig& config, Device device,
                                             parallel::Communicator& ranks);

// The same with what measurements on the device hold for, which needs no such device.
kernels::KernelOptions kernel_options_of_run(const RunConfig& config,
                                             const kernels::TuneMachine& machine,
                                             parallel::Communicator& ranks);

}  // namespace saturate::train
