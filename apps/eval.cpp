// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "apps/commands.h"
#include "apps/text_io.h"
#include "base/counted.h"
#include "base/error.h"
#include "data/corpus.h"
#include "train/bleu.h"
#include "train/chrf.h"
#include "train/line_translator.h"
#include "train/run_settings.h"
#include "train/scorer.h"

namespace saturate::apps {
namespace {

void check_pairs(const std::string& a_name, size_t a, const std::string& b_name, size_t b) {
  if (a == b) return;
  throw Error(Errc::invalid_argument, "eval",
              fmt::format("{} has {} and {} has {}: line i of one must belong to line i of "
                          "the other; align the files",
                          a_name, counted(a, "line"), b_name, b));
}

void print_scores(const std::vector<std::string>& hypotheses,
                  const std::vector<std::string>& references) {
  fmt::print("{}\n{}\nBLEU signature: {}\nchrF2 signature: {}\n",
             train::corpus_bleu(hypotheses, references).to_string(),
             train::corpus_chrf(hypotheses, references).to_string(), train::kBleuSignature,
             train::kChrfSignature);
}

// How one line was read: a source is cut as in translation, a target never.
train::ScoredText encode_pair(const train::LoadedModel& m, const std::string& source,
                              const std::string& target, size_t line) {
  return {train::encode_source(m.tokenizers.source, m.config.max_positions, source,
                               static_cast<int64_t>(line) + 1),
          m.tokenizers.target.encode_sentence(target)};
}

void print_model_scores(const EvalOptions& o, std::span<const train::TextScore> scores) {
  LineWriter out(o.output.empty() ? "-" : o.output);
  for (const train::TextScore& s : scores) {
    out.write(fmt::format("{:.6f}\t{}", s.log_probability, s.tokens));
  }
  out.close();
}

// How the text is read: as asked, by the file's name, or as the run was trained; scores are of lines.
// The key of JSONL is the run's.
data::CorpusSpec spec_of(const EvalOptions& o) {
  using data::CorpusFormat;
  const std::string& file = o.test.front();
  const train::TextForm of_run = train::text_form_of(o.model.model);
  std::string format = o.format;
  for (const char* ending : {".jsonl", ".jsonl.gz", ".jsonl.zst"})
    if (format == "auto" && file.ends_with(ending)) format = "jsonl";
  if (format == "auto" && !of_run.format.empty() && !o.score) format = of_run.format;
  data::CorpusSpec spec;
  spec.format = format == "stream"  ? CorpusFormat::stream
                : format == "jsonl" ? CorpusFormat::jsonl
                                    : CorpusFormat::lines;
  spec.paths = {file};
  spec.source_key.clear();
  if (!of_run.key.empty()) spec.text_key = of_run.key;
  return spec;
}

// Documents as training has them, but that another program's tokenizer sees a file in one piece, as its
// program has it, and nothing is put behind it.
std::vector<train::ScoredText> read_documents(const data::CorpusSpec& spec,
                                              const data::Tokenizer& tokenizer) {
  const bool stream = spec.format == data::CorpusFormat::stream;
  const std::unique_ptr<data::Corpus> corpus = data::open_corpus(spec);
  std::vector<train::ScoredText> texts;
  std::vector<int32_t> ids;
  std::string whole;
  data::SentencePair pair;
  while (corpus->next(pair)) {
    if (!stream) {
      texts.push_back({{}, tokenizer.encode_sentence(pair.target)});
      continue;
    }
    if (tokenizer.is_foreign()) {
      whole += pair.target;
    } else {
      tokenizer.encode(pair.target, ids);
    }
    if (!pair.ends_document) continue;
    if (tokenizer.is_foreign()) {
      tokenizer.encode(whole, ids);
    } else {
      const std::span<const int32_t> end = tokenizer.sentence_end();
      ids.insert(ids.end(), end.begin(), end.end());
    }
    texts.push_back({{}, std::exchange(ids, {})});
    whole.clear();
  }
  return texts;
}

void print_perplexity(const EvalOptions& o, std::span<const train::TextScore> scores, bool stream,
                      int64_t window) {
  double sum = 0;
  int64_t tokens = 0, windows = 0;
  for (const train::TextScore& s : scores) {
    sum += s.log_probability;
    tokens += s.tokens;
    windows += (s.tokens + window - 1) / window;
  }
  if (tokens == 0) {
    throw Error(Errc::invalid_argument, "eval",
                o.test.front() +
                    ": no token follows another in one of its documents, so there is nothing to "
                    "predict; give some text, or --format stream for a file that is one document");
  }
  const double loss = -sum / static_cast<double>(tokens);
  fmt::print("perplexity = {:.4f} (loss {:.4f} a token, {} in {})\n", std::exp(loss), loss,
             counted(tokens, "token"),
             stream ? fmt::format("{} of {}", counted(windows, "window"), window)
                    : counted(scores.size(), "line"));
}

int eval_language_model(const EvalOptions& o, const train::LoadedModel& m) {
  if (o.test.size() != 1) {
    throw Error(Errc::invalid_argument, "eval",
                m.folder + " is a language model; give --test one file, the text to score");
  }
  if (!o.score && !o.output.empty()) {
    throw Error(Errc::invalid_argument, "eval",
                "--output is for translations, or with --score for scores; a perplexity goes to "
                "standard output");
  }
  const data::CorpusSpec spec = spec_of(o);
  const bool stream = spec.format == data::CorpusFormat::stream;
  if (o.model.ids && stream) {
    throw Error(Errc::invalid_argument, "eval",
                "--format stream reads text, and --ids says that lines are ids; leave one out");
  }
  const std::vector<train::ScoredText> texts = read_documents(spec, m.tokenizers.target);
  const std::vector<train::TextScore> scores =
      train::score_texts(m, o.decode.batch_tokens.value_or(m.translate.batch_tokens), texts);
  if (o.score) {
    print_model_scores(o, scores);
  } else {
    print_perplexity(o, scores, stream, m.config.max_positions);
  }
  return 0;
}

}  // namespace

int run_eval(const EvalOptions& o) {
  if (o.model.model.empty()) {
    const std::vector<std::string> hypotheses = read_lines(o.hypothesis),
                                   references = read_lines(o.reference);
    check_pairs(o.hypothesis, hypotheses.size(), o.reference, references.size());
    print_scores(hypotheses, references);
    return 0;
  }
  std::vector<std::string> source, reference;
  if (o.test.size() == 2) {
    source = read_lines(o.test[0]), reference = read_lines(o.test[1]);
    check_pairs(o.test[0], source.size(), o.test[1], reference.size());
  }
  train::LoadHooks hooks;
  hooks.ids = o.model.ids;
  hooks.source_language = o.decode.source_language;
  hooks.target_language = o.decode.target_language;
  const train::LoadedModel model =
      train::load_model(o.model.model, o.model.device, o.model.precision, hooks, o.model.adapter);
  if (model.config.kind != model::ModelKind::encoder_decoder) {
    return eval_language_model(o, model);
  }
  if (o.test.size() != 2) {
    throw Error(Errc::invalid_argument, "eval",
                model.folder + " translates; give --test two files, source and reference");
  }
  if (o.format != "auto") {
    throw Error(Errc::invalid_argument, "eval",
                "--format is for a language model's text, and " + model.folder +
                    " translates; leave it out");
  }
  if (!o.score || !o.model.ids) require_languages(model, o.model.ids);
  if (o.score) {
    std::vector<train::ScoredText> texts;
    for (size_t i = 0; i < source.size(); ++i) {
      texts.push_back(encode_pair(model, source[i], reference[i], i));
    }
    print_model_scores(
        o, train::score_texts(model, o.decode.batch_tokens.value_or(model.translate.batch_tokens),
                              texts));
    return 0;
  }
  const std::vector<std::string> hypotheses =
      train::translate_lines(model, resolve_decoding(o.decode, model.translate), source);
  if (!o.output.empty()) {
    LineWriter out(o.output);
    for (const std::string& line : hypotheses) out.write(line);
    out.close();
  }
  print_scores(hypotheses, reference);
  return 0;
}

}  // namespace saturate::apps
