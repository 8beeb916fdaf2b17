// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <memory>
#include <string>

#include "observe/trace/trace.h"

namespace saturate::observe {

// A capture of any known format, handed out in windows.
class Capture {
 public:
  virtual ~Capture() = default;
  // Adds the next records to `trace()`, sorted. False when these were the last.
  virtual bool read_window() = 0;
  Trace& trace() { return trace_; }

 protected:
  Trace trace_;
};

// A trace that is in memory, as one window.
std::unique_ptr<Capture> make_capture(Trace trace);

// Detected by the first bytes, not by the name; a folder is all the .sat files in it. Errors Error{io}
// for a file that cannot be read, Error{invalid_argument} for a format that is not known, and
// whatever its reader throws.
std::unique_ptr<Capture> open_capture(const std::string& path);

}  // namespace saturate::observe
