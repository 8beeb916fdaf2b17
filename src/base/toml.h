// SPDX-License-Identifier: Apache-2.0
// TOML as a tree that knows its lines: for files whose tables are not the keys of a run (config.h).
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace saturate {

struct TomlMember;
struct TomlNode {
  using Array = std::vector<TomlNode>;
  using Table = std::vector<TomlMember>;
  std::variant<bool, int64_t, double, std::string, Array, Table> value;
  int line = 0;  // where it stands, from 1
  const Array* if_array() const { return std::get_if<Array>(&value); }
  const Table* if_table() const { return std::get_if<Table>(&value); }
};
struct TomlMember {
  std::string key;
  TomlNode node;
  int line = 0;  // of the key
};

// The whole text as a table. Dates and times are refused: no file of ours has them.
// Errors: invalid_argument with source:line:column.
TomlNode parse_toml(std::string_view text, const std::string& source);

// The content of a file of at most 1 MiB. Errors: io (cannot read), invalid_argument (larger).
std::string read_toml_text(const std::string& path);

}  // namespace saturate
