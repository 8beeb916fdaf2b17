// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "observe/stacks/function_table.h"

namespace saturate::observe {

// Names addresses of code in a process by the files that it has mapped.
class NativeCode {
 public:
  explicit NativeCode(pid_t pid) : pid_(pid) {}

  struct Place {
    std::string function;  // "(no symbol)" where the file has none there
    std::string file;      // its path; "[code made while running]" where there is none
  };
  // Null while the table of the file is read: that begins with its first address, in a thread of its own, because a large library
  // has hundreds of thousands of functions; all processes share it. Reads the list of mapped files anew for an address that it
  // does not know, at most once a second of `now_ns`, because a program of many libraries has thousands of lines there. Not for
  // several threads.
  const Place* at(uint64_t address, int64_t now_ns);

 private:
  struct Range {
    uint64_t end = 0, offset = 0;
    std::string path;
  };
  void read_maps();
  pid_t pid_;
  std::map<uint64_t, Range> ranges_;  // that may run, by start
  std::map<uint64_t, Place> known_;   // by address
  int64_t read_ns_ = INT64_MIN / 2;
};

}  // namespace saturate::observe
