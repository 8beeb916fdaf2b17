// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <map>
#include <optional>
#include <string>

#include "apps/commands.h"
#include "apps/source_feed.h"
#include "apps/text_io.h"
#include "base/counted.h"
#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "base/timed_part.h"
#include "kernels/decode/beam_step.h"
#include "model/generation_config.h"
#include "train/ensemble.h"
#include "train/line_translator.h"
#include "train/shortlist_file.h"

namespace saturate::apps {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point t) {
  return std::chrono::duration<double>(Clock::now() - t).count();
}

// Lines that are read ahead, so that batches have sentences of like length to choose from.
constexpr int64_t kAhead = 20000;

std::string farewell;  // what a signal that ends the program leaves on standard error

void say_farewell(int signal_number) {
  static_cast<void>(!write(STDERR_FILENO, farewell.data(), farewell.size()));
  std::signal(signal_number, SIG_DFL);
  std::raise(signal_number);
}

// SIGINT, SIGTERM and SIGHUP end the program as ever, but say where the lines are that were done.
void name_part_at_signals(const std::string& part) {
  if (part.empty()) return;
  farewell = fmt::format("saturate: stopped; what was done before is in {}\n", part);
  for (const int signal_number : {SIGINT, SIGTERM, SIGHUP}) {
    if (std::signal(signal_number, say_farewell) == SIG_IGN) std::signal(signal_number, SIG_IGN);
  }
}

// Tokens of the source that a translation's attention goes to, end-of-sentence included.
size_t source_tokens(const train::Translation& t) {
  return t.attention.size() / t.token_log_probabilities.size();
}

// With --alignments as Marian writes it, in Pharaoh's format.
std::string text_of(const train::Translation& t, const TranslateOptions& o) {
  if (!o.alignments) return t.text;
  std::string text = t.text + " |||";
  for (const auto& [s, d] : train::align(t.attention, source_tokens(t)))
    text += fmt::format(" {}-{}", s, d);
  return text;
}

Json matrix(std::span<const float> values, size_t columns) {
  Json::Array rows;
  for (size_t at = 0; at < values.size(); at += columns) {
    Json::Array row;
    for (const float v : values.subspan(at, columns)) row.emplace_back(double{v});
    rows.emplace_back(std::move(row));
  }
  return Json(std::move(rows));
}

// As Moses and Marian write it, lines counted from 0: one feature, the log-probability, and the
// score by which the list is ordered.
// With word_scores the tokens' log-probabilities follow, under Marian's name.
std::string nbest_line(int64_t line, const train::Translation& t, const TranslateOptions& o) {
  const std::string words =
      o.word_scores ? fmt::format(" WordScores= {:.6f}", fmt::join(t.token_log_probabilities, " "))
                    : "";
  return fmt::format("{} ||| {} ||| F0= {:.6f}{} ||| {:.6f}", line, text_of(t, o),
                     t.log_probability, words, t.score);
}

std::string json_line(int64_t line, std::span<const train::Translation> list,
                      const TranslateOptions& o, const data::Tokenizer& target) {
  Json::Array translations;
  for (const train::Translation& t : list) {
    Json::Array tokens, each;
    for (const int32_t id : t.ids) tokens.emplace_back(target.piece(id));
    for (const double p : t.token_log_probabilities) each.emplace_back(p);
    Json& one = translations.emplace_back(Json{{"text", t.text},
                                               {"score", t.score},
                                               {"log_probability", t.log_probability},
                                               {"tokens", std::move(tokens)},
                                               {"token_log_probabilities", std::move(each)}});
    if (o.alignments) {
      Json::Array pairs;
      for (const auto& [s, d] : train::align(t.attention, source_tokens(t)))
        pairs.push_back(Json(Json::Array{Json(s), Json(d)}));
      one["alignment"] = Json(std::move(pairs));
    }
    if (o.attention) one["attention"] = matrix(t.attention, source_tokens(t));
  }
  return Json{{"line", line}, {"translations", std::move(translations)}}.dump();
}

