// SPDX-License-Identifier: Apache-2.0
// Whether a machine is ready to be observed and to run fast: one finding a line, with the remedy.
#pragma once
#include <string>
#include <vector>

#include "observe/system/gpu.h"
#include "observe/system/processes.h"

namespace saturate::observe {

enum class Grade { ok, warn, fail, skip };  // skip: does not apply or cannot be known
const char* grade_name(Grade grade);        // "OK", ...

struct Finding {
  std::string name;  // "ptrace scope"
  Grade grade = Grade::skip;
  std::string found, remedy;  // remedy empty for OK
};

// What the program knows of itself and its environment; tests give their own.
struct CheckInput {
  GpuMonitor* monitor = nullptr;  // null: `no_gpu` says why
  std::string no_gpu;
  ProcessReader reader;
  std::string injection;               // CUDA_INJECTION64_PATH; "" when not set
  std::string cupti;                   // version and place; "" when not found
  int cuda_runtime = 0;                // 13000 for 13.0; 0: not found
  long long shared_memory_bytes = -1;  // size of /dev/shm; -1: not there
  unsigned user = 0;                   // effective uid
};

std::vector<Finding> check_machine(const CheckInput& input);

// Fills what is read from the environment: injection, libraries, /dev/shm, user.
CheckInput look_around(GpuMonitor* monitor, std::string no_gpu, ProcessReader reader);

constexpr int kCheckSchema = 1;
std::string findings_text(const std::vector<Finding>& findings);
std::string findings_json(const std::vector<Finding>& findings);
bool any_failed(const std::vector<Finding>& findings);

}  // namespace saturate::observe
