// SPDX-License-Identifier: Apache-2.0
#include "kernels/dispatch.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>

#include "kernels/lists.h"

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

std::string shape_text(DType type, std::initializer_list<int64_t> sizes) {
  std::string text;
  for (const int64_t size : sizes) text += (text.empty() ? "" : "x") + std::to_string(size);
  return name_of(type) + (" " + text);
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
