// SPDX-License-Identifier: Apache-2.0
#include "model/json_file.h"

#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <fstream>

#include "base/durable_file.h"
#include "base/error.h"

namespace saturate::model {
namespace {

void dump_string(const std::string& text, std::string& out) {
  out += '"';
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += fmt::format("\\u{:04x}", static_cast<int>(c));
    } else {
      out += c;
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

Json Json::object(std::initializer_list<Member> members) { return Json(Object(members)); }

const Json* Json::find(std::string_view key) const {
  const Object* members = if_object();
  if (members == nullptr) return nullptr;
  for (const Member& m : *members) {
    if (m.key == key) return &m.value;
  }
  return nullptr;
}

void Json::add(std::string key, Json value) {
  if (is_null()) value_ = Object{};
  SAT_ASSERT(if_object() != nullptr);
  std::get<Object>(value_).push_back({std::move(key), std::move(value)});
}

void Json::dump_to(std::string& out, size_t indent) const {
  const auto new_line = [&out](size_t spaces) {
    out += '\n';
    out.append(spaces, ' ');
  };
  if (const bool* b = if_bool()) {
    out += *b ? "true" : "false";
  } else if (const int64_t* i = if_int()) {
    out += std::to_string(*i);
  } else if (const double* d = if_double()) {
    out += number_text(*d);
  } else if (const std::string* s = if_string()) {
    dump_string(*s, out);
  } else if (const Array* a = if_array()) {
    out += '[';
    for (size_t n = 0; n < a->size(); ++n) {
      if (n > 0) out += ", ";
      (*a)[n].dump_to(out, indent + 2);
    }
    out += ']';
  } else if (const Object* o = if_object()) {
    out += '{';
    for (size_t n = 0; n < o->size(); ++n) {
      if (n > 0) out += ',';
      new_line(indent + 2);
      dump_string((*o)[n].key, out);
      out += ": ";
      (*o)[n].value.dump_to(out, indent + 2);
    }
    if (!o->empty()) new_line(indent);
    out += '}';
  } else {
    out += "null";
  }
}

std::string Json::dump() const {
  std::string out;
  dump_to(out, 0);
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
  write_durable_file(path, value.dump() + "\n");
}

}  // namespace saturate::model
