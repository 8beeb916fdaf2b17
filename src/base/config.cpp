// SPDX-License-Identifier: Apache-2.0
#include "base/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "base/config_keys.h"
#include "base/error.h"
#include "base/text.h"
#include "base/utf8.h"

namespace saturate {
namespace {

using config::Key;
using config::Value;

[[noreturn]] void reject(const std::string& message) {
  throw Error(Errc::invalid_argument, "config", message);
}

template <class T>
bool whole_text_is(std::string_view text, T& out) {
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), out);
  return code == std::errc() && end == text.data() + text.size();
}

[[noreturn]] void reject_quotes(std::string_view text) {
  reject(fmt::format(
      "{}: a quoted text must end with its quote; write \"a\", \"b\" or a, b without quotes",
      text));
}

// A TOML string without its quotes; any other text as it is.
std::string unquoted(std::string_view text) {
  if (!text.starts_with('"') && !text.starts_with('\'')) return std::string(text);
  std::optional<std::string> inner = config::toml_string(text);
  if (!inner) reject_quotes(text);
  return *std::move(inner);
}

// The byte after the quoted text that `text` begins with; 0 when it begins with none.
size_t quoted_length(std::string_view text) {
  const char quote = text.empty() ? '\0' : text[0];
  if (quote != '"' && quote != '\'') return 0;
  for (size_t i = 1; i < text.size(); ++i) {
    if (text[i] == quote) return i + 1;
    if (text[i] == '\\' && quote == '"') ++i;
  }
  reject_quotes(text);
}

// As TOML writes a list, or its elements alone; quotes may be left out, as the shell does.
std::vector<std::string> split_list(std::string_view text) {
  const bool brackets = text.starts_with('[') && text.ends_with(']');
  if (brackets) text = trim(text.substr(1, text.size() - 2));
  std::vector<std::string> parts;
  while (!text.empty()) {
    const size_t comma = text.find(',', quoted_length(text));
    parts.push_back(unquoted(trim(text.substr(0, comma))));
    if (comma == std::string_view::npos) return parts;
    text = trim(text.substr(comma + 1));
  }
  if (!parts.empty() && !brackets)
    parts.emplace_back();  // "a," is a mistake that is reported later
  return parts;
}

// Reads `text` as the type of the key; what does not parse stays text, which assign() then refuses.
Value typed(const Key& key, std::string_view text) {
  RunConfig any;
  const config::Slot slot = key.slot(any);
  const auto holds = [&](auto one, auto other) {
    return std::holds_alternative<decltype(one)>(slot) ||
           std::holds_alternative<decltype(other)>(slot);
  };
  using OptionalText = std::optional<std::string>*;
  if (std::holds_alternative<std::vector<std::string>*>(slot)) return split_list(text);
  if (holds(static_cast<std::string*>(nullptr), OptionalText{})) return unquoted(text);
  if (holds(static_cast<bool*>(nullptr), static_cast<std::optional<bool>*>(nullptr))) {
    if (text == "true" || text == "on" || text == "1") return true;
    if (text == "false" || text == "off" || text == "0") return false;
  }
  if (int64_t whole = 0; whole_text_is(text, whole)) return whole;
  if (double real = 0; whole_text_is(text, real)) return real;
  return std::string(text);
}

std::string section_of(std::string_view name) {
  const size_t dot = name.find('.');
  return std::string(dot == std::string_view::npos ? "" : name.substr(0, dot));
}

}  // namespace

void set_parallel(RunConfig& config, std::string_view text) {
  if (trim(text) == "auto") {
    config.parallel = {.schedule = "auto"};
    return;
  }
  if (config.parallel.schedule == "auto") config.parallel = {};
  bool names_axis = false;
  for (std::string_view rest = text; !rest.empty();) {
    const size_t comma = std::min(rest.find(','), rest.size());
    const std::string_view part = trim(rest.substr(0, comma));
    rest.remove_prefix(std::min(comma + 1, rest.size()));
    const size_t equals = part.find('=');
    if (equals == std::string_view::npos) {
      reject(fmt::format("parallel: {:.100} has no '='; write it like tp=2,zero=3, or auto", part));
    }
    const std::string_view name = trim(part.substr(0, equals));
    // The layout is said anew, whatever a file or the run that is resumed says.
    if (name == "dp" || name == "tp" || name == "cp" || name == "pp" || name == "ep") {
      ParallelConfig& p = config.parallel;
      if (!names_axis) p.dp = 0, p.tp = p.cp = p.pp = p.ep = 1;
      names_axis = true;
    }
    const std::string key =
        name == "micro_batches" ? "batch.accumulate" : fmt::format("parallel.{}", name);
    set_key(config, fmt::format("{}={}", key, trim(part.substr(equals + 1))));
  }
}

