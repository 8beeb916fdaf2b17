// SPDX-License-Identifier: Apache-2.0
#include "base/flat_yaml.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <utility>

#include "base/error.h"

namespace saturate {
namespace {

std::string_view trimmed(std::string_view s) {
  const size_t first = s.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return s.substr(first, s.find_last_not_of(" \t") - first + 1);
}

void append_utf8(std::string& out, uint32_t c) {
  const auto byte = [&out](uint32_t b) { out += static_cast<char>(b); };
  if (c < 0x80) return byte(c);
  if (c < 0x800) {
    byte(0xC0 | (c >> 6));
  } else {
    if (c < 0x10000) {
      byte(0xE0 | (c >> 12));
    } else {
      byte(0xF0 | (c >> 18));
      byte(0x80 | ((c >> 12) & 0x3F));
    }
    byte(0x80 | ((c >> 6) & 0x3F));
  }
  byte(0x80 | (c & 0x3F));
}

class FlatYaml {
 public:
  FlatYaml(std::string_view text, const std::string& where) : text_(text), where_(where) {}

  std::vector<YamlEntry> run() {
    while (next_line()) {
      const std::string_view line = trimmed(line_);
      if (line.empty() || line.front() == '#' || line == "---" || line == "..." ||
          line.starts_with("%YAML "))
        continue;
      take(line);
    }
    if (waits_ != Waits::nothing && waits_ != Waits::items) refuse("a key has no value");
    return std::move(entries_);
  }

 private:
  // What the line before left open: items of a list, the value of a key after "? ".
  enum class Waits : uint8_t { nothing, items, value };

  [[noreturn]] void refuse(const std::string& why) const {
    throw Error(Errc::invalid_argument, "yaml",
                fmt::format("{}: line {}: {}; only scalars and lists of them are read here", where_,
                            number_, why));
  }

  bool next_line() {
    if (at_ >= text_.size()) return false;
    const size_t end = std::min(text_.find('\n', at_), text_.size());
    line_ = text_.substr(at_, end - at_);
    if (line_.ends_with('\r')) line_.remove_suffix(1);
    at_ = end + 1;
    ++number_;
    return true;
  }

  void take(std::string_view line) {
    if (waits_ == Waits::value) {
      if (!line.starts_with(":")) refuse("the value of the key before is missing");
      waits_ = Waits::nothing;
      return set_value(trimmed(line.substr(1)));
    }
    if (waits_ == Waits::items && (line == "-" || line.starts_with("- "))) {
      entries_.back().is_list = true;
      entries_.back().values.push_back(scalar(trimmed(line.substr(1))));
      return;
    }
    const bool indented = line_.front() == ' ' || line_.front() == '\t';
    if (waits_ == Waits::items && indented && line.front() == '[') return set_value(line);
    if (indented) refuse("it is indented, as a mapping in a mapping");
    waits_ = Waits::nothing;
    if (line.starts_with("? ")) {
      std::string_view rest = trimmed(line.substr(2));
      entries_.push_back({.key = key(rest), .values = {}});
      if (!rest.empty()) refuse("something follows the key");
      waits_ = Waits::value;
      return;
    }
    entries_.push_back({.key = key(line), .values = {}});
    if (!line.starts_with(":")) refuse("a key and a colon are needed");
    set_value(trimmed(line.substr(1)));
  }

  // The key that `line` begins with, which becomes what follows it.
  std::string key(std::string_view& line) {
    if (line.front() == '"' || line.front() == '\'') {
      std::string text = quoted(line);
      line = trimmed(line);
      return text;
    }
    size_t end = line.size();
    for (size_t i = 0; i < line.size() && end == line.size(); ++i)
      if (line[i] == ':' && (i + 1 == line.size() || line[i + 1] == ' ' || line[i + 1] == '\t'))
        end = i;
    std::string text(trimmed(line.substr(0, end)));
    line = line.substr(end);
    return text;
  }

