// SPDX-License-Identifier: Apache-2.0
// /translate as LibreTranslate has it, and /v1/translate for many sentences.
#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "base/utf8.h"
#include "serve/request_error.h"
#include "serve/server.h"

namespace saturate::serve {
namespace {

// A text is translated line by line; lines without words stay as they are.
struct TextLines {
  std::vector<std::string> kept;  // by line; the translation goes where `source` says
  std::vector<int64_t> source;    // by line: its number among the job's sources, or -1
};

std::vector<int32_t> encode(const TranslationEngine& engine, std::string_view line,
                            const LanguageFrame& frame) {
  if (line.find('\0') != std::string_view::npos)
    throw RequestError(400, "a text has a NUL character; remove it, or send UTF-8 if it is UTF-16");
  return frame.source ? engine.encode(line, *frame.source) : engine.encode(line);
}

TextLines split(const TranslationEngine& engine, std::string_view text, const LanguageFrame& frame,
                std::vector<std::vector<int32_t>>& sources) {
  TextLines lines;
  while (true) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    if (line.ends_with('\r')) line.remove_suffix(1);
    const bool blank = trim(line).empty();
    lines.source.push_back(blank ? -1 : std::ssize(sources));
    lines.kept.emplace_back(blank ? line : std::string_view());
    if (!blank) sources.push_back(encode(engine, line, frame));
    if (end == text.size()) return lines;
    text.remove_prefix(end + 1);
  }
}

std::vector<std::vector<int32_t>> encode_phrases(const TranslationEngine& engine,
                                                 const std::vector<std::string>& phrases,
                                                 const std::string& place) {
  std::vector<std::vector<int32_t>> ids;
  for (size_t i = 0; i < phrases.size(); ++i)
    ids.push_back(engine.encode_phrase(phrases[i], fmt::format("{}[{}]", place, i)));
  return ids;
}

// The text of which each line is its `rank`-th translation, or the last there is.
std::string join(const TextLines& lines, const TranslationJob::Lines& found, size_t rank) {
  std::string out;
  for (size_t i = 0; i < lines.source.size(); ++i) {
    if (i > 0) out += '\n';
    if (lines.source[i] < 0) {
      out += lines.kept[i];
    } else {
      const auto& best = found[static_cast<size_t>(lines.source[i])];
      out += best[std::min(rank, best.size() - 1)].text;
    }
  }
  return out;
}

Json alternatives_of(const TextLines& lines, const TranslationJob::Lines& found, int64_t most) {
  size_t ranks = 0;
  for (const auto& best : found) ranks = std::max(ranks, best.size());
  Json list{Json::Array{}};
  std::vector<std::string> seen = {join(lines, found, 0)};
  for (size_t rank = 1; rank < ranks && std::ssize(*list.if_array()) < most; ++rank) {
    std::string text = join(lines, found, rank);
    if (std::ranges::find(seen, text) != seen.end()) continue;
    list.push_back(text);
    seen.push_back(std::move(text));
  }
  return list;
}

Json one_or_list(bool list, Json::Array values) {
  return list ? Json(std::move(values)) : std::move(values.front());
}

// Whether a multilingual model has both languages.
bool translates(const ServedModel& m, const std::string& source, const std::string& target) {
  const train::Languages& l = m.translation->model().languages;
  const std::string to = l.code_of(target);
  if (to.empty() || (l.target_is_start && to != l.target)) return false;
  if (source == "auto") return !l.needs_source() || !l.source.empty();
  if (l.needs_source()) return !l.code_of(source).empty();
  return m.languages.source.empty() || m.languages.source == source;
}

// What a request is told whose lines were not translated.
std::function<void(Errc, const std::string&)> failing(const std::shared_ptr<Exchange>& exchange,
                                                      const char* path) {
  return [exchange, path](Errc code, const std::string& why) {
    const int status = code == Errc::invalid_argument ? 400 : 503;
    exchange->reply(error_reply(path, status, message_of(why)));
  };
}

Json translation_json(const train::Translation& t) {
  return {{"text", t.text}, {"score", t.score}, {"log_probability", t.log_probability}};
}

}  // namespace

