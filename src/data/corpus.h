// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data/text_reader.h"

namespace saturate::data {

enum class CorpusFormat : uint8_t {
  parallel,  // two files, line i of one translates line i of the other
  tsv,       // source<TAB>target
  jsonl,     // an object a line: see CorpusSpec
  lines,     // text for a language model, one document a line
  stream,    // text for a language model, each file one document
};

// What to read. jsonl takes the strings under source_key and target_key, either of the line's
// object or of its member "translation" (keys are then language codes: en, de). A language model
// reads jsonl with text_key alone (source_key empty).
struct CorpusSpec {
  CorpusFormat format = CorpusFormat::parallel;
  std::vector<std::string> paths;  // parallel: source, target; otherwise one or more, read in turn
  std::string source_key = "source", target_key = "target";
  std::string text_key = "text";
  int64_t max_line_bytes = kMaxLineBytes;
  bool skip_bad_lines = false;  // count them instead of failing
  std::vector<Sample> samples;  // of each file, where not all is read; not for parallel text
  bool monolingual() const {
    return format == CorpusFormat::lines || format == CorpusFormat::stream ||
           (format == CorpusFormat::jsonl && source_key.empty());
  }
};

// For a language model `source` is empty. With `stream` each line is one piece with its line feed,
// and ends_document is true on the last one of a file alone.
struct SentencePair {
  std::string source, target;
  bool ends_document = true;
};

// Lines left out; a pair with a bad line on either side is one.
struct BadLines {
  static constexpr size_t kNamed = 5;
  int64_t count = 0;
  std::vector<std::string> first;  // what is wrong with the first kNamed of them, with file:line
};

// Reads once, in order, in constant memory. One thread at a time.
class Corpus {
 public:
  virtual ~Corpus() = default;
  // False at the end. Errors: as TextReader, and BadLine naming file:line for wrong fields;
  // different line counts name both counts. With skip_bad_lines BadLine is none of them.
  bool next(SentencePair& pair);
  const BadLines& bad_lines() const noexcept { return bad_lines_; }

 protected:
  explicit Corpus(bool skip_bad_lines) : skip_(skip_bad_lines) {}
  // Reads on after a BadLine.
  virtual bool read(SentencePair& pair) = 0;
  bool skips() const noexcept { return skip_; }
  void note(const BadLine& bad);

 private:
  const bool skip_;
  BadLines bad_lines_;
};

std::unique_ptr<Corpus> open_corpus(const CorpusSpec& spec);

// From file names and count: two files are parallel; .tsv and .jsonl (.json) by their names, also
// before .gz or .zst; anything else is text, one document a line. Errors: invalid_argument.
CorpusFormat guess_format(const std::vector<std::string>& paths);

}  // namespace saturate::data
