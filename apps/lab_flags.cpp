// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>

#include "apps/command_line.h"

namespace saturate::apps {

CLI::App* define_lab(CLI::App& app, LabOptions& lab) {
  CLI::App* const lab_command = app.add_subcommand(
      "lab", "run small GPU programs with one planted bottleneck each, to see its diagnosis");
  CLI::App& c = *lab_command;
  c.require_subcommand(1);
  c.add_subcommand("list", "name the programs, what is wrong with each and its remedy")
      ->callback([&lab] { lab.verb = LabOptions::Verb::list; });
  CLI::App* run = c.add_subcommand("run", "run one and print what its bottleneck costs");
  run->add_option("program", lab.program, "a name that 'saturate lab list' prints")
      ->required()
      ->type_name("NAME");
  run->add_flag("--remedy", lab.remedy, "run the repaired variant");
  run->callback([&lab] { lab.verb = LabOptions::Verb::run; });
  CLI::App* compare =
      c.add_subcommand("compare", "the launch-bound loop and three remedies in one table");
  compare->callback([&lab] { lab.verb = LabOptions::Verb::compare; });
  for (CLI::App* one : {run, compare}) {
    one->add_option("--steps", lab.steps, "steps to measure")
        ->check(whole_range(1, 10'000'000))
        ->capture_default_str();
    one->add_option("--device", lab.device, "auto, cuda or cuda:N")->capture_default_str();
    one->add_flag("--json", lab.json, "one line of JSON");
  }
  run->footer("Example:\n  saturate lab run sync_each_step --remedy");
  compare->footer("Example:\n  saturate lab compare");
  c.footer(R"(Examples:
  saturate lab list
  saturate lab run sync_each_step
  saturate lab run sync_each_step --remedy
  saturate lab compare)");
  return lab_command;
}

}  // namespace saturate::apps
