// SPDX-License-Identifier: Apache-2.0
#include "serve/libretranslate.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "base/error.h"
#include "base/utf8.h"
#include "serve/http_parser.h"
#include "serve/request_error.h"

namespace saturate::serve {
namespace {

[[noreturn]] void refuse(const std::string& what) {
  throw Error(Errc::invalid_argument, "request", what);
}

constexpr int64_t kMostAlternatives = 64;

// A form as the object that the same fields in JSON would be.
Json form_object(std::string_view body) {
  Json object{Json::Object{}};
  Json::Array texts, phrases;
  for (auto& [name, value] : parse_form(body)) {
    if (find_invalid_utf8(name) != std::string::npos ||
        find_invalid_utf8(value) != std::string::npos)
      refuse("a field of the form is not UTF-8; send UTF-8 text");
    if (name == "q") {
      texts.emplace_back(std::move(value));
    } else if (name == "phrases") {
      phrases.emplace_back(std::move(value));
    } else if (object.find(name) != nullptr) {
      refuse(fmt::format("the field {:.100} is given twice", name));
    } else if (int64_t number = 0; name == "alternatives") {
      const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
      if (error != std::errc() || end != value.data() + value.size())
        refuse(fmt::format("alternatives is {:.100}: an integer is needed", value));
      object.add(name, Json(number));
    } else {
      object.add(name, Json(std::move(value)));
    }
  }
  if (texts.size() == 1) object.add("q", std::move(texts.front()));
  if (texts.size() > 1) object.add("q", Json(std::move(texts)));
  if (!phrases.empty()) object.add("phrases", Json(std::move(phrases)));
  return object;
}

void take_texts(JsonFields& fields, std::string_view key, const Json::Array& list,
                std::vector<std::string>& texts) {
  for (const Json& each : list) {
    const std::string* text = each.if_string();
    if (text == nullptr) fields.fail(key, "it must be a list of strings");
    texts.push_back(*text);
  }
}

// Of each of `texts`, in a list of lists; of one text that is no list, in a list.
std::vector<std::vector<std::string>> take_phrases(JsonFields& fields, size_t texts, bool list) {
  std::vector<std::vector<std::string>> phrases;
  if (!fields.has("phrases")) return phrases;
  const std::string rule =
      list ? fmt::format("it must hold a list of strings for each of the {} texts", texts)
           : "it must be a list of strings";
  const Json::Array& all = fields.list("phrases");
  if (!list) {
    phrases.emplace_back();
    take_texts(fields, "phrases", all, phrases.back());
    return phrases;
  }
  if (all.size() != texts) fields.fail("phrases", rule);
  for (const Json& each : all) {
    const Json::Array* of_text = each.if_array();
    if (of_text == nullptr) fields.fail("phrases", rule);
    take_texts(fields, "phrases", *of_text, phrases.emplace_back());
  }
  return phrases;
}

}  // namespace

TranslateRequest parse_translate(std::string_view body, std::string_view type,
                                 const JsonLimits& limits) {
  const bool form = type.starts_with("application/x-www-form-urlencoded");
  const Json object = form ? form_object(body) : parse_body(body, limits);
  JsonFields fields(object, "request", "the body");
  TranslateRequest r;
  r.api_key = fields.text_or("api_key", "");
  r.model = fields.text_or("model", "");
  if (!fields.has("q")) fields.fail("q", "give the text to translate");
  if (const Json::Array* list = object["q"].if_array()) {
    r.list = true;
    take_texts(fields, "q", *list, r.texts);
  } else {
    r.texts.push_back(fields.text("q"));
  }
  r.source = fields.text_or("source", "");
  r.target = fields.text_or("target", "");
  if (r.source.empty()) fields.fail("source", "give the code of its language, or auto");
  if (r.target.empty()) fields.fail("target", "give the code of the language to translate to");
  if (fields.text_or("format", "text") != "text")
    fields.fail("format", "only text is translated here; take the text out of the markup");
  r.alternatives = fields.integer_or("alternatives", 0);
  if (r.alternatives < 0 || r.alternatives > kMostAlternatives)
    fields.fail("alternatives", fmt::format("it must be in 0 .. {}", kMostAlternatives));
  r.phrases = take_phrases(fields, r.texts.size(), r.list);
  // Clients of LibreTranslate send what they like (a "secret" of its own page, an empty "api_key").
  return r;
}

BatchRequest parse_batch(const Json& body) {
  JsonFields fields(body, "request", "the body");
  BatchRequest r;
  r.model = fields.text_or("model", "");
  r.source = fields.text_or("source", "");
  r.target = fields.text_or("target", "");
  take_texts(fields, "texts", fields.list("texts"), r.texts);
  if (r.texts.empty()) fields.fail("texts", "it is empty; give at least one");
  r.phrases = take_phrases(fields, r.texts.size(), true);
  r.nbest = fields.integer_or("nbest", 1);
  if (r.nbest < 1 || r.nbest > kMostAlternatives)
    fields.fail("nbest", fmt::format("it must be in 1 .. {}", kMostAlternatives));
  fields.reject_others();
  return r;
}

LanguagePair languages_of(const std::string& folder) {
  const std::string path = folder + "/tokenizer_config.json";
  if (!std::filesystem::exists(path)) return {};
  const Json config = read_json_file(path);
  const auto text = [&](std::string_view key) {
    const std::string* value = config[key].if_string();
    return value == nullptr ? std::string() : *value;
  };
  return {text("source_lang"), text("target_lang")};
}

LanguagePair parse_languages(const std::string& text) {
  const size_t dash = text.find('-');
  const bool one = dash != std::string::npos && text.find('-', dash + 1) == std::string::npos;
  if (!one || dash == 0 || dash + 1 == text.size())
    refuse(fmt::format("--languages {}: give SOURCE-TARGET, as en-pt", text));
  return {text.substr(0, dash), text.substr(dash + 1)};
}

std::string language_name(const std::string& code) {
  // Of the languages that most corpora have; the rest goes by its code.
  static constexpr std::pair<std::string_view, std::string_view> kNames[] = {
      {"ar", "Arabic"},     {"bg", "Bulgarian"},  {"bn", "Bengali"},   {"ca", "Catalan"},
      {"cs", "Czech"},      {"da", "Danish"},     {"de", "German"},    {"el", "Greek"},
      {"en", "English"},    {"es", "Spanish"},    {"et", "Estonian"},  {"fa", "Persian"},
      {"fi", "Finnish"},    {"fr", "French"},     {"gl", "Galician"},  {"he", "Hebrew"},
      {"hi", "Hindi"},      {"hr", "Croatian"},   {"hu", "Hungarian"}, {"id", "Indonesian"},
      {"is", "Icelandic"},  {"it", "Italian"},    {"ja", "Japanese"},  {"ko", "Korean"},
      {"lt", "Lithuanian"}, {"lv", "Latvian"},    {"nb", "Norwegian"}, {"nl", "Dutch"},
      {"pl", "Polish"},     {"pt", "Portuguese"}, {"ro", "Romanian"},  {"ru", "Russian"},
      {"sk", "Slovak"},     {"sl", "Slovenian"},  {"sr", "Serbian"},   {"sv", "Swedish"},
      {"th", "Thai"},       {"tr", "Turkish"},    {"uk", "Ukrainian"}, {"ur", "Urdu"},
      {"vi", "Vietnamese"}, {"zh", "Chinese"}};
  for (const auto& [key, name] : kNames)
    if (key == code) return std::string(name);
  return code;
}

}  // namespace saturate::serve
