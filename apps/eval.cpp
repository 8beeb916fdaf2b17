// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cmath>
#include <span>

#include "apps/commands.h"
#include "apps/text_io.h"
#include "base/counted.h"
#include "base/error.h"
#include "train/bleu.h"
#include "train/chrf.h"
#include "train/line_translator.h"
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

void print_perplexity(std::span<const train::TextScore> scores) {
  double sum = 0;
  int64_t tokens = 0;
  for (const train::TextScore& s : scores) {
    sum += s.log_probability;
    tokens += s.tokens;
  }
  const double loss = tokens > 0 ? -sum / static_cast<double>(tokens) : 0;
  fmt::print("perplexity = {:.4f} (loss {:.4f} a token, {} in {})\n", std::exp(loss), loss,
             counted(tokens, "token"), counted(scores.size(), "line"));
}

int eval_language_model(const EvalOptions& o, const train::LoadedModel& m,
                        std::span<const std::string> lines) {
  if (o.test.size() != 1) {
    throw Error(Errc::invalid_argument, "eval",
                m.folder + " is a language model; give --test one file, the text to score");
  }
  std::vector<train::ScoredText> texts;
  for (const std::string& line : lines) {
    texts.push_back({{}, m.tokenizers.target.encode_sentence(line)});
  }
  const std::vector<train::TextScore> scores =
      train::score_texts(m, o.decode.batch_tokens.value_or(m.translate.batch_tokens), texts);
  if (o.score) {
    print_model_scores(o, scores);
  } else {
    print_perplexity(scores);
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
  const std::vector<std::string> source = read_lines(o.test.at(0)),
                                 reference = o.test.size() > 1 ? read_lines(o.test[1]) : source;
  check_pairs(o.test.front(), source.size(), o.test.back(), reference.size());
  train::LoadHooks hooks;
  hooks.ids = o.model.ids;
  hooks.source_language = o.decode.source_language;
  hooks.target_language = o.decode.target_language;
  const train::LoadedModel model =
      train::load_model(o.model.model, o.model.device, o.model.precision, hooks, o.model.adapter);
  if (model.config.kind != model::ModelKind::encoder_decoder) {
    return eval_language_model(o, model, source);
  }
  if (o.test.size() != 2) {
    throw Error(Errc::invalid_argument, "eval",
                model.folder + " translates; give --test two files, source and reference");
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
