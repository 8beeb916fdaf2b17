// SPDX-License-Identifier: Apache-2.0
#include "data/corpus.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/counted.h"
#include "base/error.h"
#include "base/json.h"

namespace saturate::data {
namespace {

class ParallelCorpus : public Corpus {
 public:
  explicit ParallelCorpus(const CorpusSpec& spec)
      : Corpus(spec.skip_bad_lines),
        source_(spec.paths[0], spec.max_line_bytes),
        target_(spec.paths[1], spec.max_line_bytes) {}

  bool read(SentencePair& pair) override {
    std::optional<BadLine> bad;
    const bool has_source = take(source_, pair.source, bad);
    const bool has_target = take(target_, pair.target, bad);
    if (has_source != has_target) {
      count_lines(source_);
      count_lines(target_);
      throw Error(Errc::invalid_argument, "corpus",
                  fmt::format("{} has {} and {} has {}: line i of one must translate line i of "
                              "the other; find where they part or align them again",
                              source_.name(), counted(source_.line_number(), "line"),
                              target_.name(), target_.line_number()));
    }
    if (bad) throw BadLine(*bad);
    pair.ends_document = true;
    return has_source;
  }

 private:
  // A bad line of one side must not stop the other from advancing: the pairs would part.
  static bool take(TextReader& from, std::string& dst, std::optional<BadLine>& bad) {
    std::string_view line;
    try {
      if (!from.next(line)) return false;
      dst = line;
    } catch (const BadLine& e) {
      if (!bad) bad = e;
    }
    return true;
  }

  void count_lines(TextReader& reader) const {
    std::string rest;
    for (std::optional<BadLine> bad; take(reader, rest, bad);)
      if (bad && !skips()) throw BadLine(*bad);
  }

  TextReader source_, target_;
};

void open_file(const CorpusSpec& spec, size_t file, std::optional<TextReader>& reader) {
  if (file < spec.samples.size() && spec.samples[file].bytes > 0)
    reader.emplace(spec.paths[file], spec.max_line_bytes, spec.samples[file]);
  else
    reader.emplace(spec.paths[file], spec.max_line_bytes);
}

// Files read one after the other, a record a line.
class LineCorpus : public Corpus {
 public:
  explicit LineCorpus(CorpusSpec spec) : Corpus(spec.skip_bad_lines), spec_(std::move(spec)) {}

  bool read(SentencePair& pair) override {
    std::string_view line;
    while (!reader_ || !reader_->next(line)) {
      if (file_ == spec_.paths.size()) return false;
      open_file(spec_, file_++, reader_);
    }
    pair.source.clear();
    pair.target.clear();
    pair.ends_document = true;
    parse(line, pair);
    return true;
  }

 protected:
  virtual void parse(std::string_view line, SentencePair& pair) { pair.target = line; }
  const CorpusSpec spec_;
  std::optional<TextReader> reader_;

 private:
  size_t file_ = 0;
};

class TsvCorpus : public LineCorpus {
  using LineCorpus::LineCorpus;
  void parse(std::string_view line, SentencePair& pair) override {
    const auto tabs = std::count(line.begin(), line.end(), '\t');
    if (tabs != 1)
      reader_->fail(
          fmt::format("the line has {} field{}; a line is source<TAB>target, so it needs 2",
                      tabs + 1, tabs == 0 ? "" : "s"));
    const size_t tab = line.find('\t');
    pair.source = line.substr(0, tab);
    pair.target = line.substr(tab + 1);
  }
};

class JsonCorpus : public LineCorpus {
  using LineCorpus::LineCorpus;
  void take(const Json& object, const std::string& key, std::string& dst) {
    const std::string* text = object[key].if_string();
    if (text == nullptr)
      reader_->fail(
          fmt::format("the object has no string under \"{}\"; fix the line or name the keys "
                      "with data.languages (a language model's one key)",
                      key));
    dst = *text;
    if (dst.find('\0') != std::string::npos)
      reader_->fail(fmt::format("the string under \"{}\" has a NUL character; remove it", key));
  }

