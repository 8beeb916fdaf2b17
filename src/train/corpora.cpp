// SPDX-License-Identifier: Apache-2.0
#include "train/corpora.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <iterator>
#include <sstream>

#include "base/counted.h"
#include "base/durable_file.h"
#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "base/text.h"
#include "base/timed_part.h"
#include "data/corpus.h"
#include "data/spool.h"
#include "data/token_cache_builder.h"
#include "train/model_setup.h"
#include "train/named_text.h"

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
  if (lm && spec.format == CorpusFormat::jsonl) {
    spec.source_key.clear();
    if (config.data.languages.size() == 1) spec.text_key = config.data.languages[0];
  } else if (config.data.languages.size() == 1) {
    throw Error(Errc::invalid_argument, "data",
                "data.languages names one language; give the source and the target (one names the "
                "text's key in the JSONL of a language model)");
  }
  if (lm != spec.monolingual()) {
    throw Error(
        Errc::invalid_argument, "data",
        lm ? "a decoder-only model reads text (format lines, stream, or jsonl with \"text\"); "
             "this corpus has two sides"
           : "an encoder-decoder model needs source and target: two files, a .tsv or a .jsonl; for "
             "standard input and other names say which with data.format. For a language model give "
             "its preset: --preset gpt2-124m");
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
  t.max_bytes = 128 * t.max_lines;  // a sentence in most languages; documents count for more
  t.seed = static_cast<uint64_t>(config.train.seed);
  t.text_name = config.data.train.at(0);
  return t;
}

// Shows how far a phase is, with the rate since it began.
class Phase {
 public:
  Phase(Progress& progress, std::string name) : progress_(progress), name_(std::move(name)) {}
  void counted(int64_t count, const char* of) const {
    const std::chrono::duration<double> passed = Clock::now() - began_;
    const auto n = static_cast<double>(count);
    progress_.phase(name_, fmt::format("{} {}, {}/s", format_count(n), of,
                                       format_count(n / std::max(passed.count(), 1e-3))));
  }
  void say(const std::string& text) const { progress_.phase(name_, text); }

 private:
  using Clock = std::chrono::steady_clock;
  Progress& progress_;
  const std::string name_;
  const Clock::time_point began_ = Clock::now();
};

enum class Sides { source, target, both };

// Text to learn a tokenizer from: all of it while that is quickly read, else a sample of the files,
// so that a run's first step comes as soon with a large corpus as with a small one.
class TokenizerText {
 public:
  TokenizerText(const CorpusSpec& spec, Sides sides, const data::TokenizerTraining& options)
      : sides_(sides) {
    const std::vector<data::Sample> samples = samples_of(spec, options);
    const bool wrong = spec.format == CorpusFormat::parallel && spec.paths.size() != 2;
    if (samples.empty() || wrong) {  // open_corpus says what is wrong
      pairs_ = data::open_corpus(spec);
      return;
    }
    if (spec.format != CorpusFormat::parallel) {
      pairs_ = open_sample(spec, spec.format, {0, spec.paths.size()}, samples);
      return;
    }
    if (sides != Sides::target) pairs_ = open_sample(spec, CorpusFormat::lines, {0, 1}, samples);
    if (sides != Sides::source) other_ = open_sample(spec, CorpusFormat::lines, {1, 2}, samples);
    if (!pairs_) pairs_ = std::move(other_);
    sides_ = Sides::target;  // where a text alone stands
  }

  bool next(std::string_view& line) {
    if (held_ == Held::target) {
      held_ = Held::none;
      line = pair_.target;
      return true;
    }
    if (!pairs_->next(pair_)) {
      if (!other_) return false;
      pairs_ = std::move(other_);
      return next(line);
    }
    if (sides_ == Sides::both) held_ = Held::target;
    line = sides_ == Sides::target ? pair_.target : pair_.source;
    return true;
  }

 private:
  // Read for the sample at most: some hundred bytes for each line that is learnt from.
  static constexpr int64_t kReadBytesPerLine = 512;
  static constexpr int64_t kPackedFactor = 4;  // text is so many times as long as when compressed

