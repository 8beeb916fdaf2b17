// SPDX-License-Identifier: Apache-2.0
#include "train/corpora.h"

#include <fmt/format.h>

#include <filesystem>

#include "base/error.h"
#include "base/log.h"
#include "data/corpus.h"
#include "data/token_cache_builder.h"
#include "train/model_setup.h"

namespace saturate::train {
namespace {

namespace fs = std::filesystem;
using data::CorpusFormat;
using data::CorpusSpec;
using data::Tokenizer;

CorpusSpec corpus_spec(const RunConfig& config, const std::vector<std::string>& paths, bool lm) {
  CorpusSpec spec;
  spec.paths = paths;
  const std::string& f = config.data.format;
  if (f == "auto") {
    spec.format = data::guess_format(paths);
  } else {
    spec.format = f == "parallel" ? CorpusFormat::parallel
                  : f == "tsv"    ? CorpusFormat::tsv
                  : f == "jsonl"  ? CorpusFormat::jsonl
                  : f == "stream" ? CorpusFormat::stream
                                  : CorpusFormat::lines;
  }
  if (config.data.languages.size() == 2) {
    spec.source_key = config.data.languages[0];
    spec.target_key = config.data.languages[1];
  }
  if (lm && spec.format == CorpusFormat::jsonl) spec.source_key.clear();
  if (lm != spec.monolingual()) {
    throw Error(
        Errc::invalid_argument, "data",
        lm ? "a decoder-only model reads text (format lines, stream, or jsonl with \"text\"); "
             "this corpus has two sides"
           : "an encoder-decoder model needs source and target: two files, a .tsv or a .jsonl");
  }
  return spec;
}

data::TokenizerTraining tokenizer_options(const RunConfig& config) {
  using Kind = data::TokenizerTraining::Kind;
  data::TokenizerTraining t;
  t.kind = config.data.tokenizer_type == "bpe"    ? Kind::bpe
           : config.data.tokenizer_type == "char" ? Kind::character
                                                  : Kind::unigram;
  t.vocab_size = config.data.vocab_size;
  t.character_coverage = config.data.character_coverage;
  t.max_lines = config.data.tokenizer_sentences;
  t.seed = static_cast<uint64_t>(config.train.seed);
  return t;
}

enum class Sides { source, target, both };

// Reads the corpus once more for its own purpose: training a tokenizer on one side or both.
Tokenizer train_tokenizer(const RunConfig& config, const CorpusSpec& spec, Sides sides) {
  const auto corpus = data::open_corpus(spec);
  data::SentencePair pair;
  bool target_next = false;
  return Tokenizer::train(
      [&](std::string_view& line) {
        if (sides == Sides::both && target_next) {
          target_next = false;
          line = pair.target;
          return true;
        }
        if (!corpus->next(pair)) return false;
        target_next = true;
        line = sides == Sides::target ? pair.target : pair.source;
        return true;
      },
      tokenizer_options(config));
}

Tokenizers make_tokenizers(const RunConfig& config, const CorpusSpec& spec, bool lm) {
  if (config.data.tokenizer_type == "byte") return {Tokenizer::bytes(), Tokenizer::bytes()};
  if (config.data.tokenizer != "auto") {
    const Tokenizer t = Tokenizer::load(config.data.tokenizer);
    return {t, t};
  }
  if (lm) {
    const Tokenizer t = train_tokenizer(config, spec, Sides::target);
    return {t, t};
  }
  if (config.data.shared_vocabulary) {
    const Tokenizer t = train_tokenizer(config, spec, Sides::both);
    return {t, t};
  }
  return {train_tokenizer(config, spec, Sides::source),
          train_tokenizer(config, spec, Sides::target)};
}

data::TokenCache build_cache(const RunConfig& config, const CorpusSpec& spec, const Tokenizers& t,
                             const std::string& path, const char* what) {
  data::CacheOrigin origin{};
  data::TokenCache cache =
      data::open_or_build_token_cache({.corpus = spec,
                                       .source = t.source,
                                       .target = t.target,
                                       .filter = {.max_source = config.data.max_length,
                                                  .max_target = config.data.max_length,
                                                  .max_ratio = config.data.max_length_ratio},
                                       .path = path,
                                       .threads = static_cast<int>(config.data.workers)},
                                      &origin);
  const data::CacheStats& s = cache.stats();
  log_info(fmt::format(
      "{}: {} of {} {} kept ({} empty, {} too long, {} by ratio), {} source and {} target "
      "tokens{}",
      what, s.counts.kept, s.counts.read, s.monolingual ? "documents" : "pairs", s.counts.empty,
      s.counts.too_long, s.counts.ratio, s.source_tokens, s.target_tokens,
      origin == data::CacheOrigin::reused ? " (cached)" : ""));
  return cache;
}

}  // namespace

void save_tokenizers(const std::string& folder, const Tokenizer& source, const Tokenizer& target) {
  if (target.is_bytes()) return;  // load_tokenizers takes bytes when there is no model
  source.save(folder + "/source.spm");
  target.save(folder + "/target.spm");
}

Tokenizers load_tokenizers(const std::string& folder) {
  const auto path = [&](const char* name) { return folder + "/" + name; };
  if (!fs::exists(path("target.spm"))) return {Tokenizer::bytes(), Tokenizer::bytes()};
  const auto vocab = [&](const char* name) {
    return fs::exists(path(name)) ? path(name) : std::string();
  };
  const std::string target_vocab =
      fs::exists(path("target_vocab.json")) ? "target_vocab.json" : "vocab.json";
  return {Tokenizer::load(path("source.spm"), vocab("vocab.json")),
          Tokenizer::load(path("target.spm"), vocab(target_vocab.c_str()))};
}

Corpora prepare_corpora(const RunConfig& config, const std::string& folder,
                        parallel::Communicator& ranks) {
  const bool lm = is_language_model(config);
  const std::string data = folder + "/data";
  const CorpusSpec train = corpus_spec(config, config.data.train, lm);
  const auto prepare = [&]() -> Corpora {
    fs::create_directories(data);
    // A resumed run keeps the tokenizer it began with, whatever has become of the text.
    const bool known = fs::exists(data + "/target.spm");
    const Tokenizers t = known ? load_tokenizers(data) : make_tokenizers(config, train, lm);
    if (!known) save_tokenizers(data, t.source, t.target);
    Corpora c{.source = t.source,
              .target = t.target,
              .train = build_cache(config, train, t, data + "/train.tokens", "training text"),
              .valid = {},
              .valid_source = {},
              .valid_reference = {}};
    if (config.data.valid.empty()) return c;
    const CorpusSpec valid = corpus_spec(config, config.data.valid, lm);
    c.valid.emplace(build_cache(config, valid, t, data + "/valid.tokens", "validation text"));
    if (lm) return c;
    const auto corpus = data::open_corpus(valid);
    for (data::SentencePair p; corpus->next(p);) {
      if (config.validate.max_sentences > 0 &&
          static_cast<int64_t>(c.valid_source.size()) >= config.validate.max_sentences) {
        break;
      }
      c.valid_source.push_back(p.source);
      c.valid_reference.push_back(p.target);
    }
    return c;
  };
  if (ranks.rank() == 0) {
    Corpora c = prepare();
    ranks.barrier();
    return c;
  }
  ranks.barrier();
  return prepare();  // finds everything made
}

}  // namespace saturate::train
