// SPDX-License-Identifier: Apache-2.0
// The four kinds of failure: a caller's mistake or a machine's failure throws Error; "cannot run
// here" is a Fit with a reason; our own bug is SAT_ASSERT, which no user input may reach.
#pragma once
#include <source_location>
#include <stdexcept>
#include <string>
#include <string_view>

namespace saturate {

enum class Errc {
  invalid_argument,  // the caller or the user gave something wrong; the message says what and the
                     // remedy
  unsupported,       // this build or machine cannot do it
  out_of_memory,
  device,      // a CUDA call failed
  collective,  // NCCL or MPI failed, or another rank did
  io,          // file or stream
  internal,    // our bug
};

// what() is "[op] message": the values given, then the rule, then the way out.
class Error : public std::runtime_error {
 public:
  Error(Errc code, std::string_view op, const std::string& what,
        std::source_location at = std::source_location::current());
  Errc code() const noexcept { return code_; }
  const std::source_location& where() const noexcept { return where_; }

 private:
  Errc code_;
  std::source_location where_;
};

[[noreturn]] void fail_assert(const char* expression, std::source_location at) noexcept;

// Whether an implementation can run a problem; `reason` is static text, null when it fits.
struct Fit {
  const char* reason = nullptr;
  explicit operator bool() const noexcept { return reason == nullptr; }
};

}  // namespace saturate

// Our own invariants only; prints the expression and place, then aborts. Kept in release builds.
#define SAT_ASSERT(expression)   \
  (static_cast<bool>(expression) \
       ? void(0)                 \
       : ::saturate::fail_assert(#expression, std::source_location::current()))
