// SPDX-License-Identifier: Apache-2.0
#include "base/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <fstream>

#include "base/durable_file.h"
#include "base/error.h"
#include "base/utf8.h"

namespace saturate {
namespace {

const Json kNull;

// Source: RFC 8259, section 7.
void dump_string(std::string_view text, std::string& out) {
  constexpr std::string_view kShort = "\"\\\b\f\n\r\t", kLetters = "\"\\bfnrt";
  out += '"';
  while (!text.empty()) {
    const size_t valid = std::min(find_invalid_utf8(text), text.size());
    for (const char c : text.substr(0, valid)) {
      if (const size_t at = kShort.find(c); at != std::string_view::npos) {
        out += '\\';
        out += kLetters[at];
      } else if (static_cast<unsigned char>(c) < 0x20) {
        out += fmt::format("\\u{:04x}", static_cast<int>(c));
      } else {
        out += c;
      }
    }
    text.remove_prefix(valid);
    if (!text.empty()) {
      size_t ill_formed = 0;
      next_utf8(text, ill_formed);
      text.remove_prefix(ill_formed);
      out += "\uFFFD";
    }
  }
  out += '"';
}

// Always with a point or an exponent, so that it is read back as a real number.
std::string number_text(double value) {
  if (!std::isfinite(value)) return "null";
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

}  // namespace

Json::Json(float v) {
  std::array<char, 32> digits;
  const auto end = std::to_chars(digits.begin(), digits.end(), v).ptr;
  double decimal = 0;
  std::from_chars(digits.begin(), end, decimal);
  value_ = decimal;
}

std::optional<double> Json::number() const {
  if (const int64_t* i = if_int()) return static_cast<double>(*i);
  if (const double* d = if_double()) return *d;
  return std::nullopt;
}

// From the end, so that the last member of a name counts.
const Json* Json::find(std::string_view key) const {
  const Object* members = if_object();
  if (members == nullptr) return nullptr;
  const auto at = std::find_if(members->rbegin(), members->rend(),
                               [&](const Member& m) { return m.key == key; });
  return at == members->rend() ? nullptr : &at->value;
}

const Json& Json::operator[](std::string_view key) const {
  const Json* member = find(key);
  return member == nullptr ? kNull : *member;
}

const Json& Json::at(size_t element) const {
  const Array* elements = if_array();
  return elements == nullptr || element >= elements->size() ? kNull : (*elements)[element];
}

size_t Json::size() const {
  if (const Array* a = if_array()) return a->size();
  return if_object() == nullptr ? 0 : if_object()->size();
}

Json& Json::operator[](std::string_view key) {
  if (const Json* member = find(key)) return const_cast<Json&>(*member);
  add(std::string(key), {});
  return std::get<Object>(value_).back().value;
}

void Json::add(std::string key, Json value) {
  if (is_null()) value_ = Object{};
  SAT_ASSERT(if_object() != nullptr);
  std::get<Object>(value_).push_back({std::move(key), std::move(value)});
}

Json& Json::push_back(Json value) {
  if (is_null()) value_ = Array{};
  SAT_ASSERT(if_array() != nullptr);
  return std::get<Array>(value_).emplace_back(std::move(value));
}

bool Json::equal(const Json& a, const Json& b) {
  const std::optional<double> x = a.number(), y = b.number();
  return x && y && a.value_.index() != b.value_.index() ? *x == *y : a.value_ == b.value_;
}

void Json::dump_to(std::string& out, int indent, int level) const {
  // What stands between two parts, and before the first and after the last.
  const auto new_line = [&](bool wanted, int depth) {
    if (!wanted) return;
    out += '\n';
    out.append(static_cast<size_t>(indent * depth), ' ');
  };
  const bool pretty = indent >= 0;
  if (const bool* b = if_bool()) {
    out += *b ? "true" : "false";
  } else if (const int64_t* i = if_int()) {
    out += std::to_string(*i);
  } else if (const double* d = if_double()) {
    out += number_text(*d);
  } else if (const std::string* s = if_string()) {
    dump_string(*s, out);
  } else if (const Array* a = if_array()) {
    const bool lines =
        pretty && std::any_of(a->begin(), a->end(), [](const Json& j) { return j.size() > 0; });
    out += '[';
    for (size_t n = 0; n < a->size(); ++n) {
      if (n > 0) out += pretty && !lines ? ", " : ",";
      new_line(lines, level + 1);
      (*a)[n].dump_to(out, indent, level + 1);
    }
    new_line(lines, level);
    out += ']';
  } else if (const Object* o = if_object()) {
    out += '{';
    for (size_t n = 0; n < o->size(); ++n) {
      if (n > 0) out += ',';
      new_line(pretty, level + 1);
      dump_string((*o)[n].key, out);
      out += pretty ? ": " : ":";
      (*o)[n].value.dump_to(out, indent, level + 1);
    }
    new_line(pretty && !o->empty(), level);
    out += '}';
  } else {
    out += "null";
  }
}

std::string Json::dump(int indent) const {
  std::string out;
  dump_to(out, indent, 0);
  return out;
}

Json read_json_file(const std::string& path, const JsonLimits& limits) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw Error(Errc::io, "json", fmt::format("{}: {}", path, std::strerror(errno)));
  std::string text;
  std::array<char, 1 << 16> block;
  while (in.read(block.data(), block.size()), in.gcount() > 0) {
    text.append(block.data(), static_cast<size_t>(in.gcount()));
    if (text.size() > limits.max_bytes) break;  // parse_json says so
  }
  if (in.bad()) throw Error(Errc::io, "json", fmt::format("{}: {}", path, std::strerror(errno)));
  return parse_json(text, path, limits);
}

void write_json_file(const std::string& path, const Json& value) {
  write_durable_file(path, value.dump(2) + "\n");
}

}  // namespace saturate
