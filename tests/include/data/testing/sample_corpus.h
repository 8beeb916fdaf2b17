// SPDX-License-Identifier: Apache-2.0
// For tests: text of two made-up languages whose sentence lengths vary and correlate, as in real
// pairs.
#pragma once
#include <string>
#include <vector>

#include "base/error.h"
#include "base/philox.h"
#include "base/testing/temp_folder.h"
#include "data/corpus.h"
#include "data/token_cache_builder.h"
#include "data/tokenizer.h"

namespace saturate::data {

class SampleFolder {
 public:
  std::string file(const std::string& name) const { return folder_ / name; }
  std::string write(const std::string& name, std::string_view bytes) const {
    testing::write_file(file(name), bytes);
    return file(name);
  }

 private:
  testing::TempFolder folder_;
};

// The message of the Error that `call` throws; "" when it throws none.
template <class Call>
std::string error_of(Call&& call) {
  try {
    call();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

inline std::string test_sentence(uint64_t seed, int64_t words) {
  static const char* const kWords[] = {"ein",  "Haus",         "gr\xC3\xBCn", "und",
                                       "Hund", "l\xC3\xA4uft", "am",          "See"};
  std::string text;
  for (int64_t w = 0; w < words; ++w) {
    if (w > 0) text += ' ';
    text += kWords[philox4x32(seed, static_cast<uint64_t>(w), 1).x[0] % 8];
  }
  return text;
}

// Pairs of 1 to about 36 words; the target is longer by a third on average.
inline CorpusSpec test_parallel_corpus(const SampleFolder& dir, int64_t pairs) {
  std::string source, target;
  for (int64_t i = 0; i < pairs; ++i) {
    const Random4 r = philox4x32(11, static_cast<uint64_t>(i), 0);
    const int64_t words = 1 + r.x[0] % 9 + r.x[1] % 9 + r.x[2] % 9;
    source += test_sentence(static_cast<uint64_t>(i), words) + "\n";
    target += test_sentence(static_cast<uint64_t>(i), words + r.x[3] % (words / 2 + 2)) + "\n";
  }
  CorpusSpec spec;
  spec.paths = {dir.write("train.src", source), dir.write("train.tgt", target)};
  return spec;
}

inline CorpusSpec test_documents(const SampleFolder& dir, int64_t documents, CorpusFormat format) {
  std::string text;
  for (int64_t i = 0; i < documents; ++i)
    text += test_sentence(static_cast<uint64_t>(i),
                          philox4x32(12, static_cast<uint64_t>(i), 0).x[0] % 40) +
            "\n";
  CorpusSpec spec;
  spec.format = format;
  spec.paths = {dir.write("documents", text)};
  return spec;
}

inline Tokenizer test_tokenizer(int64_t vocab = 40) {
  uint64_t i = 0;
  std::string line;
  TokenizerTraining options;
  options.vocab_size = vocab;
  return Tokenizer::train(
      [&](std::string_view& text) {
        line = test_sentence(i, 1 + static_cast<int64_t>(i % 20));
        text = line;
        return i++ < 300;
      },
      options);
}

inline TokenCache test_cache(const SampleFolder& dir, const CorpusSpec& corpus,
                             const Tokenizer& tokenizer) {
  TokenCacheSpec spec{corpus, tokenizer, tokenizer, {}, dir.file("tokens"), 2};
  return open_or_build_token_cache(spec);
}

}  // namespace saturate::data
