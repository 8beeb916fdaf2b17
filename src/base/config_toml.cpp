// SPDX-License-Identifier: Apache-2.0
// Reads TOML; the only file that sees toml++.
#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "base/config.h"
#include "base/config_keys.h"
#include "base/error.h"
#include "base/text.h"
#include "base/toml.h"

namespace saturate {
namespace {

using config::Value;

[[noreturn]] void reject(const std::string& source, const toml::source_position& at,
                         const std::string& what) {
  throw Error(Errc::invalid_argument, "config",
              fmt::format("{}:{}:{}: {}", source, at.line, at.column, what));
}

std::optional<Value> value_of(const toml::node& node) {
  if (const auto* v = node.as_boolean()) return Value(v->get());
  if (const auto* v = node.as_integer()) return Value(v->get());
  if (const auto* v = node.as_floating_point()) return Value(v->get());
  if (const auto* v = node.as_string()) return Value(v->get());
  const toml::array* array = node.as_array();
  if (!array) return std::nullopt;
  std::vector<std::string> texts;
  for (const toml::node& element : *array) {
    const auto* text = element.as_string();
    if (!text) return std::nullopt;
    texts.push_back(text->get());
  }
  return Value(std::move(texts));
}

// toml++ builds one table a dotted part and frees them by recursion, so that 50,000 parts end the
// stack. No key here has more than two; nested values it limits itself.
void require_few_dots(std::string_view text, const std::string& source) {
  constexpr int kMostDots = 16;
  size_t line = 1, line_begin = 0;
  int dots = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '"' || c == '\'') {  // a string: to its end, which toml++ judges
      const std::string_view three = c == '"' ? "\"\"\"" : "'''";
      const bool block = text.substr(i).starts_with(three);
      for (i += block ? 3 : 1; i < text.size(); ++i) {
        if (text[i] == '\n') {
          if (!block) break;  // counted below
          ++line;
          line_begin = i + 1;
        }
        if (c == '"' && text[i] == '\\')
          ++i;
        else if (block ? text.substr(i).starts_with(three) : text[i] == c)
          break;
      }
      if (block) i += 2;
    } else if (c == '#') {
      i = std::min(text.find('\n', i), text.size()) - 1;
    } else if (c == '.') {
      if (++dots > kMostDots)
        reject(source,
               {static_cast<toml::source_index>(line),
                static_cast<toml::source_index>(i - line_begin + 1)},
               "a key with too many dots; keys are written section.key");
    } else if (std::string_view("=,[]{}\n").find(c) != std::string_view::npos) {
      dots = 0;
    }
    if (i < text.size() && text[i] == '\n') {
      ++line;
      line_begin = i + 1;
    }
  }
}

class Merger {
 public:
  Merger(RunConfig& config, const std::string& source) : config_(config), source_(source) {}

  // Keys are at most section.key, so this goes no deeper than the table it is given and its tables.
  void merge(const toml::table& table, const std::string& prefix) {
    for (const auto& [key, node] : table) {
      const std::string name = prefix + std::string(key.str());
      const toml::table* inner = node.as_table();
      if (inner && prefix.empty() && is_section(name)) {
        merge(*inner, name + ".");
      } else {
        set(name, node, key.source().begin);
      }
    }
  }

 private:
  static std::vector<std::string_view> sections() {
    std::vector<std::string_view> names;
    for (const std::string_view key : config::key_names()) {
      const size_t dot = key.find('.');
      if (dot == std::string_view::npos) continue;
      if (names.empty() || names.back() != key.substr(0, dot)) names.push_back(key.substr(0, dot));
    }
    return names;
  }
  static bool is_section(const std::string& name) {
    const auto all = sections();
    return std::find(all.begin(), all.end(), name) != all.end();
  }

