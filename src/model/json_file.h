// SPDX-License-Identifier: Apache-2.0
// JSON values as small files hold them: configurations, tensor headers, manifests.
#pragma once
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace saturate::model {

// One JSON value. Objects keep the order of their members.
class Json {
 public:
  struct Member;
  using Array = std::vector<Json>;
  using Object = std::vector<Member>;

  Json();  // null
  Json(bool v);
  Json(int v);
  Json(int64_t v);
  Json(double v);
  Json(float v);  // the shortest decimal that reads back as this float
  Json(const char* v);
  Json(std::string v);
  Json(Array v);
  Json(Object v);
  static Json object(std::initializer_list<Member> members);

  bool is_null() const { return std::holds_alternative<std::monostate>(value_); }
  const bool* if_bool() const { return std::get_if<bool>(&value_); }
  const int64_t* if_int() const { return std::get_if<int64_t>(&value_); }
  const double* if_double() const { return std::get_if<double>(&value_); }  // not for integers
  const std::string* if_string() const { return std::get_if<std::string>(&value_); }
  const Array* if_array() const { return std::get_if<Array>(&value_); }
  const Object* if_object() const { return std::get_if<Object>(&value_); }

  // The member `key` of an object; null when there is none or this is no object. Linear.
  const Json* find(std::string_view key) const;
  // Adds a member to an object (a null value becomes an object).
  void add(std::string key, Json value);

  // Indented by two spaces. Not-a-number and infinity, which JSON lacks, are written as null.
  std::string dump() const;

 private:
  void dump_to(std::string& out, size_t indent) const;
  std::variant<std::monostate, bool, int64_t, double, std::string, Array, Object> value_;
};

struct Json::Member {
  std::string key;
  Json value;
};

// Here, where Member is complete: the variant must know how to destroy it.
inline Json::Json() = default;
inline Json::Json(bool v) : value_(v) {}
inline Json::Json(int v) : value_(int64_t{v}) {}
inline Json::Json(int64_t v) : value_(v) {}
inline Json::Json(double v) : value_(v) {}
inline Json::Json(const char* v) : value_(std::string(v)) {}
inline Json::Json(std::string v) : value_(std::move(v)) {}
inline Json::Json(Array v) : value_(std::move(v)) {}
inline Json::Json(Object v) : value_(std::move(v)) {}

// What a file may make us hold: one value costs up to about 100 bytes.
struct JsonLimits {
  size_t max_bytes = size_t{16} << 20;
  size_t max_values = size_t{1} << 21;
  int max_depth = 32;
};

// Errors: invalid_argument "[json] <where>: ..." for a syntax error (with its byte), invalid UTF-8,
// a repeated member, or more than the limits. Numbers beyond int64 are held as double.
Json parse_json(std::string_view text, const std::string& where, const JsonLimits& limits = {});

// Errors: io when the file cannot be read; those of parse_json.
Json read_json_file(const std::string& path, const JsonLimits& limits = {});
void write_json_file(const std::string& path, const Json& value);  // durable; errors: io

// Typed reads from one object, with errors that name file and key: "[op] <where>: heads is "x":
// ...". The _or forms return the fallback when the key is absent or null.
class JsonFields {
 public:
  JsonFields(const Json& object, std::string op, std::string where);
  bool has(std::string_view key);
  int64_t integer(std::string_view key);
  double number(std::string_view key);
  bool boolean(std::string_view key);
  const std::string& text(std::string_view key);
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

}  // namespace saturate::model