  // Empty: all of every file.
  static std::vector<data::Sample> samples_of(const CorpusSpec& spec,
                                              const data::TokenizerTraining& options) {
    std::vector<int64_t> bytes;
    int64_t all = 0;
    for (const std::string& path : spec.paths) {
      std::error_code none;  // opening the corpus reports it
      const auto size = static_cast<int64_t>(fs::file_size(path, none));
      const bool packed = path.ends_with(".gz") || path.ends_with(".zst");
      bytes.push_back(none ? 0 : size * (packed ? kPackedFactor : 1));
      all += bytes.back();
    }
    const int64_t most = options.max_lines * kReadBytesPerLine;
    if (all <= most) return {};
    const double share = static_cast<double>(most) / static_cast<double>(all);
    std::vector<data::Sample> samples;
    for (const int64_t n : bytes) {
      const auto part = static_cast<int64_t>(static_cast<double>(n) * share);
      samples.push_back({.bytes = std::max<int64_t>(1, part), .seed = options.seed});
    }
    return samples;
  }

  static std::unique_ptr<data::Corpus> open_sample(const CorpusSpec& spec, CorpusFormat format,
                                                   std::pair<size_t, size_t> files,
                                                   const std::vector<data::Sample>& samples) {
    CorpusSpec s = spec;
    s.format = format;
    const auto part = [&files](const auto& all) {
      const auto at = all.begin();
      return std::vector(at + static_cast<std::ptrdiff_t>(files.first),
                         at + static_cast<std::ptrdiff_t>(files.second));
    };
    s.paths = part(spec.paths);
    s.samples = part(samples);
    s.skip_bad_lines = true;  // they are reported when the corpus is tokenised, with their numbers
    return data::open_corpus(s);
  }

  enum class Held { none, target };
  Sides sides_;
  std::unique_ptr<data::Corpus> pairs_, other_;
  data::SentencePair pair_;
  Held held_ = Held::none;
};

// The side of the text work that is told and can be stopped.
struct Stage {
  const Interrupt& interrupt;
  Progress& progress;
};

Tokenizer train_tokenizer(const RunConfig& config, const CorpusSpec& spec, Sides sides,
                          const Stage& stage) {
  const TimedPart part("tokenizer learnt");
  data::TokenizerTraining options = tokenizer_options(config, spec);
  const Phase phase(stage.progress, "tokenizer");
  options.interrupt = stage.interrupt;
  options.progress = [&](const data::TokenizerProgress& p) {
    if (p.lines_learnt_from == 0) return phase.counted(p.lines_read, "lines read");
    phase.say(fmt::format("learning {} pieces from {} lines", options.vocab_size,
                          format_count(static_cast<double>(p.lines_learnt_from))));
  };
  TokenizerText text(spec, sides, options);
  return Tokenizer::train([&](std::string_view& line) { return text.next(line); }, options);
}

Tokenizers make_tokenizers(const RunConfig& config, const CorpusSpec& spec, bool lm,
                           const Stage& stage) {
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
    const Tokenizer t = train_tokenizer(config, spec, Sides::target, stage);
    return {t, t};
  }
  if (config.data.shared_vocabulary) {
    const Tokenizer t = train_tokenizer(config, spec, Sides::both, stage);
    return {t, t};
  }
  return {train_tokenizer(config, spec, Sides::source, stage),
          train_tokenizer(config, spec, Sides::target, stage)};
}

// Takes the copy in place of every path that can be read only once, and copies those that have none
// yet. With `keep` a copy that an earlier rank or run made serves, also when what it was made of is
// gone, as the <(...) of another shell is.
void use_copies(const std::string& folder,
                const std::vector<std::pair<CorpusSpec*, std::string>>& texts, bool keep,
                const Stage& stage) {
  std::vector<data::SpoolItem> wanted;
  for (const auto& [spec, which] : texts) {
    for (size_t i = 0; i < spec->paths.size(); ++i) {
      std::string& path = spec->paths[i];
      const std::string copy = copy_of_text(folder, which, i, path);
      const bool usable = keep && fs::exists(copy);
      if (!data::is_read_once(path) && (fs::exists(path) || !usable)) continue;
      if (!usable) wanted.push_back({path, copy});
      path = copy;
    }
  }
  const Phase phase(stage.progress, "text");
  data::spool(wanted, stage.interrupt, [&](int64_t bytes) {
    phase.say(fmt::format("{} copied from what can be read once",
                          format_bytes(static_cast<double>(bytes))));
  });
}

