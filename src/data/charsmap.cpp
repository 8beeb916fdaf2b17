// SPDX-License-Identifier: Apache-2.0
#include "data/charsmap.h"

#include <cstring>

#include "base/error.h"
#include "base/utf8.h"
#include "data/sentencepiece_check.h"
#include "data/text_pattern.h"

namespace saturate::data {
namespace {

// Longer clusters are normalised character by character.
constexpr size_t kMostClusterBytes = 5;

}  // namespace

Charsmap::Charsmap(const std::string& blob, const std::string& where) {
  if (const Fit fit = charsmap_is_sound(blob); !fit)
    throw Error(Errc::invalid_argument, "tokenizer", where + ": " + fit.reason);
  if (blob.empty()) return;
  uint32_t bytes = 0;
  std::memcpy(&bytes, blob.data(), sizeof bytes);  // little endian, as our hosts
  units_.resize(bytes / sizeof(uint32_t));
  std::memcpy(units_.data(), blob.data() + sizeof bytes, bytes);
  strings_ = blob.substr(sizeof bytes + bytes);
}

std::string_view Charsmap::find(std::string_view part) const {
  if (units_.empty()) return {};
  const auto offset = [&](uint32_t unit) { return (unit >> 10) << ((unit & (1u << 9)) >> 6); };
  uint32_t at = offset(units_[0]);
  for (const char c : part) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte == 0) break;
    at ^= byte;
    const uint32_t unit = units_[at];
    if ((unit & 0x800000FFu) != byte) break;
    at ^= offset(unit);
    if ((unit >> 8 & 1) == 0) continue;
    return strings_.c_str() + (units_[at] & 0x7FFFFFFFu);
  }
  return {};
}

std::string Charsmap::apply(std::string_view text) const {
  std::string out;
  size_t at = 0;
  for (const size_t end : grapheme_ends(text)) {
    const std::string_view cluster = text.substr(at, end - at);
    const std::string_view whole =
        cluster.size() <= kMostClusterBytes ? find(cluster) : std::string_view();
    if (whole.data() != nullptr) {
      out += whole;
    } else {
      for (size_t c = 0; c < cluster.size();) {
        const size_t begin = c;
        next_utf8(cluster, c);
        const std::string_view one = cluster.substr(begin, c - begin), mapped = find(one);
        out += mapped.data() != nullptr ? mapped : one;
      }
    }
    at = end;
  }
  return out;
}

std::string decode_base64(std::string_view text, const std::string& where) {
  std::string out;
  uint32_t bits = 0;
  int held = 0;
  while (text.ends_with('=')) text.remove_suffix(1);
  for (const char c : text) {
    uint32_t digit = 0;
    if (c >= 'A' && c <= 'Z') {
      digit = static_cast<uint32_t>(c - 'A');
    } else if (c >= 'a' && c <= 'z') {
      digit = static_cast<uint32_t>(c - 'a') + 26;
    } else if (c >= '0' && c <= '9') {
      digit = static_cast<uint32_t>(c - '0') + 52;
    } else if (c == '+' || c == '/') {
      digit = c == '+' ? 62 : 63;
    } else {
      throw Error(Errc::invalid_argument, "tokenizer", where + ": its base64 text is damaged");
    }
    bits = bits << 6 | digit;
    held += 6;
    if (held < 8) continue;
    held -= 8;
    out += static_cast<char>(bits >> held & 0xFF);
  }
  return out;
}

}  // namespace saturate::data
