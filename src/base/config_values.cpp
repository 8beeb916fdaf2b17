// SPDX-License-Identifier: Apache-2.0
// Values of configuration keys: what they may be, how they are stored and written.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "base/config_keys.h"
#include "base/text.h"

namespace saturate::config {
namespace {

template <class T>
struct Plain {
  using type = T;
};
template <class T>
struct Plain<std::optional<T>> {
  using type = T;
};
template <class Pointer>
using PlainOf =
    typename Plain<std::remove_pointer_t<Pointer>>::type;  // the type without "optional"

std::vector<std::string_view> split_choices(std::string_view text) {
  std::vector<std::string_view> parts;
  for (size_t bar; (bar = text.find('|')) != std::string_view::npos; text.remove_prefix(bar + 1)) {
    parts.push_back(text.substr(0, bar));
  }
  if (!text.empty()) parts.push_back(text);
  return parts;
}

// TOML basic string.
std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (byte < 0x20 || byte == 0x7F) {
      out += fmt::format("\\u{:04X}", byte);
    } else {
      out += c;
    }
  }
  return out + '"';
}

// Shortest text that reads back to the same number, and that TOML takes for a real number.
std::string real_text(double value) {
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".en") == std::string::npos) text += ".0";
  return text;
}

std::string toml_text(bool value) { return value ? "true" : "false"; }
std::string toml_text(int64_t value) { return fmt::format("{}", value); }
std::string toml_text(double value) { return real_text(value); }
std::string toml_text(const std::string& value) { return quoted(value); }
std::string toml_text(Bytes value) { return fmt::format("{}", value.value); }
std::string toml_text(const std::vector<std::string>& value) {
  std::vector<std::string> parts;
  for (const std::string& v : value) parts.push_back(quoted(v));
  return fmt::format("[{}]", fmt::join(parts, ", "));
}

bool in_range(const Key& key, double value) { return value >= key.low && value <= key.high; }

// Each returns whether `value` may be stored, and stores it.
bool convert(const Key&, const Value& value, bool& out) {
  const bool* v = std::get_if<bool>(&value);
  if (v) out = *v;
  return v != nullptr;
}
bool convert(const Key& key, const Value& value, int64_t& out) {
  const int64_t* v = std::get_if<int64_t>(&value);
  if (!v || !in_range(key, static_cast<double>(*v))) return false;
  out = *v;
  return true;
}
bool convert(const Key& key, const Value& value, double& out) {
  double number = 0;
  if (const int64_t* whole = std::get_if<int64_t>(&value)) {
    number = static_cast<double>(*whole);
  } else if (const double* real = std::get_if<double>(&value)) {
    number = *real;
  } else {
    return false;
  }
  if (!in_range(key, number)) return false;  // false for NaN as well
  out = number;
  return true;
}
bool convert(const Key& key, const Value& value, std::string& out) {
  const auto choices = split_choices(key.choices);
  std::string text;
  if (const auto* v = std::get_if<std::string>(&value)) {
    text = *v;
  } else if (const auto* number = std::get_if<int64_t>(&value); number && !choices.empty()) {
    text = toml_text(*number);  // a choice that is a number, like zero = 3
  } else {
    return false;
  }
  if (!choices.empty() && std::ranges::find(choices, text) == choices.end()) return false;
  out = std::move(text);
  return true;
}
bool convert(const Key& key, const Value& value, Bytes& out) {
  std::optional<int64_t> bytes;
  if (const int64_t* v = std::get_if<int64_t>(&value)) bytes = *v;
  if (const std::string* v = std::get_if<std::string>(&value)) bytes = parse_bytes(*v);
  if (!bytes || !in_range(key, static_cast<double>(*bytes))) return false;
  out.value = *bytes;
  return true;
}
bool convert(const Key&, const Value& value, std::vector<std::string>& out) {
  const auto* v = std::get_if<std::vector<std::string>>(&value);
  if (v) out = *v;
  if (const std::string* one = std::get_if<std::string>(&value)) {
    out = {*one};
    return true;
  }
  return v != nullptr;
}

std::string shown(const Value& value) {
  return std::visit([](const auto& v) { return toml_text(v); }, value);
}

}  // namespace

std::string type_text(const Key& key) {
  RunConfig any;
  return std::visit(
      [&](auto* pointer) -> std::string {
        using T = PlainOf<decltype(pointer)>;
        if constexpr (std::is_same_v<T, bool>) {
          return "true or false";
        } else if constexpr (std::is_same_v<T, int64_t> || std::is_same_v<T, double>) {
          const char* kind = std::is_same_v<T, double> ? "a number" : "a whole number";
          if (key.high == kUnbounded)
            return fmt::format("{}, {} or more (up to 1e15)", kind, key.low);
          return fmt::format("{} from {} to {}", kind, key.low, key.high);
        } else if constexpr (std::is_same_v<T, Bytes>) {
          return "an amount of memory such as \"4GiB\"";
        } else if constexpr (std::is_same_v<T, std::string>) {
          if (!*key.choices) return "a text";
          return fmt::format("one of {}", fmt::join(split_choices(key.choices), ", "));
        } else {
          return "a list of texts";
        }
      },
      key.slot(any));
}

std::string value_text(const Key& key, const RunConfig& config) {
  RunConfig& readable = const_cast<RunConfig&>(config);  // the slot is only read here
  return std::visit(
      [](auto* pointer) -> std::string {
        using T = std::remove_pointer_t<decltype(pointer)>;
        if constexpr (std::is_same_v<T, std::optional<PlainOf<T*>>>) {
          return pointer->has_value() ? toml_text(**pointer) : "";
        } else {
          return toml_text(*pointer);
        }
      },
      key.slot(readable));
}

std::string assign(const Key& key, RunConfig& config, const Value& value) {
  const bool stored = std::visit(
      [&](auto* pointer) {
        PlainOf<decltype(pointer)> converted{};
        if (!convert(key, value, converted)) return false;
        *pointer = std::move(converted);
        return true;
      },
      key.slot(config));
  if (stored) return "";
  std::string message = fmt::format("must be {}, got {}", type_text(key), shown(value));
  const std::string* text = std::get_if<std::string>(&value);
  if (text && *key.choices) message += did_you_mean(*text, split_choices(key.choices));
  return message;
}

}  // namespace saturate::config
