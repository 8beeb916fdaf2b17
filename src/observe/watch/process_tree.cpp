// SPDX-License-Identifier: Apache-2.0
#include "observe/watch/process_tree.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string_view>
#include <unordered_map>

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

std::vector<pid_t> numbers_in(const std::string& folder) {
  std::vector<pid_t> numbers;
  const std::unique_ptr<DIR, int (*)(DIR*)> dir(opendir(folder.c_str()), &closedir);
  if (!dir) return numbers;
  while (const dirent* entry = readdir(dir.get())) {
    char* end = nullptr;
    const long number = std::strtol(entry->d_name, &end, 10);
    if (number > 0 && *end == '\0') numbers.push_back(static_cast<pid_t>(number));
  }
  return numbers;
}

// "pid (name) state parent ...": the name may hold anything, ')' too.
pid_t parent_of(const std::string& stat) {
  const size_t name_end = stat.rfind(')');
  if (name_end == std::string::npos || name_end + 4 > stat.size()) return 0;
  return static_cast<pid_t>(std::strtol(stat.c_str() + name_end + 4, nullptr, 10));
}

int64_t field(const std::string& text, const char* key) {
  const size_t at = text.find(key);
  return at == std::string::npos ? 0
                                 : std::strtoll(text.c_str() + at + std::strlen(key), nullptr, 10);
}

}  // namespace

std::vector<pid_t> process_tree(pid_t root, const std::string& proc) {
  std::unordered_map<pid_t, std::vector<pid_t>> children;
  for (const pid_t pid : numbers_in(proc))
    children[parent_of(read_start(proc + "/" + std::to_string(pid) + "/stat"))].push_back(pid);
  std::vector<pid_t> tree{root};
  for (size_t i = 0; i < tree.size(); ++i) {
    if (const auto at = children.find(tree[i]); at != children.end()) {
      const std::vector<pid_t> found = std::move(at->second);
      children.erase(at);
      tree.insert(tree.end(), found.begin(), found.end());
    }
  }
  return tree;
}

std::vector<pid_t> threads_of(pid_t pid, const std::string& proc) {
  return numbers_in(proc + "/" + std::to_string(pid) + "/task");
}

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
