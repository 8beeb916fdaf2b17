// SPDX-License-Identifier: Apache-2.0
// Source of the sequences: xterm control sequences (invisible-island.net), console_codes(4).
#include <algorithm>
#include <utility>

#include "observe/top/view.h"

namespace saturate::observe {
namespace {

std::optional<Key> named(std::string_view body) {
  static constexpr std::pair<std::string_view, Key> kNames[] = {
      {"[A", Key::up},       {"[B", Key::down},       {"[C", Key::right}, {"[D", Key::left},
      {"OA", Key::up},       {"OB", Key::down},       {"OC", Key::right}, {"OD", Key::left},
      {"[H", Key::home},     {"[F", Key::end},        {"OH", Key::home},  {"OF", Key::end},
      {"[1~", Key::home},    {"[4~", Key::end},       {"[7~", Key::home}, {"[8~", Key::end},
      {"[5~", Key::page_up}, {"[6~", Key::page_down}, {"OP", Key::f1},    {"OQ", Key::f2},
      {"OR", Key::f3},       {"OS", Key::f4},         {"[[A", Key::f1},   {"[[B", Key::f2},
      {"[[C", Key::f3},      {"[[D", Key::f4},        {"[[E", Key::f5},   {"[11~", Key::f1},
      {"[12~", Key::f2},     {"[13~", Key::f3},       {"[14~", Key::f4},  {"[15~", Key::f5},
      {"[17~", Key::f6},     {"[18~", Key::f7},       {"[19~", Key::f8},  {"[20~", Key::f9},
      {"[21~", Key::f10},
  };
  for (const auto& [name, key] : kNames) {
    if (body == name) return key;
  }
  return {};
}

// Length of an escape sequence after ESC: up to its final byte.
size_t sequence_length(std::string_view rest) {
  if (rest.empty()) return 0;
  if (rest[0] == 'O') return std::min<size_t>(2, rest.size());
  if (rest[0] != '[') return 0;
  size_t at = rest.size() > 1 && rest[1] == '[' ? 2 : 1;
  while (at < rest.size() && (rest[at] < 0x40 || rest[at] > 0x7E)) ++at;
  return std::min(at + 1, rest.size());
}

}  // namespace

std::vector<KeyPress> decode_keys(std::string_view bytes) {
  std::vector<KeyPress> keys;
  for (size_t at = 0; at < bytes.size();) {
    const char c = bytes[at++];
    if (c == '\x1b') {
      const size_t length = sequence_length(bytes.substr(at));
      if (length == 0) {
        keys.push_back({Key::escape});
      } else if (const auto key = named(bytes.substr(at, length))) {
        keys.push_back({*key});
      }
      at += length;
    } else if (c == '\r' || c == '\n') {
      keys.push_back({Key::enter});
    } else if (c == 0x7F || c == 0x08) {
      keys.push_back({Key::backspace});
    } else if (c == 0x03) {
      keys.push_back({Key::interrupt});
    } else if (c >= 0x20) {
      keys.push_back({Key::character, c});
    }
  }
  return keys;
}

}  // namespace saturate::observe
