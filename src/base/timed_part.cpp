// SPDX-License-Identifier: Apache-2.0
#include "base/timed_part.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>

namespace saturate {
namespace {

using Clock = std::chrono::steady_clock;
const Clock::time_point program_loaded = Clock::now();
// Processor time that went into the process before: the loader and the libraries' own start.
const std::clock_t before_ticks = std::clock();

bool is_verbose() noexcept {
  static const bool verbose = [] {
    const char* v = std::getenv("SATURATE_VERBOSE");
    if (v == nullptr || std::strstr(v, "load") == nullptr) return false;
    std::fprintf(stderr, "load: %.1f ms of processor time before the program was loaded\n",
                 1e3 * static_cast<double>(before_ticks) / CLOCKS_PER_SEC);
    return true;
  }();
  return verbose;
}

double now_ms() noexcept {
  return std::chrono::duration<double, std::milli>(Clock::now() - program_loaded).count();
}

}  // namespace

TimedPart::TimedPart(const char* name) noexcept : name_(name), begin_ms_(now_ms()) {}

TimedPart::~TimedPart() {
  if (!is_verbose()) return;
  std::fprintf(stderr, "load: %7.1f .. %7.1f ms  %s\n", begin_ms_, now_ms(), name_);
}

void note_of_start(const std::string& what) {
  if (is_verbose()) std::fprintf(stderr, "load: %s\n", what.c_str());
}

}  // namespace saturate
