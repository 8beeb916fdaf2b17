// SPDX-License-Identifier: Apache-2.0
#include "kernels/dispatch.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>

namespace saturate::kernels {

bool dispatch_is_verbose() noexcept {
  static const bool verbose = [] {
    const char* v = std::getenv("SATURATE_VERBOSE");
    return v != nullptr && std::strstr(v, "dispatch") != nullptr;
  }();
  return verbose;
}

std::string text_of(std::span<const Refusal> refused) {
  std::string text;
  for (const Refusal& r : refused)
    text += std::string(text.empty() ? "" : "; ") + r.impl + ": " + r.reason;
  return text;
}

void note_dispatch(const char* op, const std::string& shape, const char* impl,
                   const char* refusal) {
  static std::mutex mutex;
  static std::set<std::string> seen;  // a step repeats the same choices thousands of times
  std::string line = std::string("dispatch: ") + op + (shape.empty() ? "" : " " + shape) + ": " +
                     impl + (refusal ? std::string(" refused: ") + refusal : " runs");
  const std::lock_guard lock(mutex);
  if (seen.insert(line).second) std::fprintf(stderr, "%s\n", line.c_str());
}

}  // namespace saturate::kernels