ServedModel& Server::model_for(const TranslateRequest& r) {
  if (!r.model.empty()) return translation_model(r.model);
  ServedModel* found = nullptr;
  for (ServedModel& m : models_) {
    if (m.translation && translates(m, r.source, r.target)) return m;
    if (!m.translation || m.languages.target != r.target) continue;
    if (r.source != "auto" && m.languages.source != r.source) continue;
    if (r.source == "auto" && found != nullptr && found->languages.source != m.languages.source) {
      throw RequestError(400,
                         fmt::format("source is auto, but several languages are translated to {} "
                                     "here and none is detected; name it",
                                     r.target));
    }
    if (found == nullptr) found = &m;
  }
  if (found != nullptr) return *found;
  throw RequestError(400, fmt::format("{:.50} to {:.50} is not translated here; /languages lists "
                                      "what is",
                                      r.source, r.target));
}

// Codes that are "" are the model's own.
void Server::name_languages(const ServedModel& model, const std::string& source,
                            const std::string& target, LanguageFrame& frame) const {
  const train::Languages& l = model.translation->model().languages;
  const bool is_pair = !target.empty() && target == model.languages.target;
  if (l.told == train::Languages::Told::nothing || is_pair) return;
  const auto resolve = [&](const char* side, const std::string& name, const std::string& own,
                           bool needed) {
    const std::string code = name.empty() || name == "auto" ? own : l.code_of(name);
    const bool fixed = side[0] == 't' && l.target_is_start && code != l.target;
    if ((!code.empty() || (!needed && name.empty())) && !fixed) return code;
    throw RequestError(400, fmt::format("{} is \"{:.50}\", which {} does not have as that; "
                                        "/languages lists what it has",
                                        side, name, model.name));
  };
  const std::string to = resolve("target", target, l.target, l.needs_target());
  const std::string from =
      l.needs_source() ? resolve("source", source, l.source, true) : std::string();
  frame.source =
      l.source_frame(from, to, static_cast<int32_t>(model.translation->model().config.eos_id));
  frame.target = l.target_begin(to);
}

void Server::submit(ServedModel& model, TranslationJob job) {
  TranslationEngine& engine = *model.translation;
  if (const int64_t lines = std::ssize(job.sources); lines > engine.queue()) {
    throw RequestError(413, fmt::format("the request has {} lines and at most {} are taken at once",
                                        lines, engine.queue()));
  }
  require(engine.submit(std::move(job)), model.name);
}

void Server::translate(const Shared& exchange) {
  const HttpRequest& http = exchange->request();
  // LibreTranslate reads fields wherever they are, and deep-translator has them in the address.
  const bool in_address = http.body.empty() && !http.query.empty();
  const TranslateRequest r =
      in_address ? parse_translate(http.query, "application/x-www-form-urlencoded", options_.json)
                 : parse_translate(http.body, http.header("content-type"), options_.json);
  if (!authorised(http) && !options_.keys.holds(r.api_key))
    throw RequestError(401, "a key is needed: api_key, or Authorization: Bearer KEY");
  ServedModel& model = model_for(r);
  TranslationJob job;
  LanguageFrame frame;
  name_languages(model, r.source, r.target, frame);
  job.search.prefix = frame.target;
  std::vector<TextLines> texts;
  for (size_t i = 0; i < r.texts.size(); ++i) {
    const size_t before = job.sources.size();
    texts.push_back(split(*model.translation, r.texts[i], frame, job.sources));
    if (r.phrases.empty()) continue;
    job.phrases.resize(job.sources.size());
    if (r.phrases[i].empty()) continue;
    const std::string place = r.list ? fmt::format("phrases[{}]", i) : "phrases";
    if (const size_t lines = job.sources.size() - before; lines != 1) {
      throw RequestError(400,
                         fmt::format("{} are of a text with {} lines that hold something; they "
                                     "need one, so give each sentence as a text of the list q",
                                     place, lines));
    }
    job.phrases.back() = encode_phrases(*model.translation, r.phrases[i], place);
  }
  const auto answer = [exchange, texts = std::move(texts), list = r.list,
                       detect = r.source == "auto", source = model.languages.source,
                       most = r.alternatives](const TranslationJob::Lines& found) {
    Json::Array translated, alternatives, detected;
    for (const TextLines& lines : texts) {
      translated.emplace_back(join(lines, found, 0));
      alternatives.push_back(alternatives_of(lines, found, most));
      detected.push_back({{"confidence", 0}, {"language", source}});  // supposed, not detected
    }
    Json body;
    if (most > 0) body["alternatives"] = one_or_list(list, std::move(alternatives));
    if (detect) body["detectedLanguage"] = one_or_list(list, std::move(detected));
    body["translatedText"] = list ? Json(std::move(translated)) : std::move(translated.front());
    exchange->reply({.body = body.dump() + "\n"});
  };
  if (job.sources.empty()) return answer({});
  job.search.nbest = static_cast<int>(r.alternatives + 1);
  job.cancelled = [exchange] { return exchange->cancelled(); };
  job.done = answer;
  job.failed = failing(exchange, "/translate");
  submit(model, std::move(job));
}

