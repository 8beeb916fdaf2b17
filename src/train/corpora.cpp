// SPDX-License-Identifier: Apache-2.0
#include "train/corpora.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "base/log.h"
#include "data/corpus.h"
#include "data/spool.h"
#include "data/token_cache_builder.h"
#include "model/json_file.h"
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
  spec.skip_bad_lines = config.data.skip_bad_lines;
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
           : "an encoder-decoder model needs source and target: two files, a .tsv or a .jsonl; for "
             "standard input and other names say which with data.format");
  }
  return spec;
}

// Documents of several lines, whose line feeds the model must learn.
bool has_line_feeds(const CorpusSpec& spec) {
  return spec.format == CorpusFormat::stream ||
         (spec.monolingual() && spec.format == CorpusFormat::jsonl);
}

data::TokenizerTraining tokenizer_options(const RunConfig& config, const CorpusSpec& spec) {
  using Kind = data::TokenizerTraining::Kind;
  data::TokenizerTraining t;
  t.kind = config.data.tokenizer_type == "bpe"    ? Kind::bpe
           : config.data.tokenizer_type == "char" ? Kind::character
                                                  : Kind::unigram;
  if (has_line_feeds(spec)) t.text = data::TokenizerTraining::Text::kept;
  t.vocab_size = vocabulary_size(config);
  t.character_coverage = config.data.character_coverage;
  t.max_lines = config.data.tokenizer_sentences;
  t.seed = static_cast<uint64_t>(config.train.seed);
  t.text_name = config.data.train.at(0);
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
      tokenizer_options(config, spec));
}

