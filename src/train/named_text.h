// SPDX-License-Identifier: Apache-2.0
// Validation and test sets by name. In a configuration each is one text, "NAME=SOURCE,TARGET" or
// "NAME=FILE"; on the command line its files stand apart, and NAME= may be left out.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "base/config.h"

namespace saturate::train {

struct NamedText {
  std::string name;                // letters, digits, '.', '_' and '-'
  std::vector<std::string> paths;  // as data.valid takes them
};

// The files of one --valid or --test; without NAME= the name is that of the first file up to its
// first dot. `NAME=` is part of the path where a file of that whole path exists.
NamedText named_text(std::vector<std::string> files);
bool has_name(const std::string& first_file);

// To and from an element of data.more_valid and data.test. Errors: invalid_argument for an element
// without a name or a file, and for a path with a comma, which an element cannot hold.
NamedText parse_named_text(const std::string& element);
std::string element_of(const NamedText& text);

// Elements of several --valid or --test. A name that stands for two of them, or is in `taken`, gets
// a number: "test", "test-2".
std::vector<std::string> elements_of(std::vector<NamedText> texts,
                                     std::vector<std::string> taken = {});

// All validation sets after the first, and all test sets. Errors: as parse_named_text;
// invalid_argument for a name that is given twice, and for standard input.
std::vector<NamedText> further_validation_texts(const RunConfig& config);
std::vector<NamedText> test_texts(const RunConfig& config);

}  // namespace saturate::train
