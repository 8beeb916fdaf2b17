// SPDX-License-Identifier: Apache-2.0
#include "train/named_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "base/text.h"

namespace saturate::train {
namespace {

namespace fs = std::filesystem;

bool is_name(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](const char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
  });
}

[[noreturn]] void reject(const std::string& what) {
  throw Error(Errc::invalid_argument, "data", what);
}

std::vector<NamedText> parse_all(const std::vector<std::string>& elements, const char* key,
                                 std::vector<std::string> taken) {
  std::vector<NamedText> texts;
  for (const std::string& element : elements) {
    texts.push_back(parse_named_text(element));
    const NamedText& t = texts.back();
    if (std::ranges::find(taken, t.name) != taken.end())
      reject(fmt::format("{}: two sets are named {}; give each a name of its own", key, t.name));
    if (std::ranges::find(t.paths, "-") != t.paths.end())
      reject(
          fmt::format("{}: {} is standard input (-), which only data.train and data.valid can "
                      "be; name a file",
                      key, t.name));
    taken.push_back(t.name);
  }
  return texts;
}

}  // namespace

bool has_name(const std::string& first_file) {
  const size_t equals = first_file.find('=');
  return equals != std::string::npos && is_name(first_file.substr(0, equals)) &&
         !fs::exists(first_file);
}

NamedText named_text(std::vector<std::string> files) {
  NamedText text;
  if (files.empty()) return text;
  std::string& first = files[0];
  if (has_name(first)) {
    const size_t equals = first.find('=');
    text.name = first.substr(0, equals);
    first = first.substr(equals + 1);
  } else {
    for (const char c : fs::path(first).filename().string()) {
      if (c == '.' && !text.name.empty()) break;
      text.name += is_name(std::string_view(&c, 1)) ? c : '_';
    }
  }
  text.paths = std::move(files);
  return text;
}

NamedText parse_named_text(const std::string& element) {
  const size_t equals = element.find('=');
  NamedText text;
  if (equals != std::string::npos) text.name = trim(element.substr(0, equals));
  if (!is_name(text.name)) {
    reject(
        fmt::format("'{}' is no set of text; write NAME=SOURCE,TARGET or NAME=FILE, the name of "
                    "letters, digits, '.', '_' and '-'",
                    element));
  }
  std::string_view rest = std::string_view(element).substr(equals + 1);
  for (size_t comma = 0; comma != std::string_view::npos;
       rest.remove_prefix(std::min(rest.size(), comma + 1))) {
    comma = rest.find(',');
    text.paths.emplace_back(trim(rest.substr(0, comma)));
    if (text.paths.back().empty()) reject(fmt::format("'{}' lacks a file", element));
    if (comma == std::string_view::npos) break;
  }
  return text;
}

std::string element_of(const NamedText& text) {
  for (const std::string& path : text.paths) {
    if (path.find(',') != std::string::npos)
      reject(fmt::format("{}: a comma separates the files of a set; give it another name", path));
  }
  return fmt::format("{}={}", text.name, fmt::join(text.paths, ","));
}

std::vector<std::string> elements_of(std::vector<NamedText> texts, std::vector<std::string> taken) {
  std::vector<std::string> elements;
  for (NamedText& text : texts) {
    const std::string name = text.name;
    for (int number = 2; std::ranges::find(taken, text.name) != taken.end(); ++number)
      text.name = fmt::format("{}-{}", name, number);
    taken.push_back(text.name);
    elements.push_back(element_of(text));
  }
  return elements;
}

std::vector<NamedText> further_validation_texts(const RunConfig& config) {
  if (!config.data.more_valid.empty() && config.data.valid.empty())
    reject("data.more_valid names further validation sets; give the first as data.valid");
  return parse_all(config.data.more_valid, "data.more_valid", {config.data.valid_name});
}

std::vector<NamedText> test_texts(const RunConfig& config) {
  return parse_all(config.data.test, "data.test", {});
}

}  // namespace saturate::train