  void parse(std::string_view line, SentencePair& pair) override {
    constexpr JsonLimits kLenient{
        .max_bytes = SIZE_MAX, .max_values = SIZE_MAX, .max_depth = 512, .unique_names = false};
    const std::optional<Json> value = try_parse_json(line, kLenient);
    if (!value || !value->if_object())
      reader_->fail(
          "the line is not a JSON object; JSONL has one object such as {\"source\": \"...\", "
          "\"target\": \"...\"} on each line");
    if (spec_.monolingual()) return take(*value, spec_.text_key, pair.target);
    const Json& inner = std::as_const(*value)["translation"];
    const Json& object = inner.if_object() ? inner : *value;
    take(object, spec_.source_key, pair.source);
    take(object, spec_.target_key, pair.target);
  }
};

// One line ahead, so that the last line of a file is known as such.
class StreamCorpus : public Corpus {
 public:
  explicit StreamCorpus(CorpusSpec spec) : Corpus(spec.skip_bad_lines), spec_(std::move(spec)) {}

  bool read(SentencePair& pair) override {
    while (!has_ahead_) {
      if (file_ == spec_.paths.size()) return false;
      open_file(spec_, file_++, reader_);
      advance();
    }
    pair.source.clear();
    pair.target.swap(ahead_);
    pair.target += '\n';
    advance();
    pair.ends_document = !has_ahead_;
    return true;
  }

 private:
  // Passes over bad lines itself: thrown on, one would take the line before it along.
  void advance() {
    for (;;) {
      try {
        std::string_view line;
        has_ahead_ = reader_->next(line);
        if (has_ahead_) ahead_ = line;
        return;
      } catch (const BadLine& e) {
        if (!skips()) throw;
        note(e);
      }
    }
  }

  const CorpusSpec spec_;
  std::optional<TextReader> reader_;
  std::string ahead_;
  bool has_ahead_ = false;
  size_t file_ = 0;
};

}  // namespace

void Corpus::note(const BadLine& bad) {
  if (bad_lines_.first.size() < BadLines::kNamed) bad_lines_.first.emplace_back(bad.what());
  ++bad_lines_.count;
}

bool Corpus::next(SentencePair& pair) {
  for (;;) {
    try {
      return read(pair);
    } catch (const BadLine& e) {
      if (!skip_) throw;
      note(e);
    }
  }
}

std::unique_ptr<Corpus> open_corpus(const CorpusSpec& spec) {
  const bool parallel = spec.format == CorpusFormat::parallel;
  if (spec.paths.empty() || (parallel && spec.paths.size() != 2))
    throw Error(Errc::invalid_argument, "corpus",
                fmt::format("{} file(s) given; {}", spec.paths.size(),
                            parallel ? "parallel text needs two: the source and the target"
                                     : "name at least one file, or - for standard input"));
  if (std::count(spec.paths.begin(), spec.paths.end(), "-") > 1)
    throw Error(Errc::invalid_argument, "corpus",
                "standard input (-) can be one file only, not two");
  switch (spec.format) {
    case CorpusFormat::parallel:
      return std::make_unique<ParallelCorpus>(spec);
    case CorpusFormat::tsv:
      return std::make_unique<TsvCorpus>(spec);
    case CorpusFormat::jsonl:
      return std::make_unique<JsonCorpus>(spec);
    case CorpusFormat::lines:
      return std::make_unique<LineCorpus>(spec);
    case CorpusFormat::stream:
      return std::make_unique<StreamCorpus>(spec);
  }
  SAT_ASSERT(false);
  return nullptr;
}

CorpusFormat guess_format(const std::vector<std::string>& paths) {
  if (paths.empty())
    throw Error(Errc::invalid_argument, "corpus",
                "no file given; name a corpus, or - for standard input");
  std::string name = paths[0];
  for (const char* packed : {".gz", ".zst"})
    if (name.ends_with(packed)) name.resize(name.size() - std::string_view(packed).size());
  if (name.ends_with(".tsv")) return CorpusFormat::tsv;
  if (name.ends_with(".jsonl") || name.ends_with(".json")) return CorpusFormat::jsonl;
  return paths.size() == 2 ? CorpusFormat::parallel : CorpusFormat::lines;
}

}  // namespace saturate::data
