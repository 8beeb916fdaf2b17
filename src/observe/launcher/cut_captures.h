// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <string>

namespace saturate::observe {

// Completes the captures (.sat) of `folder` whose processes are gone and could not close them: what
// was torn in the last block is taken off, and a note is appended that says how the process ended
// and how much later than its last records were written. Of `root`, the command itself, both are
// known: `status` as of waitpid, the time on the capture's clock. What cannot be changed is left as it is:
// readers cope with it.
void complete_cut_captures(const std::string& folder, pid_t root, int status, int64_t ended_ns);

}  // namespace saturate::observe
