// SPDX-License-Identifier: Apache-2.0
// The list of configuration keys, for the files that read and write configurations.
#pragma once
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/config.h"

namespace saturate::config {

// Where a key's value lies in a RunConfig; the pointer's type is the key's type.
using Slot = std::variant<bool*, int64_t*, double*, std::string*, Bytes*, std::vector<std::string>*,
                          std::optional<bool>*, std::optional<int64_t>*, std::optional<double>*,
                          std::optional<std::string>*>;

// A value in one of the types that TOML and --set can spell.
using Value = std::variant<bool, int64_t, double, std::string, std::vector<std::string>>;

constexpr double kUnbounded = 1e15;  // upper end for counts that have no natural one

struct Key {
  const char* name;  // "optimizer.lr"
  Slot (*slot)(RunConfig&);
  const char* help;
  double low = 0, high = 0;  // numbers only: the range, both ends allowed
  const char* choices = "";  // texts only: "a|b|c"; empty for any text
};

std::span<const Key> keys();
std::span<const std::string_view> key_names();
const Key* find_key(std::string_view name);

std::string type_text(const Key& key);  // "whole number from 1 to 64", "one of a, b, c"
std::string value_text(const Key& key,
                       const RunConfig& config);  // as TOML; "" when the preset decides

// Stores `value`; whole numbers are taken for real ones. Returns "" or what is wrong with it, as
// "must be <type>, got <value>".
std::string assign(const Key& key, RunConfig& config, const Value& value);

// The text of one TOML string, "..." or '...', alone on its line; nothing for anything else.
std::optional<std::string> toml_string(std::string_view quoted);

}  // namespace saturate::config
