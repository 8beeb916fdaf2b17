// SPDX-License-Identifier: Apache-2.0
// JSON values: configurations, tensor headers, manifests, reports, rows of metrics. Captures, which are too large to hold
// in memory, have a reader of their own (observe/read/json_tokens.h).
#pragma once
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/error.h"

namespace saturate {

// One JSON value. Objects keep the order of their members. Writing reads like the JSON itself:
//   Json j = {{"name", name}, {"shape", Json::Array{2, 3}}, {"clock_mhz", an optional: null when empty}};
//   j["notes"].push_back("one more");
class Json {
 public:
  struct Member;
  using Array = std::vector<Json>;
  using Object = std::vector<Member>;

  Json();  // null
  Json(std::nullptr_t);
  Json(bool v);
  Json(double v);
  Json(float v);  // the shortest decimal that reads back as this float
  Json(const char* v);
  Json(std::string_view v);
  Json(std::string v);
  Json(Array v);
  Json(Object v);
  Json(std::initializer_list<Member> members);  // an object
  template <std::integral T>
  requires(!std::same_as<T, bool>) Json(T v);  // at most INT64_MAX
  template <class T>
  Json(const std::optional<T>& v);

  bool is_null() const { return std::holds_alternative<std::monostate>(value_); }
  const bool* if_bool() const { return std::get_if<bool>(&value_); }
  const int64_t* if_int() const { return std::get_if<int64_t>(&value_); }
  const double* if_double() const { return std::get_if<double>(&value_); }  // not for integers
  const std::string* if_string() const { return std::get_if<std::string>(&value_); }
  const Array* if_array() const { return std::get_if<Array>(&value_); }
  const Object* if_object() const { return std::get_if<Object>(&value_); }
  std::optional<double> number() const;  // of an integer or a double

  // The member `key` of an object; null when there is none or this is no object. Linear.
  const Json* find(std::string_view key) const;
  // The same, but what is absent reads as a null value; an element of an array likewise.
  const Json& operator[](std::string_view key) const;
  const Json& operator[](const char* key) const { return (*this)[std::string_view(key)]; }
  template <std::integral T>
  const Json& operator[](T element) const {
    return at(static_cast<size_t>(element));
  }
  template <std::integral T>  // so that 0 is no null pointer of a key
  const Json& operator[](T element) {
    return at(static_cast<size_t>(element));
  }
  size_t size() const;  // of an array or an object; 0 otherwise

  // Members and elements to change or add; a null value becomes an object or an array.
  Json& operator[](std::string_view key);
  Json& operator[](const char* key) { return (*this)[std::string_view(key)]; }
  void add(std::string key, Json value);  // no search: `key` must be new
  Json& push_back(Json value);            // the new element

  // Numbers are compared by value, 1 and 1.0 alike.
  friend bool operator==(const Json& a, const Json& b) { return equal(a, b); }

  // `indent` spaces a level, a line for each member and element (lists of plain values stay on one line), or without any
  // space when negative. Not-a-number and infinity, which JSON lacks, are written as null; bytes that are no UTF-8 as U+FFFD.
  std::string dump(int indent = -1) const;

 private:
  const Json& at(size_t element) const;
  static bool equal(const Json& a, const Json& b);
  void dump_to(std::string& out, int indent, int level) const;
  std::variant<std::monostate, bool, int64_t, double, std::string, Array, Object> value_;
};

struct Json::Member {
  std::string key;
  Json value;
  bool operator==(const Member&) const = default;
};

// Here, where Member is complete: the variant must know how to destroy it.
inline Json::Json() = default;
inline Json::Json(std::nullptr_t) {}
inline Json::Json(bool v) : value_(v) {}
inline Json::Json(double v) : value_(v) {}
inline Json::Json(const char* v) : value_(std::string(v)) {}
inline Json::Json(std::string_view v) : value_(std::string(v)) {}
inline Json::Json(std::string v) : value_(std::move(v)) {}
inline Json::Json(Array v) : value_(std::move(v)) {}
inline Json::Json(Object v) : value_(std::move(v)) {}
inline Json::Json(std::initializer_list<Member> members) : value_(Object(members)) {}
template <std::integral T>
requires(!std::same_as<T, bool>) inline Json::Json(T v) : value_(static_cast<int64_t>(v)) {}
template <class T>
inline Json::Json(const std::optional<T>& v) {
  if (v) *this = Json(*v);
}

// What a file may make us hold: one value costs up to about 100 bytes.
struct JsonLimits {
  size_t max_bytes = size_t{16} << 20;
  size_t max_values = size_t{1} << 21;
  int max_depth = 32;
  bool unique_names = true;  // false: of members with one name the last counts
};

// Errors: invalid_argument "[json] <where>: ..." for a syntax error (with its byte), invalid UTF-8,
// a repeated member, or more than the limits. Numbers beyond int64 are held as double.
Json parse_json(std::string_view text, const std::string& where, const JsonLimits& limits = {});
// Empty instead of an error.
std::optional<Json> try_parse_json(std::string_view text, const JsonLimits& limits = {});

// Errors: io when the file cannot be read; those of parse_json.
Json read_json_file(const std::string& path, const JsonLimits& limits = {});
void write_json_file(const std::string& path,
                     const Json& value);  // indented by 2, durable; errors: io

// Of one member of an object, which `key` names.
struct FieldError : Error {
  FieldError(std::string_view op, const std::string& what, std::string_view which)
      : Error(Errc::invalid_argument, op, what), key(which) {}
  std::string key;
};

// Typed reads from one object, with errors that name file and key: "[op] <where>: heads is "x":
// ...". The _or forms return the fallback when the key is absent or null. What is
// wrong is a FieldError.
class JsonFields {
 public:
  JsonFields(const Json& object, std::string op, std::string where);
  bool has(std::string_view key);
  int64_t integer(std::string_view key);
  double number(std::string_view key);
  bool boolean(std::string_view key);
  const std::string& text(std::string_view key);
  const Json::Array& list(std::string_view key);
  int64_t integer_or(std::string_view key, int64_t fallback);
  double number_or(std::string_view key, double fallback);
  bool boolean_or(std::string_view key, bool fallback);
  std::string text_or(std::string_view key, const std::string& fallback);
  // Index of the text in `names`; the error lists them.
  size_t choice(std::string_view key, std::span<const std::string_view> names);
  // Errors: invalid_argument naming the first member that no call above asked for.
  void reject_others() const;
  [[noreturn]] void fail(std::string_view key, std::string_view what) const;

 private:
  const Json& at(std::string_view key);
  const Json& object_;
  std::string op_, where_;
  std::vector<std::string> asked_;
};

}  // namespace saturate