Tokenizers make_tokenizers(const RunConfig& config, const CorpusSpec& spec, bool lm) {
  if (config.data.tokenizer_type == "byte") return {Tokenizer::bytes(), Tokenizer::bytes()};
  if (const std::string& path = config.data.tokenizer; path != "auto") {
    const size_t comma = path.find(',');
    if ((comma == std::string::npos) != (lm || config.data.shared_vocabulary)) {
      throw Error(Errc::invalid_argument, "data",
                  fmt::format("data.tokenizer = {}: a shared vocabulary takes one model, and two "
                              "vocabularies (data.shared_vocabulary=false) two, as source,target",
                              path));
    }
    const Tokenizer source = Tokenizer::load(path.substr(0, comma));
    return {source, comma == std::string::npos ? source : Tokenizer::load(path.substr(comma + 1))};
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

// Takes the copy in place of every path that can be read only once, and copies those that have none
// yet. With `keep` a copy that an earlier rank or run made serves, also when what it was made of is
// gone, as the <(...) of another shell is.
void use_copies(const std::string& folder, CorpusSpec& train, CorpusSpec& valid, bool keep,
                const Interrupt& interrupt) {
  std::vector<data::SpoolItem> wanted;
  const auto use = [&](CorpusSpec& spec, const char* which) {
    for (size_t i = 0; i < spec.paths.size(); ++i) {
      std::string& path = spec.paths[i];
      const std::string copy = copy_of_text(folder, which, i, path);
      const bool usable = keep && fs::exists(copy);
      if (!data::is_read_once(path) && (fs::exists(path) || !usable)) continue;
      if (!usable) wanted.push_back({path, copy});
      path = copy;
    }
  };
  use(train, "train");
  use(valid, "valid");
  data::spool(wanted, interrupt);
}

struct ValidationText {
  std::vector<std::string> source, reference;
};

// Up to `most` pairs (0: all; none of a language model's text); reads, and so checks, every line.
ValidationText read_validation(const CorpusSpec& spec, int64_t most) {
  ValidationText text;
  const auto corpus = data::open_corpus(spec);
  for (data::SentencePair p; corpus->next(p);) {
    if (spec.monolingual() || (most > 0 && std::ssize(text.source) >= most)) continue;
    text.source.push_back(p.source);
    text.reference.push_back(p.target);
  }
  return text;
}

void report_bad_lines(const char* what, int64_t count, const data::BadLines& bad) {
  if (count == 0) return;
  log_warning(fmt::format("{}: {} bad lines left out{}", what, count,
                          bad.first.empty() ? "" : "; the first of them:"));
  for (const std::string& line : bad.first) log_warning("  " + line);
}

data::TokenCache build_cache(const RunConfig& config, const CorpusSpec& spec, const Tokenizers& t,
                             const std::string& path, const char* what) {
  data::CacheReport report;
  data::TokenCache cache =
      data::open_or_build_token_cache({.corpus = spec,
                                       .source = t.source,
                                       .target = t.target,
                                       .filter = {.max_source = longest_sentence(config),
                                                  .max_target = longest_sentence(config),
                                                  .max_ratio = config.data.max_length_ratio},
                                       .path = path,
                                       .threads = static_cast<int>(config.data.workers)},
                                      &report);
  const data::CacheStats& s = cache.stats();
  log_info(fmt::format(
      "{}: {} of {} {} kept ({} empty, {} too long, {} by ratio), {} source and {} target "
      "tokens{}",
      what, s.counts.kept, s.counts.read, s.monolingual ? "documents" : "pairs", s.counts.empty,
      s.counts.too_long, s.counts.ratio, s.source_tokens, s.target_tokens,
      report.origin == data::CacheOrigin::reused ? " (cached)" : ""));
  report_bad_lines(what, s.counts.bad, report.bad);
  return cache;
}

}  // namespace

std::string copy_of_text(const std::string& folder, const char* which, size_t index,
                         const std::string& path) {
  const std::string stem = fmt::format("{}/data/{}", folder, which);
  return path == "-" ? stem + ".text" : fmt::format("{}.{}.text", stem, index + 1);
}

void save_tokenizers(const std::string& folder, const Tokenizer& source, const Tokenizer& target) {
  if (target.is_bytes()) {  // load_tokenizers takes bytes when there is no model
    fs::remove(folder + "/source.spm");
    fs::remove(folder + "/target.spm");
    return;
  }
  source.save(folder + "/source.spm");
  target.save(folder + "/target.spm");
  const auto save_ids = [&](const char* name, const Tokenizer& t) {
    model::Json::Object ids;
    for (size_t id = 0; id < t.pieces().size(); ++id)
      ids.push_back({t.pieces()[id], static_cast<int64_t>(id)});
    model::write_json_file(folder + "/" + name, model::Json(std::move(ids)));
  };
  if (!source.has_own_ids() && !target.has_own_ids()) return;
  save_ids("vocab.json", source);
  save_ids("target_vocab.json", target);
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

Corpora prepare_corpora(const RunConfig& config, const std::string& folder, bool lm,
                        const Tokenizers* given, parallel::Communicator& ranks,
                        const Interrupt& interrupt) {
  const std::string data = folder + "/data";
  const bool validated = !config.data.valid.empty();
  const auto is_input = [](const std::string& path) { return path == "-"; };
  if (std::ranges::count_if(config.data.train, is_input) +
          std::ranges::count_if(config.data.valid, is_input) >
      1) {
    throw Error(Errc::invalid_argument, "data",
                "standard input (-) can be one file only; give the others by name");
  }
  CorpusSpec train = corpus_spec(config, config.data.train, lm);
  CorpusSpec valid = validated ? corpus_spec(config, config.data.valid, lm) : CorpusSpec{};
  // `made`: what an earlier rank or run left is used; a new run makes its own.
  const auto prepare = [&](bool made) -> Corpora {
    fs::create_directories(data);
    use_copies(folder, train, valid, made, interrupt);
    // First the small text: its mistakes need not wait until the large one is through.
    ValidationText text;
    if (validated) text = read_validation(valid, config.validate.max_sentences);
    // A resumed run keeps the tokenizer it began with, whatever has become of the text.
    const bool known = made && fs::exists(data + "/target.spm");
    const Tokenizers t = given   ? *given
                         : known ? load_tokenizers(data)
                                 : make_tokenizers(config, train, lm);
    if ((!known || given) && ranks.rank() == 0) save_tokenizers(data, t.source, t.target);
    if (has_line_feeds(train) && !t.target.keeps_lines()) {
      log_warning(fmt::format(
          "{} drops line feeds, so the model will never write one; data.tokenizer=auto trains a "
          "tokenizer that keeps them, data.tokenizer_type=byte needs none",
          given                             ? "the tokenizer of init.from"
          : known                           ? "this run's tokenizer"
          : config.data.tokenizer == "auto" ? "the tokenizer"
                                            : config.data.tokenizer));
    }
    if (!known && !given && !t.target.is_bytes() &&
        t.target.vocab_size() < vocabulary_size(config) && config.data.tokenizer == "auto") {
      log_info(fmt::format("vocabulary of {}, not {}: the text has not enough pieces for more",
                           t.target.vocab_size(), vocabulary_size(config)));
    }
    Corpora c{.source = t.source,
              .target = t.target,
              .train = build_cache(config, train, t, data + "/train.tokens", "training text"),
              .valid = {},
              .valid_source = std::move(text.source),
              .valid_reference = std::move(text.reference)};
    if (validated) {
      c.valid.emplace(build_cache(config, valid, t, data + "/valid.tokens", "validation text"));
    }
    return c;
  };
  if (ranks.rank() == 0) {
    Corpora c = prepare(config.resume);
    ranks.barrier();
    return c;
  }
  ranks.barrier();
  return prepare(true);
}

}  // namespace saturate::train