// What all lines want, in the ids of the model.
train::LineOptions line_options(const TranslateOptions& o, const data::Tokenizer& target) {
  train::LineOptions lines{
      .search = {.nbest = static_cast<int>(std::max<int64_t>(1, o.nbest)),
                 .repetition_penalty = static_cast<float>(o.repetition_penalty),
                 .no_repeat_ngram = o.no_repeat_ngram,
                 .min_length = o.min_length,
                 .max_length = o.max_length},
      .same_bits = o.same_bits,
      .attention = o.alignments || o.attention,
      .attention_layer = o.alignment_layer,
      .attention_head = o.alignment_head};
  if (o.alternatives > 0) {
    lines.search.nbest = lines.search.groups = static_cast<int>(o.alternatives);
    lines.search.alternatives = true;
  } else if (o.sampling) {
    lines.search.groups = lines.search.nbest;
    lines.search.draw = {.seed = o.seed,
                         .temperature = static_cast<float>(o.temperature),
                         .top_p = static_cast<float>(o.top_p),
                         .top_k = static_cast<int32_t>(o.top_k)};
  } else {
    lines.search.groups = static_cast<int>(o.beam_groups);
    if (o.beam_groups > 1) lines.search.diversity = static_cast<float>(o.diversity_penalty);
  }
  if (!o.first_piece.empty())
    lines.search.prefix = {id_of_piece("--first-piece", target, o.first_piece)};
  for (const std::string& piece : o.suppress)
    lines.suppressed.push_back(id_of_piece("--suppress", target, piece));
  return lines;
}

// Rows of a line's search: each alternative has a beam of its own. Errors: invalid_argument.
void take_rows(const TranslateOptions& o, TranslateConfig& decode) {
  if (o.alternatives * decode.beam > kernels::kMaxBeam) {
    throw Error(
        Errc::invalid_argument, "translate",
        fmt::format("--alternatives {} with a beam of {} each make more than {} hypotheses; "
                    "give a smaller --beam",
                    o.alternatives, decode.beam, kernels::kMaxBeam));
  }
  if (o.alternatives > 0) decode.beam *= o.alternatives;
  if (decode.beam % o.beam_groups != 0) {
    throw Error(Errc::invalid_argument, "translate",
                fmt::format("--beam-groups {} does not divide the beam of {}; give another --beam",
                            o.beam_groups, decode.beam));
  }
}

// A file that says something of each line of the text.
class LinesBeside {
 public:
  // No file: nothing. Errors: io.
  explicit LinesBeside(const std::string& path) : path_(path) {
    if (!path.empty()) lines_ = read_lines(path);
  }
  // Of the next line. Errors: invalid_argument when the file has no more.
  std::string_view next() {
    if (path_.empty()) return {};
    if (at_ == lines_.size()) {
      throw Error(
          Errc::invalid_argument, "translate",
          fmt::format("{} ends after line {} and the text goes on; give a line, which may be "
                      "blank, for each line of the text",
                      path_, lines_.size()));
    }
    return lines_[at_++];
  }
  // Behind the last line of the text.
  void warn_of_rest() const {
    if (at_ < lines_.size()) {
      log_warning(
          fmt::format("{} has {} and the text {}; check that they belong together line by line",
                      path_, counted(lines_.size(), "line"), at_));
    }
  }
  std::string place() const { return fmt::format("{}:{}", path_, at_); }  // of the last line given

 private:
  const std::string path_;
  std::vector<std::string> lines_;
  size_t at_ = 0;
};

// What each line's translation begins with.
std::vector<int32_t> next_prefix(LinesBeside& lines, const data::Tokenizer& target) {
  std::vector<int32_t> ids;
  if (const std::string_view line = lines.next(); !line.empty()) target.encode(line, ids);
  return ids;
}

// The phrases that it holds, without what begins a text.
std::vector<std::vector<int32_t>> next_phrases(LinesBeside& lines, const data::Tokenizer& target) {
  std::vector<std::vector<int32_t>> phrases;
  std::string_view line = lines.next();
  while (!line.empty()) {
    const size_t end = std::min(line.find('\t'), line.size());
    std::vector<int32_t> ids = train::encode_phrase(target, line.substr(0, end), lines.place());
    if (!ids.empty()) phrases.push_back(std::move(ids));
    line.remove_prefix(std::min(end + 1, line.size()));
  }
  return phrases;
}

train::LoadedModel load(const TranslateOptions& o, const train::LoadHooks& hooks) {
  if (o.models.size() == 1 && o.weights.size() <= 1) {
    return train::load_model(o.models[0], o.model.device, o.model.precision, hooks,
                             o.model.adapter);
  }
  if (!o.model.adapter.empty()) {
    throw Error(Errc::invalid_argument, "translate",
                "--adapter is for one model; of several, give the adapter's folder itself with "
                "--model (it names its base), or saturate merge both first");
  }
  return train::load_ensemble(o.models, o.weights, o.model.device, o.model.precision, hooks);
}

