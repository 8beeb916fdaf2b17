// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <functional>
#include <thread>
#include <vector>

namespace saturate {

// Appends `count` threads to `threads`, thread i running body(i). When the system gives no more
// (limits of processes or of memory), `stop` is called, which must make the bodies return; those
// already started are joined, `threads` is empty again, and an Error says what they are for and the
// remedy. So a constructor that starts its threads with it may fail. Errors: out_of_memory.
void start_threads(std::vector<std::thread>& threads, int count, const char* what_for,
                   const std::function<void(int)>& body, const std::function<void()>& stop);

}  // namespace saturate
