// SPDX-License-Identifier: Apache-2.0
// Trains SentencePiece on a sample of lines.
#include <fmt/format.h>
#include <sentencepiece_trainer.h>

#include <string>
#include <unordered_map>

#include "base/error.h"
#include "base/philox.h"
#include "base/utf8.h"
#include "data/tokenizer.h"

namespace saturate::data {
namespace {

constexpr size_t kMaxSampleBytes = 4096;  // of one line; SentencePiece drops longer ones by default

class SampleIterator : public sentencepiece::SentenceIterator {
 public:
  explicit SampleIterator(const std::vector<std::string>& lines) : lines_(lines) {}
  bool done() const override { return at_ == lines_.size(); }
  void Next() override { ++at_; }
  const std::string& value() const override { return lines_[at_]; }
  sentencepiece::util::Status status() const override { return {}; }

 private:
  const std::vector<std::string>& lines_;
  size_t at_ = 0;
};

// Uniform sample in one pass. Source: Vitter, "Random sampling with a reservoir", 1985, algorithm
// R.
std::vector<std::string> sample_lines(const std::function<bool(std::string_view&)>& next_line,
                                      const TokenizerTraining& options) {
  std::vector<std::string> sample;
  const auto room = static_cast<uint64_t>(options.max_lines);
  uint64_t seen = 0;
  std::string_view line;
  while (next_line(line)) {
    line = utf8_prefix(line, kMaxSampleBytes);
    if (line.empty()) continue;
    uint64_t at = seen++;
    if (at >= room) {
      const Random4 r = philox4x32(options.seed, at, 0);
      at = ((static_cast<uint64_t>(r.x[0]) << 32) | r.x[1]) % seen;
      if (at < room) sample[at] = line;
    } else {
      sample.emplace_back(line);
    }
  }
  return sample;
}

const char* model_type(TokenizerTraining::Kind kind) {
  switch (kind) {
    case TokenizerTraining::Kind::unigram:
      return "unigram";
    case TokenizerTraining::Kind::bpe:
      return "bpe";
    case TokenizerTraining::Kind::character:
      return "char";
  }
  return "";
}

// SentencePiece's message without the place in its sources: "Internal: file(line) [condition]
// text".
std::string reason(const std::string& status) {
  const size_t at = status.rfind("] ");
  return status.substr(at == std::string::npos ? 0 : at + 2);
}

}  // namespace

Tokenizer Tokenizer::train(const std::function<bool(std::string_view&)>& next_line,
                           const TokenizerTraining& options) {
  if (options.vocab_size < 8 || options.vocab_size > (1 << 20) || options.max_lines < 1 ||
      !(options.character_coverage > 0.9 && options.character_coverage <= 1.0))
    throw Error(Errc::invalid_argument, "tokenizer",
                fmt::format("vocab_size {}, max_lines {}, character_coverage {}: they must be 8 to "
                            "1048576, at least 1, and above 0.9 up to 1",
                            options.vocab_size, options.max_lines, options.character_coverage));
  const std::vector<std::string> sample = sample_lines(next_line, options);
  if (sample.empty())
    throw Error(Errc::invalid_argument, "tokenizer",
                options.text_name + ": no line has text to train the tokenizer on; give some text");
  SampleIterator lines(sample);
  std::string model;
  // num_threads is fixed because it decides the order of sums, and so the vocabulary.
  std::unordered_map<std::string, std::string> settings{
      {"model_type", model_type(options.kind)},
      {"vocab_size", std::to_string(options.vocab_size - 1)},  // <pad> is ours
      {"character_coverage", fmt::format("{}", options.character_coverage)},
      {"hard_vocab_limit", "false"},
      {"eos_id", "0"},
      {"split_digits", "true"},  // numbers are copied and inflected digit by digit
      {"unk_id", "1"},
      {"bos_id", "-1"},
      {"pad_id", "-1"},
      {"input_sentence_size", "0"},
      {"shuffle_input_sentence", "false"},
      {"num_threads", "8"},
      {"minloglevel", "3"}};
  if (options.text == TokenizerTraining::Text::kept) {
    settings["normalization_rule_name"] = "identity";
    settings["remove_extra_whitespaces"] = "false";
    settings["add_dummy_prefix"] = "false";  // it would come back as a space in front of each line
    settings["allow_whitespace_only_pieces"] = "true";  // indentation
    settings["user_defined_symbols"] = "\n,\t";  // in training a tab separates, so none is learnt
    if (options.vocab_size >= TokenizerTraining::kByteFallback) settings["byte_fallback"] = "true";
  }
  const auto status = sentencepiece::SentencePieceTrainer::Train(settings, &lines, &model);
  if (!status.ok())
    throw Error(
        Errc::invalid_argument, "tokenizer",
        fmt::format("{}: SentencePiece cannot train a vocabulary of {} on {} lines: {}; raise "
                    "data.vocab_size, lower data.character_coverage, or give more text",
                    options.text_name, options.vocab_size, sample.size(),
                    reason(status.ToString())));
  return parse(model, "the trained tokenizer");
}

}  // namespace saturate::data