  void set_value(std::string_view value) {
    YamlEntry& entry = entries_.back();
    if (value.empty()) {
      waits_ = Waits::items;  // of a list, or an empty scalar
      return;
    }
    waits_ = Waits::nothing;
    if (value.front() != '[') {
      entry.values = {scalar(value)};
      return;
    }
    entry.is_list = true;
    value = trimmed(value.substr(1));
    while (!value.starts_with("]")) {
      if (value.empty()) refuse("a list has no ]");
      if (value.front() == '"' || value.front() == '\'') {
        entry.values.push_back(quoted(value));
      } else {
        need_plain(value);
        const size_t end = std::min(value.find_first_of(",]"), value.size());
        entry.values.emplace_back(trimmed(value.substr(0, end)));
        value = value.substr(end);
      }
      value = trimmed(value);
      if (value.starts_with(",")) value = trimmed(value.substr(1));
    }
    if (const std::string_view rest = trimmed(value.substr(1)); !rest.empty() && rest[0] != '#')
      refuse("something follows a list");
  }

  // A whole value.
  std::string scalar(std::string_view value) {
    if (value.empty()) return {};
    if (value.front() == '"' || value.front() == '\'') {
      std::string text = quoted(value);
      if (value = trimmed(value); !value.empty() && value.front() != '#')
        refuse("something follows a quoted text");
      return text;
    }
    need_plain(value);
    return std::string(trimmed(value.substr(0, value.find(" #"))));
  }

  void need_plain(std::string_view text) const {
    if (std::string_view("|>{&*!").find(text.front()) != std::string_view::npos)
      refuse(fmt::format("a value begins with {}", text.front()));
  }

  // The quoted text that `s` begins with; `s` becomes what follows it.
  std::string quoted(std::string_view& s) {
    const char quote = s.front();
    std::string out;
    for (size_t i = 1; i < s.size(); ++i) {
      if (s[i] == quote) {
        if (quote == '\'' && i + 1 < s.size() && s[i + 1] == quote) {
          out += quote;
          ++i;
          continue;
        }
        s.remove_prefix(i + 1);
        return out;
      }
      if (s[i] != '\\' || quote == '\'') {
        out += s[i];
      } else if (++i < s.size()) {
        i += escape(s.substr(i), out);
      }
    }
    refuse("a quoted text has no end");
  }

  // Appends what the escape stands for; how many characters follow its first.
  size_t escape(std::string_view s, std::string& out) const {
    constexpr std::array<std::pair<char, uint32_t>, 18> kOnes = {{{'0', 0},
                                                                  {'a', 7},
                                                                  {'b', 8},
                                                                  {'t', 9},
                                                                  {'\t', 9},
                                                                  {'n', 10},
                                                                  {'v', 11},
                                                                  {'f', 12},
                                                                  {'r', 13},
                                                                  {'e', 27},
                                                                  {' ', 32},
                                                                  {'"', '"'},
                                                                  {'/', '/'},
                                                                  {'\\', '\\'},
                                                                  {'N', 0x85},
                                                                  {'_', 0xA0},
                                                                  {'L', 0x2028},
                                                                  {'P', 0x2029}}};
    for (const auto& [letter, code] : kOnes) {
      if (s.front() != letter) continue;
      append_utf8(out, code);
      return 0;
    }
    const size_t digits = s.front() == 'x' ? 2 : s.front() == 'u' ? 4 : s.front() == 'U' ? 8 : 0;
    uint32_t code = 0;
    const char* const begin = s.data() + 1;
    if (digits == 0 || s.size() < 1 + digits ||
        std::from_chars(begin, begin + digits, code, 16).ptr != begin + digits || code > 0x10FFFF ||
        (code >= 0xD800 && code < 0xE000))
      refuse(fmt::format("\\{} is no escape of a character", s.substr(0, 1 + digits)));
    append_utf8(out, code);
    return digits;
  }

  const std::string_view text_;
  const std::string& where_;
  std::string_view line_;
  size_t at_ = 0, number_ = 0;
  Waits waits_ = Waits::nothing;
  std::vector<YamlEntry> entries_;
};

}  // namespace

std::vector<YamlEntry> parse_flat_yaml(std::string_view text, const std::string& where) {
  return FlatYaml(text, where).run();
}

const YamlEntry* find_entry(const std::vector<YamlEntry>& entries, std::string_view key) {
  for (size_t i = entries.size(); i > 0; --i)
    if (entries[i - 1].key == key) return &entries[i - 1];
  return nullptr;
}

}  // namespace saturate