struct ValidationText {
  std::vector<std::string> source, reference;
};

// Up to `most` pairs (0: all; none of a language model's text); reads, and so checks, every line.
ValidationText read_validation(const CorpusSpec& spec, int64_t most, const Interrupt& interrupt) {
  ValidationText text;
  const auto corpus = data::open_corpus(spec);
  int64_t read = 0;
  for (data::SentencePair p; corpus->next(p);) {
    if (++read % 4096 == 0) interrupt.check();
    if (spec.monolingual() || (most > 0 && std::ssize(text.source) >= most)) continue;
    text.source.push_back(p.source);
    text.reference.push_back(p.target);
  }
  return text;
}

data::TokenCacheSpec cache_spec(const RunConfig& config, const CorpusSpec& spec,
                                const Tokenizers& t, const std::string& path, const Stage& stage,
                                const Phase& phase) {
  return {.corpus = spec,
          .source = t.source,
          .target = t.target,
          .filter = {.max_source = longest_sentence(config),
                     .max_target = longest_sentence(config),
                     .max_ratio = config.data.max_length_ratio},
          .path = path,
          .threads = static_cast<int>(config.data.workers),
          .interrupt = stage.interrupt,
          .progress = [&phase](int64_t lines) { phase.counted(lines, "lines read"); }};
}

// What is known of a cache that was opened or made.
void tell(const char* what, const data::TokenCache& cache, data::CacheOrigin origin,
          const Stage& stage) {
  stage.progress.clear();
  if (cache.whole() == nullptr) {
    log_info(fmt::format(
        "{}: training begins with the first {} {}, the rest is tokenised meanwhile", what,
        cache.head().counts.kept, cache.head().monolingual != 0 ? "documents" : "pairs"));
    return;
  }
  log_info(text_summary(what, cache.stats()) +
           (origin == data::CacheOrigin::reused ? " (cached)" : ""));
  report_bad_lines(what, cache.bad_lines());
}

data::TokenCache build_cache(const RunConfig& config, const CorpusSpec& spec, const Tokenizers& t,
                             const std::string& path, const char* what, bool whole,
                             const Stage& stage) {
  const TimedPart part(what);
  const Phase phase(stage.progress, what);
  const data::TokenCacheSpec made = cache_spec(config, spec, t, path, stage, phase);
  data::CacheOrigin origin{};
  data::TokenCache cache = whole ? data::open_or_build_token_cache(made, &origin)
                                 : data::open_or_start_token_cache(made, &origin);
  tell(what, cache, origin, stage);
  return cache;
}

}  // namespace

std::string text_summary(const char* what, const data::CacheStats& s) {
  // A document is a line, or a file that is read by lines; of either nothing is too long.
  if (s.monolingual != 0)
    return fmt::format("{}: {} of {} kept ({} empty), {} tokens", what, s.counts.kept,
                       counted(s.counts.read, "line"), s.counts.empty, s.target_tokens);
  return fmt::format(
      "{}: {} of {} pairs kept ({} empty, {} too long, {} by ratio), {} source and {} target "
      "tokens",
      what, s.counts.kept, s.counts.read, s.counts.empty, s.counts.too_long, s.counts.ratio,
      s.source_tokens, s.target_tokens);
}

void report_bad_lines(const char* what, const data::BadLines& bad) {
  if (bad.count == 0) return;
  log_warning(fmt::format("{}: {} left out{}", what, counted(bad.count, "bad line"),
                          bad.first.empty() ? ""
                          : bad.count == 1  ? ":"
                                            : "; the first of them:"));
  for (const std::string& line : bad.first) log_warning("  " + line);
}

std::string copy_of_text(const std::string& folder, const std::string& which, size_t index,
                         const std::string& path) {
  const std::string stem = fmt::format("{}/data/{}", folder, which);
  return path == "-" ? stem + ".text" : fmt::format("{}.{}.text", stem, index + 1);
}

namespace {

// Small files; one that cannot be read has no bytes.
bool same_bytes(const std::string& a, const std::string& b) {
  std::ifstream one(a, std::ios::binary), other(b, std::ios::binary);
  std::vector<char> left(size_t{1} << 16), right(left.size());
  while (one && other) {
    one.read(left.data(), std::ssize(left));
    other.read(right.data(), std::ssize(right));
    if (one.gcount() != other.gcount() ||
        !std::equal(left.begin(), left.begin() + one.gcount(), right.begin()))
      return false;
    if (one.eof() && other.eof()) return true;
  }
  return false;
}

}  // namespace

