// SPDX-License-Identifier: Apache-2.0
#include "base/printable.h"

namespace saturate {

std::string printable(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    const auto c = static_cast<unsigned char>(text[i]);
    size_t length = c < 0x80                ? 1
                    : c >= 0xC2 && c < 0xE0 ? 2
                    : c >= 0xE0 && c < 0xF0 ? 3
                    : c >= 0xF0 && c < 0xF5 ? 4
                                            : 0;
    bool good = length > 0 && i + length <= text.size() && c >= 0x20 && c != 0x7F;
    for (size_t k = 1; good && k < length; ++k)
      good = (static_cast<unsigned char>(text[i + k]) & 0xC0) == 0x80;
    // C1 controls, U+0080 to U+009F, drive terminals too.
    if (good && c == 0xC2 && static_cast<unsigned char>(text[i + 1]) < 0xA0) good = false;
    if (good)
      out.append(text.substr(i, length));
    else
      out += '?', length = 1;
    i += length;
  }
  return out;
}

}  // namespace saturate
