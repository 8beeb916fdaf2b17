// SPDX-License-Identifier: Apache-2.0
#include "train/languages.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <sstream>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "model/hf_config.h"

namespace saturate::train {
namespace {

namespace fs = std::filesystem;
using model::HfClass;

// In the order of their ids, for folders that do not name them. Source: fairseq, the dictionaries of
// mBART-50, whose first 25 are mBART's, and of M2M100.
constexpr size_t kMbartLanguages = 25;
constexpr std::string_view kMbart50 =
    "ar_AR cs_CZ de_DE en_XX es_XX et_EE fi_FI fr_XX gu_IN hi_IN it_IT ja_XX kk_KZ ko_KR lt_LT "
    "lv_LV "
    "my_MM ne_NP nl_XX ro_RO ru_RU si_LK tr_TR vi_VN zh_CN af_ZA az_AZ bn_IN fa_IR he_IL hr_HR "
    "id_ID "
    "ka_GE km_KH mk_MK ml_IN mn_MN mr_IN pl_PL ps_AF pt_XX sv_SE sw_KE ta_IN te_IN th_TH tl_XX "
    "uk_UA "
    "ur_PK xh_ZA gl_ES sl_SI";
constexpr std::string_view kM2m100 =
    "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu "
    "ha he "
    "hi hr ht hu hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr ms my ne "
    "nl "
    "no ns oc or pa pl ps pt ro ru sd si sk sl so sq sr ss su sv sw ta th tl tn tr uk ur uz vi wo "
    "xh "
    "yi yo zh zu";

// NLLB's codes of languages that clients call by two letters; the rest of the two letters' languages it
// has under several scripts or not at all.
constexpr std::pair<std::string_view, std::string_view> kIso639[] = {
    {"af", "afr_Latn"}, {"ar", "arb_Arab"}, {"az", "azj_Latn"}, {"be", "bel_Cyrl"},
    {"bg", "bul_Cyrl"}, {"bn", "ben_Beng"}, {"bs", "bos_Latn"}, {"ca", "cat_Latn"},
    {"cs", "ces_Latn"}, {"cy", "cym_Latn"}, {"da", "dan_Latn"}, {"de", "deu_Latn"},
    {"el", "ell_Grek"}, {"en", "eng_Latn"}, {"eo", "epo_Latn"}, {"es", "spa_Latn"},
    {"et", "est_Latn"}, {"eu", "eus_Latn"}, {"fa", "pes_Arab"}, {"fi", "fin_Latn"},
    {"fr", "fra_Latn"}, {"ga", "gle_Latn"}, {"gl", "glg_Latn"}, {"gu", "guj_Gujr"},
    {"he", "heb_Hebr"}, {"hi", "hin_Deva"}, {"hr", "hrv_Latn"}, {"hu", "hun_Latn"},
    {"hy", "hye_Armn"}, {"id", "ind_Latn"}, {"is", "isl_Latn"}, {"it", "ita_Latn"},
    {"ja", "jpn_Jpan"}, {"ka", "kat_Geor"}, {"kk", "kaz_Cyrl"}, {"km", "khm_Khmr"},
    {"kn", "kan_Knda"}, {"ko", "kor_Hang"}, {"lt", "lit_Latn"}, {"lv", "lvs_Latn"},
    {"mk", "mkd_Cyrl"}, {"ml", "mal_Mlym"}, {"mr", "mar_Deva"}, {"ms", "zsm_Latn"},
    {"mt", "mlt_Latn"}, {"nb", "nob_Latn"}, {"ne", "npi_Deva"}, {"nl", "nld_Latn"},
    {"nn", "nno_Latn"}, {"pa", "pan_Guru"}, {"pl", "pol_Latn"}, {"pt", "por_Latn"},
    {"ro", "ron_Latn"}, {"ru", "rus_Cyrl"}, {"sk", "slk_Latn"}, {"sl", "slv_Latn"},
    {"sq", "als_Latn"}, {"sr", "srp_Cyrl"}, {"sv", "swe_Latn"}, {"sw", "swh_Latn"},
    {"ta", "tam_Taml"}, {"te", "tel_Telu"}, {"th", "tha_Thai"}, {"tl", "tgl_Latn"},
    {"tr", "tur_Latn"}, {"uk", "ukr_Cyrl"}, {"ur", "urd_Arab"}, {"vi", "vie_Latn"},
    {"zh", "zho_Hans"}, {"zt", "zho_Hant"}, {"zu", "zul_Latn"}};

bool is_lower(char c) { return c >= 'a' && c <= 'z'; }
bool is_upper(char c) { return c >= 'A' && c <= 'Z'; }

// The code in a token of a language: eng_Latn, en_XX, __en__, >>fra<<; "" in any other.
std::string code_in(std::string_view token) {
  const auto all = [](std::string_view s, auto is) {
    return !s.empty() && std::ranges::all_of(s, is);
  };
  if (token.size() > 4 && token.starts_with("__") && token.ends_with("__")) {
    const std::string_view code = token.substr(2, token.size() - 4);
    return all(code, is_lower) ? std::string(code) : std::string();
  }
  if (token.size() > 4 && token.starts_with(">>") && token.ends_with("<<"))
    return std::string(token.substr(2, token.size() - 4));
  const size_t bar = token.find('_');
  if (bar == std::string_view::npos) return {};
  const std::string_view language = token.substr(0, bar), place = token.substr(bar + 1);
  const bool nllb = language.size() == 3 && place.size() == 4 && is_upper(place[0]) &&
                    all(place.substr(1), is_lower);
  const bool mbart = language.size() == 2 && place.size() == 2 && all(place, is_upper);
  return all(language, is_lower) && (nllb || mbart) ? std::string(token) : std::string();
}

Json read_if_there(const std::string& folder, const char* name) {
  const std::string path = folder + "/" + name;
  if (!fs::exists(path)) return {};
  constexpr JsonLimits kLimits{.max_bytes = size_t{256} << 20, .max_values = size_t{1} << 24};
  return read_json_file(path, kLimits);
}

std::string text_in(const Json& json, const char* key) {
  const std::string* text = json[key].if_string();
  return text != nullptr ? *text : std::string();
}

void take(std::vector<LanguageToken>& out, const Json& token, int64_t id) {
  // A token alone, or with what is said of it.
  const std::string* text =
      token.if_string() != nullptr ? token.if_string() : token["content"].if_string();
  if (text != nullptr && !code_in(*text).empty()) out.push_back({*text, id});
}

std::string tokenizer_class(const std::string& folder) {
  const std::string own =
      text_in(read_if_there(folder, "tokenizer_config.json"), "tokenizer_class");
  return own.empty() ? text_in(read_if_there(folder, "config.json"), "tokenizer_class") : own;
}

}  // namespace

std::vector<LanguageToken> language_tokens(const std::string& folder,
                                           const model::ModelConfig& config) {
  const HfClass family = model::nearest_hf_class(config);
  std::vector<LanguageToken> out;
  if (family != HfClass::m2m100 && family != HfClass::mbart) return out;
  const Json settings = read_if_there(folder, "tokenizer_config.json");
  if (const Json::Object* added = settings["added_tokens_decoder"].if_object()) {
    for (const Json::Member& m : *added) {
      int64_t id = -1;
      std::istringstream(m.key) >> id;
      if (id >= 0) take(out, m.value, id);
    }
  }
  if (out.empty()) {
    const Json whole = read_if_there(folder, "tokenizer.json");
    const Json& added = whole["added_tokens"];
    for (size_t i = 0; i < added.size(); ++i)
      if (const int64_t* id = added[i]["id"].if_int()) take(out, added[i], *id);
  }
  std::ranges::sort(out, {}, &LanguageToken::id);
  for (const Json& file : {settings, read_if_there(folder, "special_tokens_map.json")}) {
    for (const char* key : {"extra_special_tokens", "additional_special_tokens"}) {
      const Json& list = file[key];
      for (size_t i = 0; list.if_array() != nullptr && out.empty() && i < list.size(); ++i) {
        for (size_t k = 0; k < list.size(); ++k) take(out, list[k], -1);
      }
    }
  }
  if (!out.empty()) return out;
  const bool m2m = family == HfClass::m2m100;
  if (m2m && !fs::exists(folder + "/vocab.json")) return out;  // NLLB, whose folders name them
  std::istringstream codes{std::string(m2m ? kM2m100 : kMbart50)};
  const bool fifty = tokenizer_class(folder).starts_with("MBart50");
  for (std::string code; codes >> code;) {
    if (!m2m && !fifty && out.size() == kMbartLanguages) break;
    out.push_back({m2m ? "__" + code + "__" : code, -1});
  }
  return out;
}

Languages read_languages(const std::string& folder, const model::ModelConfig& config,
                         const data::Tokenizer& target) {
  const HfClass family = model::nearest_hf_class(config);
  Languages l;
  const bool marks = family == HfClass::marian;
  if (!marks && family != HfClass::m2m100 && family != HfClass::mbart) return l;
  for (int32_t id = 0; id < target.vocab_size(); ++id) {
    const std::string& piece = target.piece(id);
    if (piece.starts_with(">>") != marks) continue;
    if (const std::string code = code_in(piece); !code.empty()) l.ids.emplace(code, id);
  }
  if (l.ids.empty()) return l;
  if (marks) {
    l.told = Languages::Told::target_before;
    return l;
  }
  const Json settings = read_if_there(folder, "tokenizer_config.json");
  const std::string name = tokenizer_class(folder);
  const bool* older = settings["legacy_behaviour"].if_bool();
  const bool mbart = family == HfClass::mbart && !name.starts_with("MBart50") &&
                     (name.starts_with("MBart") || l.ids.size() <= kMbartLanguages);
  l.told = mbart || (older != nullptr && *older) ? Languages::Told::source_behind
                                                 : Languages::Told::source_before;
  l.source = l.code_of(text_in(settings, "src_lang"));
  l.target = l.code_of(text_in(settings, "tgt_lang"));
  const auto code_with = [&](int64_t id) {
    const auto found =
        std::ranges::find_if(l.ids, [&](const auto& one) { return one.second == id; });
    return found == l.ids.end() ? std::string() : found->first;
  };
  const std::string started = code_with(config.decoder_start_id);
  l.target_is_start = !started.empty();
  const std::string forced = code_with(read_forced_first(folder, config));
  if (!forced.empty()) l.target = forced;
  if (l.target_is_start) l.target = started;
  return l;
}

int64_t read_forced_first(const std::string& folder, const model::ModelConfig& config) {
  // What the first says nothing of the second may say.
  for (const char* name : {"generation_config.json", "config.json"}) {
    const Json json = read_if_there(folder, name);
    const int64_t* id = json["forced_bos_token_id"].if_int();
    if (id == nullptr) continue;
    if (*id >= 0 && *id < config.vocab_target) return *id;
    throw Error(Errc::invalid_argument, "model",
                fmt::format("{}/{}: forced_bos_token_id is {}, the vocabulary has {} ids", folder,
                            name, *id, config.vocab_target));
  }
  return -1;
}

std::string Languages::code_of(const std::string& name) const {
  if (ids.contains(name)) return name;
  const auto found =
      std::ranges::find(kIso639, name, &std::pair<std::string_view, std::string_view>::first);
  if (found != std::end(kIso639) && ids.contains(std::string(found->second)))
    return std::string(found->second);
  // en_XX for en; and __en__, as tokenizers write it, for en.
  const auto regional = ids.lower_bound(name + "_");
  if (name.size() == 2 && regional != ids.end() && regional->first.starts_with(name + "_"))
    return regional->first;
  const std::string inner = code_in(name);
  return ids.contains(inner) ? inner : std::string();
}

std::string Languages::name_of(const std::string& code) {
  const auto found =
      std::ranges::find(kIso639, code, &std::pair<std::string_view, std::string_view>::second);
  if (found != std::end(kIso639)) return std::string(found->first);
  return code.size() == 5 && code[2] == '_' ? code.substr(0, 2) : code;
}

int32_t Languages::id_of(const std::string& code) const {
  const std::string own = code_of(code);
  if (!own.empty()) return ids.at(own);
  std::vector<std::string_view> codes;
  for (const auto& [name, id] : ids) codes.push_back(name);
  throw Error(
      Errc::invalid_argument, "languages",
      fmt::format("{:.40} is none of the {} languages of this model, whose codes are like {}{}",
                  code, ids.size(), codes.front(), did_you_mean(code, codes)));
}

data::TextFrame Languages::source_frame(const std::string& from, const std::string& to,
                                        int32_t eos) const {
  data::TextFrame frame{.before = {}, .after = {eos}};
  if (told == Told::target_before && !to.empty()) frame.before = {id_of(to)};
  if (!needs_source() || from.empty()) return frame;
  if (told == Told::source_before) frame.before = {id_of(from)};
  if (told == Told::source_behind) frame.after.push_back(id_of(from));
  return frame;
}

std::vector<int32_t> Languages::target_begin(const std::string& to) const {
  if (!needs_target() || to.empty()) return {};
  return {id_of(to)};
}

}  // namespace saturate::train
