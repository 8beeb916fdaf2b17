// SPDX-License-Identifier: Apache-2.0
// A GPU that programs of others compute on as well. The driver lets processes have it by turns of about 2 ms: a program
// that issues its work in time then waits for its turn, and nothing in its own records says for what.
#pragma once
#include <optional>
#include <string>

#include "observe/report/diagnosis.h"

namespace saturate::observe {

struct SharedGpu {
  int gpu = 0, others = 0;  // processes of others, the most at once
  double share = 0;         // of the time: work was issued, the device did nothing of this program
  int64_t waits = 0;
  double mean_ns = 0;  // of a wait
};

// Where other processes were seen on the only GPU of the program, and at least a twentieth of its time goes in waits as
// long as turns are. Programs of several GPUs or ranks also wait for each other.
std::optional<SharedGpu> shared_gpu(const Diagnosis& diagnosis);

// The SHARED line's sentence, or empty.
std::string shared_gpu_words(const Diagnosis& diagnosis);

// Makes it the verdict where waits that nothing explained were that.
void name_shared_gpu(Diagnosis& diagnosis);

}  // namespace saturate::observe