// What stands around texts of a tokenizer.json, and which ids end and fill them: its model's
// config.json says so, which a run has beside its checkpoints only.
constexpr const char* kFrameFile = "/tokenizer_frame.json";
constexpr const char* kChatTemplate = "/chat_template.jinja";

void save_tokenizers(const std::string& folder, const Tokenizer& source, const Tokenizer& target) {
  if (target.is_json()) {  // of a language model, which has one
    const auto list = [](std::span<const int32_t> ids) {
      Json::Array all;
      for (const int32_t id : ids) all.emplace_back(id);
      return all;
    };
    target.save(folder + "/tokenizer.json");
    Json frame = {{"before", list(target.sentence_begin())},
                  {"after", list(target.sentence_end())},
                  {"eos", target.eos_id()},
                  {"pad", target.pad_id()}};
    if (!target.settings().empty())
      frame.add("settings", parse_json(target.settings(), kFrameFile));
    write_json_file(folder + kFrameFile, frame);
    if (!target.chat_template().empty())
      write_durable_file(folder + kChatTemplate, target.chat_template());
    return;
  }
  if (target.is_bytes()) {  // load_tokenizers takes bytes when there is no model
    fs::remove(folder + "/source.spm");
    fs::remove(folder + "/target.spm");
    return;
  }
  source.save(folder + "/source.spm");
  target.save(folder + "/target.spm");
  const auto save_ids = [&](const char* name, const Tokenizer& t) {
    Json::Object ids;
    for (size_t id = 0; id < t.pieces().size(); ++id)
      ids.push_back({t.pieces()[id], static_cast<int64_t>(id)});
    write_json_file(folder + "/" + name, Json(std::move(ids)));
  };
  if (!source.has_own_ids() && !target.has_own_ids()) return;
  save_ids("vocab.json", source);
  save_ids("target_vocab.json", target);
}

std::string chat_template_text(const std::string& folder) {
  if (std::ifstream file(folder + kChatTemplate); file) {
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
  }
  const std::string path = folder + "/tokenizer_config.json";
  if (!fs::exists(path)) return {};
  const Json config = read_json_file(path);
  const Json* found = config.find("chat_template");
  if (found == nullptr) return {};
  // Several have names; "default" is meant where none is asked for.
  if (const Json::Array* several = found->if_array()) {
    found = nullptr;
    for (const Json& one : *several) {
      const std::string* name = one["name"].if_string();
      if (found == nullptr || (name != nullptr && *name == "default")) found = &one["template"];
    }
  }
  const std::string* text = found != nullptr ? found->if_string() : nullptr;
  return text != nullptr ? *text : std::string();
}

std::string tokenizer_settings(const std::string& folder) {
  const std::string path = folder + "/tokenizer_config.json";
  if (!fs::exists(path)) return {};
  const Json config = read_json_file(path);
  Json kept{Json::Object{}};
  for (const char* key : {"bos_token", "unk_token", "pad_token", "sep_token", "cls_token",
                          "mask_token", "additional_special_tokens", "extra_special_tokens",
                          "add_bos_token", "add_eos_token", "add_prefix_space", "padding_side"})
    if (const Json* value = config.find(key)) kept.add(key, *value);
  return kept.size() == 0 ? std::string() : kept.dump();
}