void Server::translate_batch(const Shared& exchange) {
  const HttpRequest& http = exchange->request();
  if (http.header("content-type").starts_with("text/plain")) return translate_lines(exchange);
  const BatchRequest r = parse_batch(parse_body(http.body, options_.json));
  ServedModel& model = translation_model(r.model);
  TranslationJob job;
  LanguageFrame frame;
  name_languages(model, r.source, r.target, frame);
  job.search.prefix = frame.target;
  for (size_t i = 0; i < r.texts.size(); ++i) {
    if (r.texts[i].find('\n') != std::string::npos) {
      throw RequestError(400, fmt::format("texts[{}] has several lines; give one sentence in each "
                                          "text, or a whole text to /translate",
                                          i));
    }
    job.sources.push_back(encode(*model.translation, r.texts[i], frame));
    if (r.phrases.empty()) continue;
    job.phrases.push_back(
        encode_phrases(*model.translation, r.phrases[i], fmt::format("phrases[{}]", i)));
  }
  job.search.nbest = static_cast<int>(r.nbest);
  job.cancelled = [exchange] { return exchange->cancelled(); };
  job.done = [exchange, name = model.name, nbest = r.nbest](const TranslationJob::Lines& found) {
    Json::Array all;
    for (const auto& best : found) {
      Json one = translation_json(best.front());
      if (nbest > 1) {
        Json list{Json::Array{}};
        for (size_t k = 0; k < std::min(best.size(), static_cast<size_t>(nbest)); ++k)
          list.push_back(translation_json(best[k]));
        one["nbest"] = std::move(list);
      }
      all.push_back(std::move(one));
    }
    exchange->reply(
        {.body = Json{{"model", name}, {"translations", Json(std::move(all))}}.dump() + "\n"});
  };
  job.failed = failing(exchange, "/v1/translate");
  submit(model, std::move(job));
}

// One line in, one line out, as `saturate translate` has it.
void Server::translate_lines(const Shared& exchange) {
  const HttpRequest& http = exchange->request();
  std::string name;
  for (const auto& [key, value] : parse_form(http.query)) {
    if (key == "model") name = value;
  }
  if (const size_t at = find_invalid_utf8(http.body); at != std::string::npos)
    throw RequestError(400, fmt::format("byte {} of the text is not UTF-8; send UTF-8", at + 1));
  ServedModel& model = translation_model(name);
  TranslationJob job;
  LanguageFrame frame;
  name_languages(model, "", "", frame);
  job.search.prefix = frame.target;
  TextLines lines = split(*model.translation, http.body, frame, job.sources);
  const auto answer = [exchange, lines = std::move(lines)](const TranslationJob::Lines& found) {
    exchange->reply({.body = join(lines, found, 0), .type = "text/plain; charset=utf-8"});
  };
  if (job.sources.empty()) return answer({});
  job.cancelled = [exchange] { return exchange->cancelled(); };
  job.done = answer;
  job.failed = failing(exchange, "/v1/translate");
  submit(model, std::move(job));
}

}  // namespace saturate::serve
