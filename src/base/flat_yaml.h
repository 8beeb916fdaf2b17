// SPDX-License-Identifier: Apache-2.0
// The part of YAML that Marian's models, vocabularies and configurations are written in.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace saturate {

// A key and its value: one scalar, or the scalars of a list.
struct YamlEntry {
  std::string key;
  std::vector<std::string> values;
  bool is_list = false;
};

// The entries of one mapping of scalars and lists of scalars, in their order; plain, single- and
// double-quoted, lists on lines of their own or in brackets, "? key" with ": value" below. Scalars are
// text: nothing becomes a number or a boolean. Memory is bounded by the text.
// Errors: invalid_argument naming `where` and the line: other YAML (mappings in mappings, anchors,
// blocks of text), a damaged escape.
// Source: YAML 1.2.2, sections 7 and 8.
std::vector<YamlEntry> parse_flat_yaml(std::string_view text, const std::string& where);

// The entry of a key; the last where there are several, null where there is none.
const YamlEntry* find_entry(const std::vector<YamlEntry>& entries, std::string_view key);

}  // namespace saturate
