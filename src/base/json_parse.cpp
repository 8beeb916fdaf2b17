// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"

namespace saturate {
namespace {

// Builds our values from the parser's events and stops at the first breach of a limit. The parser
// itself keeps one bit per open bracket, so nothing grows faster than the text.
class Builder final : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit Builder(const JsonLimits& limits) : limits_(limits) {}

  bool read(std::string_view text) {
    if (text.size() > limits_.max_bytes)
      return stop(fmt::format("larger than {} bytes", limits_.max_bytes));
    return nlohmann::json::sax_parse(text.begin(), text.end(), this) || stop("no valid JSON");
  }

  bool null() override { return put(Json()); }
  bool boolean(bool v) override { return put(Json(v)); }
  bool number_integer(number_integer_t v) override { return put(Json(int64_t{v})); }
  bool number_unsigned(number_unsigned_t v) override {
    const bool fits = v <= static_cast<uint64_t>(INT64_MAX);
    return put(fits ? Json(static_cast<int64_t>(v)) : Json(static_cast<double>(v)));
  }
  bool number_float(number_float_t v, const string_t&) override { return put(Json(v)); }
  bool string(string_t& v) override { return put(Json(std::move(v))); }
  bool binary(binary_t&) override { return stop("binary data"); }
  bool key(string_t& v) override {
    open_.back().key = std::move(v);
    return true;
  }
  bool start_object(std::size_t) override { return open(Kind::object); }
  bool start_array(std::size_t) override { return open(Kind::array); }
  bool end_object() override {
    Level level = close();
    if (!limits_.unique_names) return put(Json(std::move(level.members)));
    std::vector<const std::string*> keys;
    for (const Json::Member& m : level.members) keys.push_back(&m.key);
    std::sort(keys.begin(), keys.end(), [](auto* a, auto* b) { return *a < *b; });
    const auto twice =
        std::adjacent_find(keys.begin(), keys.end(), [](auto* a, auto* b) { return *a == *b; });
    if (twice != keys.end()) return stop(fmt::format("the name \"{:.100}\" occurs twice", **twice));
    return put(Json(std::move(level.members)));
  }
  bool end_array() override { return put(Json(close().elements)); }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    return stop(
        fmt::format("no valid JSON at byte {}; the file is damaged, restore it or copy "
                    "it again",
                    position));
  }

  Json root;
  std::string error;

 private:
  enum class Kind { array, object };
  struct Level {
    Kind kind;
    std::string key;  // of the member being read
    Json::Array elements;
    Json::Object members;
  };

  bool stop(std::string why) {
    if (error.empty()) error = std::move(why);
    return false;
  }
  bool open(Kind kind) {
    if (static_cast<int>(open_.size()) >= limits_.max_depth) {
      return stop(fmt::format("nested deeper than {} levels", limits_.max_depth));
    }
    open_.push_back({kind, {}, {}, {}});
    return true;
  }
  Level close() {
    Level level = std::move(open_.back());
    open_.pop_back();
    return level;
  }
  bool put(Json value) {
    if (++values_ > limits_.max_values) {
      return stop(fmt::format("more than {} values", limits_.max_values));
    }
    if (open_.empty()) {
      root = std::move(value);
    } else if (open_.back().kind == Kind::array) {
      open_.back().elements.push_back(std::move(value));
    } else {
      open_.back().members.push_back({std::move(open_.back().key), std::move(value)});
    }
    return true;
  }

  JsonLimits limits_;
  std::vector<Level> open_;
  size_t values_ = 0;
};

}  // namespace

Json parse_json(std::string_view text, const std::string& where, const JsonLimits& limits) {
  Builder builder(limits);
  if (builder.read(text)) return std::move(builder.root);
  throw Error(Errc::invalid_argument, "json", fmt::format("{}: {}", where, builder.error));
}

std::optional<Json> try_parse_json(std::string_view text, const JsonLimits& limits) {
  Builder builder(limits);
  if (builder.read(text)) return std::move(builder.root);
  return std::nullopt;
}

}  // namespace saturate
