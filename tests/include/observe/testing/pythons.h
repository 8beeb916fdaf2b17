// SPDX-License-Identifier: Apache-2.0
// For tests only.
#pragma once
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

namespace saturate::testing {

struct Interpreter {
  std::string path;
  int minor;  // of 3.x
};

inline std::string output_of(const std::string& command) {
  std::string text;
  if (std::FILE* pipe = ::popen(command.c_str(), "r")) {
    char part[4096];
    for (size_t n; (n = std::fread(part, 1, sizeof part, pipe)) > 0;) text.append(part, n);
    ::pclose(pipe);
  }
  return text;
}

/// One of each version from 3.9 to 3.14 that this machine has: in /usr/bin, and what pyenv keeps.
inline std::vector<Interpreter> interpreters() {
  namespace fs = std::filesystem;
  std::vector<std::string> paths = {"/usr/bin/python3"};
  const char* home = std::getenv("HOME");
  std::error_code none;
  for (const auto& e :
       fs::directory_iterator(std::string(home == nullptr ? "" : home) + "/.pyenv/versions", none))
    paths.push_back(e.path().string() + "/bin/python3");
  std::vector<Interpreter> found;
  for (const std::string& path : paths) {
    if (!fs::exists(path, none)) continue;
    const int minor = std::atoi(
        output_of(path + " -c 'import sys; print(sys.version_info[1])' 2>/dev/null").c_str());
    bool known = minor < 9 || minor > 14;
    for (const Interpreter& i : found) known = known || i.minor == minor;
    if (!known) found.push_back({path, minor});
  }
  return found;
}

}  // namespace saturate::testing
