// SPDX-License-Identifier: Apache-2.0
// What the machine allows this process, seen to before a command begins, and an end with a reason
// where it does not suffice.
#pragma once

namespace saturate::apps {

constexpr char kOutOfMemory[] =
    "[main] out of host memory; raise the limit of memory (ulimit -v) if there is one, or take a "
    "smaller batch or model";

// Room for calls and files to open; raises the soft limit of open files where it may. Errors:
// out_of_memory, io; with the limit, what is needed and the remedy.
void require_stack();
void require_open_files();

// For std::set_terminate: prints why an exception ended a thread and ends with kExitMachine.
[[noreturn]] void tell_and_end();

}  // namespace saturate::apps
