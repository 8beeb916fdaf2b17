// SPDX-License-Identifier: Apache-2.0
#include "base/error.h"

#include <cstdio>
#include <cstdlib>

namespace saturate {

Error::Error(Errc code, std::string_view op, const std::string& what, std::source_location at)
    : std::runtime_error("[" + std::string(op) + "] " + what), code_(code), where_(at) {}

void fail_assert(const char* expression, std::source_location at) noexcept {
  std::fprintf(stderr,
               "saturate: internal error: %s is false (%s:%u). This is a bug in Saturate.\n",
               expression, at.file_name(), at.line());
  std::abort();
}

}  // namespace saturate
