// SPDX-License-Identifier: Apache-2.0
// Trains SentencePiece on a sample of lines.
#include <fmt/format.h>
#include <sentencepiece_trainer.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>

#include "base/counted.h"
#include "base/error.h"
#include "base/philox.h"
#include "base/utf8.h"
#include "data/tokenizer.h"

namespace saturate::data {
namespace {

constexpr size_t kMaxSampleBytes = 4096;  // of one line; SentencePiece drops longer ones by default

// What SentencePiece may see of a line next: all of it, or so much of a long one, up to a space where one
// is near. Takes it off `line`.
std::string_view next_piece(std::string_view& line) {
  std::string_view piece = utf8_prefix(line, kMaxSampleBytes);
  if (piece.empty()) piece = line.substr(0, kMaxSampleBytes);  // no UTF-8
  if (piece.size() < line.size()) {
    const size_t space = piece.find_last_of(" \t");
    if (space != piece.npos && space > kMaxSampleBytes / 2) piece = piece.substr(0, space);
  }
  line.remove_prefix(piece.size());
  return piece;
}

bool has_text(std::string_view line) { return line.find_first_not_of(" \t\r\n") != line.npos; }

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

// Leaves lines out evenly until the rest has about `most` bytes.
void thin_out(std::vector<std::string>& lines, int64_t most) {
  int64_t bytes = 0;
  for (const std::string& line : lines) bytes += std::ssize(line);
  if (bytes <= most) return;
  const double share = static_cast<double>(most) / static_cast<double>(bytes);
  size_t kept = 0;
  for (size_t i = 0; i < lines.size(); ++i) {
    const double due = static_cast<double>(i + 1) * share;
    if (static_cast<double>(kept) < due) lines[kept++].swap(lines[i]);
  }
  lines.resize(kept);
}

// SentencePiece at work in a thread that an interrupt leaves behind: hence shared, and nothing
// borrowed.
struct Job {
  std::vector<std::string> sample;
  std::unordered_map<std::string, std::string> settings;
  std::string model;
  sentencepiece::util::Status status;
  std::exception_ptr failure;  // out of memory
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
};

void run(const std::shared_ptr<Job>& job, const TokenizerTraining& options) {
  std::thread worker([job] {
    try {
      SampleIterator lines(job->sample);
      job->status = sentencepiece::SentencePieceTrainer::Train(job->settings, &lines, &job->model);
    } catch (...) {
      job->failure = std::current_exception();
    }
    {
      const std::lock_guard lock(job->mutex);
      job->done = true;
    }
    job->changed.notify_one();
  });
  std::unique_lock lock(job->mutex);
  while (!job->changed.wait_for(lock, std::chrono::milliseconds(100), [&] { return job->done; })) {
    if (options.interrupt.requested()) {
      worker.detach();
      throw Interrupted();
    }
    if (options.progress) options.progress({.lines_learnt_from = std::ssize(job->sample)});
  }
  lock.unlock();
  worker.join();
  if (job->failure) std::rethrow_exception(job->failure);
}

// Uniform sample in one pass. Source: Vitter, "Random sampling with a reservoir", 1985, algorithm
// R.
std::vector<std::string> sample_lines(const std::function<bool(std::string_view&)>& next_line,
                                      const TokenizerTraining& options) {
  std::vector<std::string> sample;
  const auto room = static_cast<uint64_t>(options.max_lines);
  uint64_t seen = 0;
  std::string_view line;
  for (int64_t read = 0; next_line(line);) {
    if (++read % 1024 == 0) {
      options.interrupt.check();
      if (options.progress) options.progress({.lines_read = read});
    }
    while (!line.empty()) {
      const std::string_view piece = next_piece(line);
      uint64_t at = seen++;
      if (at >= room) {
        const Random4 r = philox4x32(options.seed, at, 0);
        at = ((static_cast<uint64_t>(r.x[0]) << 32) | r.x[1]) % seen;
        if (at < room) sample[at] = piece;
      } else {
        sample.emplace_back(piece);
      }
    }
  }
  thin_out(sample, options.max_bytes);
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
      !(options.character_coverage >= 0.98 && options.character_coverage <= 1.0))
    throw Error(Errc::invalid_argument, "tokenizer",
                fmt::format("vocab_size {}, max_lines {}, character_coverage {}: they must be 8 to "
                            "1048576, at least 1, and 0.98 to 1 (the range of SentencePiece)",
                            options.vocab_size, options.max_lines, options.character_coverage));
  const auto job = std::make_shared<Job>();
  job->sample = sample_lines(next_line, options);
  if (std::ranges::none_of(job->sample, has_text))
    throw Error(Errc::invalid_argument, "tokenizer",
                options.text_name + ": no line has text to train the tokenizer on; give some text");
  // num_threads is fixed because it decides the order of sums, and so the vocabulary.
  auto& settings = job->settings;
  settings = {{"model_type", model_type(options.kind)},
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
  run(job, options);
  if (!job->status.ok())
    throw Error(Errc::invalid_argument, "tokenizer",
                fmt::format("{}: SentencePiece cannot train a vocabulary of {} on {}: {}; raise "
                            "data.vocab_size, lower data.character_coverage, or give more text",
                            options.text_name, options.vocab_size,
                            counted(job->sample.size(), "line"), reason(job->status.ToString())));
  return parse(job->model, "the trained tokenizer");
}

}  // namespace saturate::data
