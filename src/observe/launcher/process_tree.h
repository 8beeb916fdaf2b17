// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace saturate::observe {

// Makes this process the parent of every descendant whose own parent has ended, so that
// end_descendants() finds them all. Linux 3.4.
void adopt_orphans();

// Sends a signal to every descendant of this process; whether there was one.
bool signal_descendants(int signal);

// Ends every descendant of this process: asked by SIGTERM, after `grace_s` seconds by SIGKILL.
// Returns when none is left, or 2 s after that: one inside a driver that hangs does not end. Takes
// the exit status of those that end: nobody else may wait for them.
void end_descendants(double grace_s);

}  // namespace saturate::observe
