// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <fstream>
#include <string>

#include "runtime/memory_use.h"

namespace saturate {
namespace {

// The number behind the word `name` of a file, or its first word without a name; `otherwise` where
// there is no number ("max").
size_t number_in(const std::string& path, const std::string& name, size_t otherwise) {
  std::ifstream in(path);
  for (std::string word; !name.empty() && in >> word && word != name;) {
  }
  size_t value = 0;
  return in >> value ? value : otherwise;
}

}  // namespace

size_t host_bytes_left() noexcept try {
  const size_t kib = number_in("/proc/meminfo", "MemAvailable:", SIZE_MAX >> 10);
  size_t left = kib << 10;
  // A container's bound, of the second and of the first version of control groups.
  const std::string folder = "/sys/fs/cgroup/";
  for (const auto& [limit, used] :
       {std::pair{"memory.max", "memory.current"},
        std::pair{"memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"}}) {
    const size_t most = number_in(folder + limit, "", SIZE_MAX);
    const size_t now = number_in(folder + used, "", 0);
    // Files that are kept in memory make room.
    const size_t files = number_in(folder + "memory.stat", "inactive_file", 0);
    if (most < SIZE_MAX) left = std::min(left, most - std::min(most, now - std::min(now, files)));
  }
  return left;
} catch (...) {
  return SIZE_MAX;
}

}  // namespace saturate
