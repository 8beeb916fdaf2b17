// SPDX-License-Identifier: Apache-2.0
#include "apps/usage.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <string_view>
#include <vector>

#include "base/text.h"

namespace saturate::apps {

std::string usage_message(CLI::App& app, const CLI::ParseError& error, int argc, char** argv) {
  std::vector<std::string> names;
  std::string wrong;
  auto commands = app.get_subcommands();  // those that were given
  std::string outer;
  if (!commands.empty() && !commands[0]->get_subcommands().empty()) {
    outer = " " + commands[0]->get_name();
    commands = commands[0]->get_subcommands();
    // An option that it lacks, which CLI11 may count among its positionals.
    int i = 2;
    while (i < argc && commands[0]->get_name() != argv[i]) ++i;
    for (; i < argc && wrong.empty(); ++i) {
      std::string_view name = argv[i];
      name = name.substr(0, name.find('='));
      if (name.starts_with("--") && commands[0]->get_option_no_throw(std::string(name)) == nullptr)
        wrong = name;
    }
  }
  if (commands.empty()) {
    for (const CLI::App* c : app.get_subcommands([](CLI::App*) { return true; }))
      names.push_back(c->get_name());
    if (argc > 1) wrong = argv[1];
  } else {
    for (const CLI::Option* o : commands[0]->get_options()) names.push_back(o->get_name());
    if (wrong.empty() && dynamic_cast<const CLI::ExtrasError*>(&error)) {
      const auto extras = commands[0]->remaining();
      if (!extras.empty()) wrong = extras[0];
    }
  }
  const std::vector<std::string_view> views(names.begin(), names.end());
  const std::string command = commands.empty() ? "" : outer + " " + commands[0]->get_name();
  std::string problem =
      wrong.empty() ? std::string(error.what()) : fmt::format("unknown argument '{}'", wrong);
  if (command == " doctor" && !wrong.empty() && !wrong.starts_with('-'))
    problem += "; a command to watch stands after --, as in saturate doctor -- python train.py";
  return fmt::format("{}{} (saturate{} --help explains)", problem, did_you_mean(wrong, views),
                     command);
}

}  // namespace saturate::apps
