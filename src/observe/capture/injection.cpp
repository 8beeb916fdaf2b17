// SPDX-License-Identifier: Apache-2.0
// What the CUDA driver calls in a program that runs under CUDA_INJECTION64_PATH, from inside
// cuInit: no exception may leave, and nothing may be written to the program's streams.
#include <pthread.h>

#include <cstdlib>
#include <exception>

#include "observe/capture/recorder.h"

using saturate::observe::cupti::Recorder;

extern "C" __attribute__((visibility("default"))) int InitializeInjection(void) {
  try {
    Recorder* recorder = Recorder::start(saturate::observe::cupti::read_settings());
    if (recorder == nullptr) return 1;
    pthread_atfork([] { Recorder::get()->before_fork(); },
                   [] { Recorder::get()->after_fork_in_parent(); },
                   [] { Recorder::get()->after_fork_in_child(); });
    std::atexit([] { Recorder::get()->finish(); });
  } catch (const std::exception&) {
  }
  return 1;  // the driver takes anything else for a failure of its own start
}
