// SPDX-License-Identifier: Apache-2.0
// For tests only.
#pragma once
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

namespace saturate::testing {

struct Interpreter {
  std::string path;
  int minor;                   // of 3.x
  bool has_lock = true;        // the interpreter's; false: it runs without
  bool free_threaded = false;  // a build that can run without
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

/// One of each version from 3.9 to 3.15 and kind of build that this machine has: those that the
/// environment variable SATURATE_TEST_PYTHONS names, with colons between, in /usr/bin, and what pyenv
/// keeps.
inline std::vector<Interpreter> interpreters() {
  namespace fs = std::filesystem;
  std::vector<std::string> paths;
  if (const char* named = std::getenv("SATURATE_TEST_PYTHONS")) {
    std::istringstream in(named);
    for (std::string path; std::getline(in, path, ':');) paths.push_back(path);
  }
  paths.emplace_back("/usr/bin/python3");
  const char* home = std::getenv("HOME");
  std::error_code none;
  for (const auto& e :
       fs::directory_iterator(std::string(home == nullptr ? "" : home) + "/.pyenv/versions", none))
    paths.push_back(e.path().string() + "/bin/python3");
  for (int minor = 9; minor <= 15; ++minor)
    paths.push_back("/usr/bin/python3." + std::to_string(minor));
  std::vector<Interpreter> found;
  for (const std::string& path : paths) {
    if (!fs::exists(path, none)) continue;
    std::istringstream told(
        output_of(path + " -c 'import sys, sysconfig; print(sys.version_info[1], int(getattr(sys, "
                         "\"_is_gil_enabled\", lambda: True)()), "
                         "int(bool(sysconfig.get_config_var(\"Py_GIL_DISABLED\"))))' 2>/dev/null"));
    Interpreter one{path, 0};
    told >> one.minor >> one.has_lock >> one.free_threaded;
    bool known = one.minor < 9 || one.minor > 15;
    for (const Interpreter& i : found)
      known = known || (i.minor == one.minor && i.has_lock == one.has_lock &&
                        i.free_threaded == one.free_threaded);
    if (!known) found.push_back(one);
  }
  return found;
}

}  // namespace saturate::testing
