// SPDX-License-Identifier: Apache-2.0
// How a process says in its exit code why it ended.
#pragma once
#include <exception>

namespace saturate {

// 0 done, 1 the machine failed, 2 the user asked for something wrong, 130 stopped by SIGINT, SIGTERM,
// SIGHUP or SIGPIPE after saving, or before there was anything to save.
constexpr int kExitMachine = 1, kExitUsage = 2, kExitInterrupted = 130;

int exit_code_of(const std::exception& cause) noexcept;

}  // namespace saturate
