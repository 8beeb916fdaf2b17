// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "apps/commands.h"
#include "apps/text_io.h"
#include "base/error.h"
#include "train/bleu.h"
#include "train/chrf.h"
#include "train/line_translator.h"

namespace saturate::apps {
namespace {

void check_pairs(const std::string& a_name, size_t a, const std::string& b_name, size_t b) {
  if (a == b) return;
  throw Error(Errc::invalid_argument, "eval",
              fmt::format("{} has {} lines and {} has {}: line i of one must belong to line i of "
                          "the other; align the files",
                          a_name, a, b_name, b));
}

void print_scores(const std::vector<std::string>& hypotheses,
                  const std::vector<std::string>& references) {
  fmt::print("{}\n{}\nBLEU signature: {}\nchrF2 signature: {}\n",
             train::corpus_bleu(hypotheses, references).to_string(),
             train::corpus_chrf(hypotheses, references).to_string(), train::kBleuSignature,
             train::kChrfSignature);
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
                                 reference = read_lines(o.test.at(1));
  check_pairs(o.test[0], source.size(), o.test[1], reference.size());
  const train::LoadedModel model =
      train::load_model(o.model.model, o.model.device, o.model.precision);
  if (model.config.kind != model::ModelKind::encoder_decoder) {
    throw Error(Errc::invalid_argument, "eval",
                model.folder + " is a language model; eval scores models that translate");
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
