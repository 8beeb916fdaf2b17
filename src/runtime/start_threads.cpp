// SPDX-License-Identifier: Apache-2.0
#include "runtime/start_threads.h"

#include <string>
#include <system_error>

#include "base/error.h"

namespace saturate {

void start_threads(std::vector<std::thread>& threads, int count, const char* what_for,
                   const std::function<void(int)>& body, const std::function<void()>& stop) {
  try {
    threads.reserve(threads.size() + static_cast<size_t>(count));
    for (int i = 0; i < count; ++i) threads.emplace_back(body, i);
  } catch (const std::system_error& e) {
    const size_t started = threads.size();
    stop();
    for (std::thread& t : threads) t.join();
    threads.clear();
    throw Error(Errc::out_of_memory, "threads",
                "the system gave " + std::to_string(started) + " of " + std::to_string(count) +
                    " threads (" + what_for + "): " + e.code().message() +
                    "; raise the limits of processes (ulimit -u) and memory (ulimit -v), or use "
                    "fewer threads (SATURATE_THREADS, data.workers)");
  } catch (...) {
    stop();
    for (std::thread& t : threads) t.join();
    threads.clear();
    throw;
  }
}

}  // namespace saturate
