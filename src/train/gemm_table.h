// SPDX-License-Identifier: Apache-2.0
// Which tuned table of matrix products a run uses, and how the run remembers it (ADR 21).
#pragma once
#include "base/config.h"
#include "parallel/communicator.h"
#include "runtime/device.h"

namespace saturate::train {

// Makes matmul() use the table that train.gemm_table names: auto (the user's cache; a stale or
// broken file is one warning), none, or a file. Nothing on the CPU. Errors    invalid_argument when
// a named file cannot be used.
void use_gemm_table_of(const RunConfig& config, Device device);

// The same for a training run: a new one copies the table to <out>/gemm_table.json and uses the
// copy; a resumed one uses that copy whatever was tuned since, so that it goes on bit for bit. A
// run without a copy was made without a table and stays so. All ranks call it together.
void use_gemm_table_of_run(const RunConfig& config, Device device, parallel::Communicator& ranks);

}  // namespace saturate::train
