// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>

namespace saturate {

// With SATURATE_VERBOSE=load, prints on standard error when this part of the program's start began
// and ended, in milliseconds since the program was loaded:
//   load:    12.3 ..   58.1 ms  tokenizers
// Parts of several threads may overlap. Otherwise nothing. `name` must outlive the object.
class TimedPart {
 public:
  explicit TimedPart(const char* name) noexcept;
  ~TimedPart();
  TimedPart(const TimedPart&) = delete;
  TimedPart& operator=(const TimedPart&) = delete;

 private:
  const char* name_;
  double begin_ms_;
};

// With SATURATE_VERBOSE=load, prints "load: WHAT" on standard error.
void note_of_start(const std::string& what);

}  // namespace saturate
