// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace saturate::observe::cupti {

// The ways out of a program that pass by atexit(). leave: _exit, _Exit, quick_exit, or a signal that
// it sends to itself.
enum class Ending { leave = 1, exec, signal };

// Arranges that `about_to` is called when this process is about to end in one of them: `signal`
// is its number, 0 if there is none. Afterwards it ends as it would have: by the same signal, at the same
// instruction. Not for SIGKILL from elsewhere, nor for who asks the kernel itself.
//
// leave, exec: by the entries for these functions in the import tables of loaded libraries, on the
// thread that calls, which may be in a handler of the program's. Call again for libraries that were loaded since (cheap when there are none).
// signal: for those that end a process and that the program has left alone (SIG_DFL).
// `about_to` may call what is safe in a signal handler, and nothing else.
// In the child of a fork nothing is called.
void watch_endings(void (*about_to)(Ending, int signal));

// In the child of a fork, before anything else: signals end it as before.
void forget_endings();

}  // namespace saturate::observe::cupti
