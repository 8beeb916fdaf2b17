// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "apps/commands.h"

namespace saturate::apps {

// `saturate doctor --fix-trial -- command`: watches the command, runs it again unchanged and with each
// remedy that the report calls for and its environment can apply, and reports what was promised and
// what was gained. The exit code is that of the first run.
// Errors    Error{invalid_argument} for a program of several nodes; those of run_captured.
int run_fix_trial(const DoctorOptions& options);

}  // namespace saturate::apps
