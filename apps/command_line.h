// SPDX-License-Identifier: Apache-2.0
// What the definitions of commands share.
#pragma once
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

#include "apps/commands.h"
#include "apps/config_flags.h"

namespace saturate::apps {

// CLI::Range lets "nan" pass.
inline CLI::Validator real_range(double least, double most) {
  return CLI::Validator(
      [least, most](const std::string& text) {
        double value = 0;
        const bool number = CLI::detail::lexical_cast(text, value);
        return number && value >= least && value <= most
                   ? std::string()
                   : fmt::format("{} is no number from {:g} to {:g}", text, least, most);
      },
      fmt::format("FLOAT in [{:g} - {:g}]", least, most));
}

// CLI::Range says the same of words as of numbers that are too large.
inline CLI::Validator whole_range(int64_t least, int64_t most) {
  return CLI::Validator(
      [least, most](const std::string& text) {
        int64_t value = 0;
        const bool number = CLI::detail::lexical_cast(text, value);
        return number && value >= least && value <= most
                   ? std::string()
                   : fmt::format("{} is no whole number from {} to {}", text, least, most);
      },
      fmt::format("INT in [{} - {}]", least, most));
}

inline void add_config_file(CLI::App& app, ConfigFlags& flags) {
  app.add_option("--config", flags.file, "TOML file with any of the keys of --help-config")
      ->type_name("FILE");
  app.add_option("--set", flags.settings, "set one key; may be given again, the last counts")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
}

// A flag that stands for a key of the configuration.
inline void add_key(CLI::App& app, ConfigFlags& flags, const std::string& flag,
                    const std::string& key, const std::string& help) {
  const auto store = [&flags, key](const std::string& value) {
    flags.shorthand.push_back(key + "=" + value);
  };
  app.add_option_function<std::string>(flag, store, help + " (" + key + ")")->type_name("VALUE");
}

// Each adds a command with its flags.
CLI::App* define_translate(CLI::App& app, TranslateOptions& translate);
CLI::App* define_generate(CLI::App& app, GenerateOptions& generate);
CLI::App* define_serve(CLI::App& app, ServeOptions& serve);
CLI::App* define_merge(CLI::App& app, ExportOptions& merge);
CLI::App* define_export(CLI::App& app, ExportOptions& options);
CLI::App* define_lab(CLI::App& app, LabOptions& lab);
CLI::App* define_shortlist(CLI::App& app, ShortlistOptions& shortlist);
CLI::App* define_panels(CLI::App& app, PanelsOptions& panels);
CLI::App* define_plan(CLI::App& app, PlanOptions& plan, ConfigFlags& flags);

}  // namespace saturate::apps
