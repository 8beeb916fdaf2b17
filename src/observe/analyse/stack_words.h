// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <string>

#include "observe/analyse/host_lines.h"
#include "observe/trace/trace.h"

namespace saturate::observe {

// A stack with its plumbing folded: the line that its reader can change.
struct StackWords {
  CodePlace at, innermost, caller;  // as in HostLine
  CodePlace native;                 // below a line of Python
  std::string via, remark;
  bool idle_worker = false;  // of a loader, without work
  uint32_t file = 0;         // number of the name of at's whole file
  uint32_t node = kNoStack;  // of the stack, at
};

enum class CodeOwner : uint8_t { program, library, framework, python };
// By where the file lies: site-packages, a framework's folder there, Python's own library.
CodeOwner owner_of(const std::string& file);

// Whether a frame is native code's: its file is a library, or "[...]" where there is none. The program itself is not told
// from Python's files by its name, and needs not: below Python lie libraries.
bool is_native_file(const std::string& file);

// Cost: O(depth).
StackWords stack_words(const Trace& trace, uint32_t stack);

}  // namespace saturate::observe
