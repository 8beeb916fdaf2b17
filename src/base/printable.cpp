// SPDX-License-Identifier: Apache-2.0
#include "base/printable.h"

#include "base/utf8.h"

namespace saturate {

std::string printable(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    const size_t start = i;
    const char32_t c = next_utf8(text, i);
    // C1 controls, U+0080 to U+009F, drive terminals too.
    const bool good = c != kIllFormed && c >= 0x20 && (c < 0x7F || c > 0x9F);
    out += good ? text.substr(start, i - start) : "?";
  }
  return out;
}

}  // namespace saturate