Tokenizers load_tokenizers(const std::string& folder) {
  const auto path = [&](const char* name) { return folder + "/" + name; };
  if (fs::exists(folder + kFrameFile)) {
    const Json json = read_json_file(folder + kFrameFile);
    JsonFields frame(json, "tokenizer", folder + kFrameFile);
    const auto ids = [&](const char* key) {
      std::vector<int32_t> all;
      for (const Json& id : frame.list(key)) {
        const int64_t* value = id.if_int();
        if (value == nullptr || *value < 0 || *value > INT32_MAX)
          frame.fail(key, "it must be a list of ids; restore the file");
        all.push_back(static_cast<int32_t>(*value));
      }
      return all;
    };
    const int64_t eos = frame.integer("eos");
    if (eos < 0 || eos > INT32_MAX) frame.fail("eos", "it must be an id; restore the file");
    const Tokenizer t = Tokenizer::load(path("tokenizer.json"))
                            .framed(ids("before"), eos, frame.integer("pad"), ids("after"))
                            .with_chat_template(chat_template_text(folder));
    const Json* settings = json.find("settings");
    if (settings == nullptr) return {t, t};
    if (settings->if_object() == nullptr)
      frame.fail("settings", "it must be an object; restore the file");
    const Tokenizer whole = t.with_settings(settings->dump());
    return {whole, whole};
  }
  if (!fs::exists(path("target.spm"))) return {Tokenizer::bytes(), Tokenizer::bytes()};
  const auto vocab = [&](const char* name) {
    return fs::exists(path(name)) ? path(name) : std::string();
  };
  const std::string source_vocab = vocab("vocab.json");
  const std::string own_vocab = vocab("target_vocab.json");
  const std::string target_vocab = own_vocab.empty() ? source_vocab : own_vocab;
  // Each takes tens of milliseconds, before which no text is translated: one where both are the same
  // file, else side by side.
  if (source_vocab == target_vocab && same_bytes(path("source.spm"), path("target.spm"))) {
    const Tokenizer joint = Tokenizer::load(path("target.spm"), target_vocab);
    return {joint, joint};
  }
  auto source = std::async(std::launch::async,
                           [&] { return Tokenizer::load(path("source.spm"), source_vocab); });
  const Tokenizer target = Tokenizer::load(path("target.spm"), target_vocab);
  return {source.get(), target};
}

Corpora prepare_corpora(const RunConfig& config, const std::string& folder, bool lm,
                        const Tokenizers* given, parallel::Communicator& ranks,
                        const Interrupt& interrupt, Progress& progress) {
  const Stage stage{interrupt, progress};
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
  struct FurtherSet {
    NamedText text;
    CorpusSpec spec;
    std::string file;  // "valid-NAME" or "test-NAME", of what is kept of it
    int64_t most;      // pairs that are translated
    ValidationText lines;
  };
  std::vector<FurtherSet> further;
  const auto add = [&](const std::vector<NamedText>& texts, const char* what, int64_t most) {
    for (const NamedText& t : texts)
      further.push_back(
          {t, corpus_spec(config, t.paths, lm), fmt::format("{}-{}", what, t.name), most, {}});
  };
  add(further_validation_texts(config), "valid", config.validate.max_sentences);
  const size_t first_test = further.size();
  add(test_texts(config), "test", 0);
  // `made`: what an earlier rank or run left is used; a new run makes its own.
  const auto prepare = [&](bool made) -> Corpora {
    fs::create_directories(data);
    std::vector<std::pair<CorpusSpec*, std::string>> texts{{&train, "train"}, {&valid, "valid"}};
    for (FurtherSet& f : further) texts.emplace_back(&f.spec, f.file);
    use_copies(folder, texts, made, stage);
    // First the small text: its mistakes need not wait until the large one is through.
    ValidationText text;
    if (validated) text = read_validation(valid, config.validate.max_sentences, interrupt);
    for (FurtherSet& f : further) f.lines = read_validation(f.spec, f.most, interrupt);
    // A resumed run keeps the tokenizer it began with, whatever has become of the text.
    const bool known = made && (fs::exists(data + "/target.spm") || fs::exists(data + kFrameFile));
    const Tokenizers t = given   ? *given
                         : known ? load_tokenizers(data)
                                 : make_tokenizers(config, train, lm, stage);
    progress.clear();
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
              .train = build_cache(config, train, t, data + "/train.tokens", "training text",
                                   ranks.size() > 1, stage),
              .valid = {},
              .valid_source = std::move(text.source),
              .valid_reference = std::move(text.reference),
              .more_valid = {},
              .test = {}};
    if (validated) {
      c.valid.emplace(
          build_cache(config, valid, t, data + "/valid.tokens", "validation text", true, stage));
    }
    for (size_t i = 0; i < further.size(); ++i) {
      FurtherSet& f = further[i];
      const std::string path = fmt::format("{}/{}.tokens", data, f.file);
      (i < first_test ? c.more_valid : c.test)
          .push_back({f.text.name,
                      build_cache(config, f.spec, t, path, f.file.c_str(), true, stage),
                      std::move(f.lines.source), std::move(f.lines.reference)});
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