  void set(const std::string& name, const toml::node& node, const toml::source_position& at) {
    if (name == "parallel" && node.is_string()) {
      try {
        set_parallel(config_, node.as_string()->get());
      } catch (const Error& e) {
        const std::string_view text = e.what();  // "[config] ..."
        reject(source_, node.source().begin, std::string(text.substr(text.find(']') + 2)));
      }
      return;
    }
    const config::Key* key = config::find_key(name);
    if (!key && node.is_table()) {
      reject(source_, at,
             fmt::format("unknown section '{:.100}'{}", name, did_you_mean(name, sections())));
    }
    if (!key) {
      reject(source_, at,
             fmt::format("unknown key '{:.100}'{}", name, did_you_mean(name, config::key_names())));
    }
    const std::optional<Value> value = value_of(node);
    const auto& where = node.source().begin;
    if (!value) reject(source_, where, fmt::format("{} must be {}", name, type_text(*key)));
    const std::string problem = assign(*key, config_, *value);
    if (!problem.empty()) reject(source_, where, fmt::format("{} {}", name, problem));
  }

  RunConfig& config_;
  const std::string& source_;
};

}  // namespace

std::optional<std::string> config::toml_string(std::string_view quoted) {
  // Whoever begins so ends with the quote, a comment or another line; two of these are none.
  if (quoted.size() < 2 || quoted.back() != quoted.front() ||
      quoted.find('\n') != std::string_view::npos) {
    return std::nullopt;
  }
  try {
    return toml::parse("text = " + std::string(quoted))["text"].value<std::string>();
  } catch (const toml::parse_error&) {
    return std::nullopt;
  }
}

void merge_toml(RunConfig& config, std::string_view text, const std::string& source) {
  require_few_dots(text, source);
  RunConfig merged = config;
  try {
    const toml::table table = toml::parse(text, source);
    Merger(merged, source).merge(table, "");
  } catch (const toml::parse_error& e) {
    reject(source, e.source().begin, std::string(e.description()));
  }
  config = std::move(merged);
}

namespace {

// As deep as toml++ lets a text nest.
TomlNode tree_of(const toml::node& node, const std::string& source) {
  TomlNode out{.value = false, .line = static_cast<int>(node.source().begin.line)};
  if (const auto* truth = node.as_boolean()) {
    out.value = truth->get();
  } else if (const auto* integer = node.as_integer()) {
    out.value = integer->get();
  } else if (const auto* number = node.as_floating_point()) {
    out.value = number->get();
  } else if (const auto* text = node.as_string()) {
    out.value = text->get();
  } else if (const auto* array = node.as_array()) {
    TomlNode::Array elements;
    for (const toml::node& e : *array) elements.push_back(tree_of(e, source));
    out.value = std::move(elements);
  } else if (const auto* table = node.as_table()) {
    TomlNode::Table members;
    for (const auto& [key, member] : *table) {
      members.push_back({std::string(key.str()), tree_of(member, source),
                         static_cast<int>(key.source().begin.line)});
    }
    out.value = std::move(members);
  } else {
    reject(source, node.source().begin, "a date or a time has no meaning here; remove it");
  }
  return out;
}

}  // namespace

TomlNode parse_toml(std::string_view text, const std::string& source) {
  require_few_dots(text, source);
  try {
    const toml::table table = toml::parse(text, source);
    return tree_of(table, source);
  } catch (const toml::parse_error& e) {
    reject(source, e.source().begin, std::string(e.description()));
  }
}

std::string read_toml_text(const std::string& path) {
  constexpr size_t kLargest = size_t{1} << 20;
  std::ifstream file(path, std::ios::binary);
  if (!file)
    throw Error(Errc::io, "config",
                fmt::format("{}: cannot open the configuration file: {}; check the path", path,
                            std::strerror(errno)));
  std::string text(kLargest + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  if (file.bad() || (text.empty() && !file.eof())) {
    throw Error(Errc::io, "config", fmt::format("{}: cannot read the configuration file", path));
  }
  if (text.size() > kLargest) {
    throw Error(Errc::invalid_argument, "config",
                fmt::format("{}: larger than 1 MiB; this is no configuration file", path));
  }
  return text;
}

void merge_toml_file(RunConfig& config, const std::string& path) {
  merge_toml(config, read_toml_text(path), path);
}

}  // namespace saturate
