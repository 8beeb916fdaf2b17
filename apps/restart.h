// SPDX-License-Identifier: Apache-2.0
// train.restart: the work is done in a child process, so that whatever ends it leaves somebody who
// can begin again.
#pragma once
#include <cstdint>

namespace saturate::apps {

// Returns in child processes only, each of which goes on to do the work: first false, and after a
// failure true in another one, `most` times at most. This process stays, as small as it is now: a
// launcher (torchrun, srun, mpirun) sees it alone, and so sees no failure before the last.
//
// A failure is an end by a signal or with kExitMachine. What the user asked for wrongly, an end that
// was asked for (SIGINT, SIGTERM, SIGHUP, which are passed on) and success are final: this process
// then ends as its child did. A child that is stopped (SIGSTOP) for as long as its ranks wait for
// signs of life is killed, where there are others. A child ends with this process.
// True at once where the launcher itself has started the job again (TORCHELASTIC_RESTART_COUNT,
// SLURM_RESTART_COUNT). Call it before there are threads. Errors: io (no process can be made).
bool restarted_child(int64_t most);

}  // namespace saturate::apps