void set_lora(RunConfig& config, std::string_view text) {
  bool wants_rank = trim(text).empty();  // or it names one: 0 would train all of the model unasked
  for (std::string_view rest = text; !rest.empty();) {
    const size_t comma = std::min(rest.find(','), rest.size());
    const std::string_view part = trim(rest.substr(0, comma));
    rest.remove_prefix(std::min(comma + 1, rest.size()));
    const size_t equals = part.find('=');
    if (equals == std::string_view::npos && part != "rslora") {
      reject(fmt::format("lora: {:.100} has no '='; write it like rank=16,targets=q_proj+v_proj",
                         part));
    }
    const std::string_view name = trim(part.substr(0, equals));
    std::string value(equals == std::string_view::npos ? "true" : trim(part.substr(equals + 1)));
    if (name == "targets") std::ranges::replace(value, '+', ',');
    if (name == "rank") wants_rank = true;
    set_key(config, fmt::format("lora.{}={}", name, value));
  }
  if (wants_rank && config.lora.rank == 0) {
    reject(
        "lora: rank must be 1 or more; write it like rank=16, or leave lora out to train all of "
        "the "
        "model");
  }
}

void set_key(RunConfig& config, std::string_view assignment) {
  const size_t bad = find_invalid_utf8(assignment);
  if (bad != std::string_view::npos) reject(fmt::format("--set: byte {} is not UTF-8", bad + 1));
  const size_t equals = assignment.find('=');
  if (equals == std::string_view::npos) {
    reject(fmt::format("--set {:.100} has no '='; write section.key=value", assignment));
  }
  const std::string_view name = trim(assignment.substr(0, equals));
  if (name == "parallel") {
    set_parallel(config, unquoted(trim(assignment.substr(equals + 1))));
    return;
  }
  if (name == "lora") {
    set_lora(config, unquoted(trim(assignment.substr(equals + 1))));
    return;
  }
  const Key* key = config::find_key(name);
  if (!key) {
    reject(fmt::format("unknown key '{:.100}'{} (saturate train --help-config lists all keys)",
                       name, did_you_mean(name, config::key_names())));
  }
  const std::string problem =
      assign(*key, config, typed(*key, trim(assignment.substr(equals + 1))));
  if (!problem.empty()) reject(fmt::format("{} {}", name, problem));
}

void check_config(const RunConfig& c) {
  const bool needs_end = c.schedule.kind == "linear" || c.schedule.kind == "cosine" ||
                         c.schedule.kind == "warmup_stable_decay";
  const int64_t end = c.schedule.total_steps > 0 ? c.schedule.total_steps : c.train.max_steps;
  if (needs_end && end == 0) {
    reject(
        fmt::format("schedule.kind = {} needs an end; set train.max_steps or schedule.total_steps",
                    c.schedule.kind));
  }
  if (needs_end && c.schedule.warmup_steps >= end) {
    reject(fmt::format("schedule.warmup_steps = {} must be below the last step, {}",
                       c.schedule.warmup_steps, end));
  }
  LoraConfig others = c.lora;
  others.rank = 0;
  if (c.lora.rank == 0 && others != LoraConfig{}) {
    reject(
        "lora.rank is 0, so that there are no adapters, but another key says how they are; give "
        "lora.rank, or leave the other out");
  }
  if (c.lora.rank > 0 && c.parallel.schedule == "auto") {
    reject("parallel = auto does not know of adapters; give --parallel dp=N, or leave it out");
  }
  if (c.translate.max_length_factor == 0 && c.translate.max_length_offset == 0) {
    reject(
        "translate.max_length_factor and translate.max_length_offset are both 0, so that no "
        "translation could have a word; raise one of them");
  }
  if (c.data.languages.size() > 2) {
    reject(fmt::format("data.languages names {} languages; give the source and the target",
                       c.data.languages.size()));
  }
}

std::string to_toml(const RunConfig& config, TomlComments comments) {
  std::string out, section;
  for (const Key& key : config::keys()) {
    const std::string_view name = key.name;
    if ((name == "resume" && !config.resume) || (name == "quiet" && !config.quiet)) continue;
    const std::string here = section_of(name);
    if (here != section) out += fmt::format("\n[{}]\n", here);
    section = here;
    if (comments == TomlComments::yes) {
      out += fmt::format("# {} ({})\n", key.help, type_text(key));
    }
    const std::string value = value_text(key, config);
    const std::string_view last = here.empty() ? name : name.substr(here.size() + 1);
    out += value.empty() ? fmt::format("# {} = from the preset\n", last)
                         : fmt::format("{} = {}\n", last, value);
  }
  return out;
}

std::string config_help(std::string_view prefix) {
  const RunConfig defaults;
  std::string out;
  for (const Key& key : config::keys()) {
    if (!std::string_view(key.name).starts_with(prefix)) continue;
    const std::string value = value_text(key, defaults);
    out += fmt::format("  {} = {}\n      {}\n      {}\n", key.name,
                       value.empty() ? "from the preset" : value, key.help, type_text(key));
  }
  return out;
}

}  // namespace saturate
