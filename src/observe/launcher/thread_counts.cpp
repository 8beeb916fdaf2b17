// SPDX-License-Identifier: Apache-2.0
#include "observe/launcher/thread_counts.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <cstring>

namespace saturate::observe {
namespace {

// The start of a small file; empty when it cannot be read.
std::string read_start(const std::string& path) {
  std::array<char, 4096> text;
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return "";
  const ssize_t got = read(fd, text.data(), text.size());
  close(fd);
  return got > 0 ? std::string(text.data(), static_cast<size_t>(got)) : "";
}

int64_t field(const std::string& text, const char* key) {
  const size_t at = text.find(key);
  return at == std::string::npos ? 0
                                 : std::strtoll(text.c_str() + at + std::strlen(key), nullptr, 10);
}

}  // namespace

bool read_thread(pid_t pid, pid_t thread, bool with_switches, ThreadCounts& counts,
                 const std::string& proc) {
  const std::string folder =
      proc + "/" + std::to_string(pid) + "/task/" + std::to_string(thread) + "/";
  const std::string times = read_start(folder + "schedstat");
  if (times.empty()) return false;
  char* at = nullptr;
  counts.run_ns = std::strtoll(times.c_str(), &at, 10);
  counts.wait_ns = std::strtoll(at, nullptr, 10);
  const std::string stat = read_start(folder + "stat");
  const size_t open = stat.find('('), close = stat.rfind(')');
  if (open != std::string::npos && close != std::string::npos && close + 2 < stat.size()) {
    counts.name = stat.substr(open + 1, close - open - 1);
    counts.state = stat[close + 2];
  }
  if (with_switches) {
    const std::string status = read_start(folder + "status");
    counts.voluntary = field(status, "\nvoluntary_ctxt_switches:");
    counts.involuntary = field(status, "\nnonvoluntary_ctxt_switches:");
  }
  return true;
}

}  // namespace saturate::observe