// What the model's folder says of decoding, and neither it nor a flag brings about here.
void warn_of_unused(const TranslateOptions& o, const std::string& folder) {
  const std::map<std::string, bool> given = {
      {"--no-repeat-ngram", o.no_repeat_ngram != 0},
      {"--repetition-penalty", o.repetition_penalty != 1},
      {"--min-length", o.min_length != 0},
      {"--beam-groups", o.beam_groups != 1},
      {"--diversity-penalty", o.beam_groups != 1},
  };
  for (const model::UnusedField& f : model::unused_decoding(folder)) {
    if (!f.flag.empty() && given.at(f.flag)) continue;
    log_warning(fmt::format(
        "{}/generation_config.json: {} is {:g}, which is not taken from there; {}", folder, f.name,
        f.value,
        f.flag.empty() ? "there is no flag for it" : fmt::format("give {} {:g}", f.flag, f.value)));
  }
}

}  // namespace

int run_translate(const TranslateOptions& o) {
  const auto begin = Clock::now();
  std::optional<train::LoadedModel> model;
  TranslateConfig decode;
  std::optional<SourceFeed> feed;
  std::optional<train::LineTranslator> translator;
  LinesBeside prefixes(o.prefix_file), phrases(o.phrases);
  train::LineOptions lines_want;
  train::LoadHooks hooks;
  hooks.ids = o.model.ids;
  hooks.source_language = o.decode.source_language;
  hooks.target_language = o.decode.target_language;
  hooks.on_text = [&](const train::LoadedModel& m) {
    if (m.config.kind != model::ModelKind::encoder_decoder) {
      throw Error(Errc::invalid_argument, "translate",
                  m.folder + " is a language model; use saturate generate");
    }
    require_languages(m, o.model.ids);
    DecodeOptions given = o.decode;
    if (o.sampling) given.beam = std::max<int64_t>(1, o.nbest);  // a row each
    decode = resolve_decoding(given, m.translate);
    warn_of_unused(o, m.folder);
    take_rows(o, decode);
    if (o.nbest > decode.beam) {
      throw Error(Errc::invalid_argument, "translate",
                  fmt::format("--nbest {} asks for more translations than a beam of {} holds; give "
                              "--beam {}",
                              o.nbest, decode.beam, o.nbest));
    }
    lines_want = line_options(o, m.tokenizers.target);
    if (!o.shortlist.empty()) {
      const TimedPart part("shortlist");
      lines_want.shortlist =
          train::read_shortlist(o.shortlist, m.tokenizers.source, m.tokenizers.target,
                                {.first = o.shortlist_first, .best = o.shortlist_best});
    }
    feed.emplace(
        o.input, kAhead,
        [source = m.tokenizers.source, limit = m.config.max_positions](std::string_view line,
                                                                       int64_t number) {
          return train::encode_source(source, limit, line, number);
        },
        o.skip_bad_lines ? OnBadLine::blank : OnBadLine::fail);
  };
  hooks.on_memory = [&](const train::LoadedModel& m) {
    translator.emplace(m, decode, lines_want);
    if (m.store->device().is_cuda()) translator->warm_up(feed->ready());
  };
  model.emplace(load(o, hooks));
  LineWriter out(o.output);
  name_part_at_signals(out.part());
  const double load = seconds_since(begin);
  const auto loaded = Clock::now();
  int64_t lines = 0;
  auto reported = loaded;
  constexpr double kReportEvery = 10;  // seconds
  for (std::vector<SourceFeed::Ids> sources;
       feed->take(lines, translator->idle(), sources) || !translator->idle();) {
    for (SourceFeed::Ids& ids : sources) {
      const data::Tokenizer& target = model->tokenizers.target;
      translator->add(std::move(ids), next_prefix(prefixes, target), next_phrases(phrases, target));
    }
    std::optional<TimedPart> first;
    if (lines == 0 && !translator->idle()) first.emplace("first batch");
    translator->advance([&](std::span<const train::Translation> translations) {
      if (o.json) {
        out.write(json_line(lines, translations, o, model->tokenizers.target));
      } else if (o.nbest == 0 && o.alternatives == 0) {
        out.write(text_of(translations.front(), o));
      } else {
        for (const train::Translation& t : translations) out.write(nbest_line(lines, t, o));
      }
      ++lines;
    });
    out.flush();
    first.reset();
    if (seconds_since(reported) > kReportEvery) {
      log_info(counted(lines, "line"));
      reported = Clock::now();
    }
  }
  out.close();
  prefixes.warn_of_rest();
  phrases.warn_of_rest();
  if (feed->bad_lines() > 0)
    log_warning(feed->bad_lines() == 1
                    ? "1 bad line was written as a blank line"
                    : fmt::format("{} bad lines were written as blank lines", feed->bad_lines()));
  const double work = seconds_since(loaded);
  log_info(fmt::format("{} in {:.2f} s ({:.0f} lines/s), model loaded in {:.2f} s",
                       counted(lines, "line"), work,
                       static_cast<double>(lines) / std::max(work, 1e-9), load));
  return 0;
}

}  // namespace saturate::apps
