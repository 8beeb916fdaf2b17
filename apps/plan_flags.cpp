// SPDX-License-Identifier: Apache-2.0
#include "apps/command_line.h"

namespace saturate::apps {

CLI::App* define_plan(CLI::App& app, PlanOptions& plan, ConfigFlags& plan_flags) {
  CLI::App& c = *app.add_subcommand(
      "plan", "find the fastest layout of a model on a number of devices, before it runs");
  add_config_file(c, plan_flags);
  add_key(c, plan_flags, "--preset", "model.preset", "shape of the model");
  add_key(c, plan_flags, "--device", "train.device", "auto, cpu, cuda or cuda:N");
  add_key(c, plan_flags, "--precision", "train.precision",
          "auto, fp32, bf16, fp16, fp8, mxfp8 or nvfp4");
  add_key(c, plan_flags, "--batch", "batch.target_tokens",
          "target tokens of a device and step; every layout gets as many in all");
  c.add_option("--model", plan.model, "plan for the model of this folder")->type_name("DIR");
  c.add_option("--devices", plan.devices, "how many there are")
      ->check(whole_range(1, 65536))
      ->capture_default_str();
  c.add_option("--machine", plan.machine,
               "file of a machine's rates, or h200, h200-ethernet, pcie-ethernet; without it this "
               "machine is measured")
      ->type_name("FILE");
  c.add_option("--layout", plan.layout,
               "plan this layout alone, as --parallel takes it, in micro-batches of --batch tokens")
      ->type_name("LAYOUT");
  c.add_option("--length", plan.length,
               "tokens of a sentence [32; of a language model its context, at most 1024]")
      ->check(whole_range(2, 1 << 20));
  c.add_option("--rows", plan.rows, "rows of the table")
      ->check(whole_range(1, 100000))
      ->capture_default_str();
  CLI::Option* compare =
      c.add_flag("--check", plan.check, "run the best three and print predicted against measured");
  c.add_option("--check-steps", plan.check_steps, "steps of each")
      ->needs(compare)
      ->check(whole_range(1, 100000))
      ->capture_default_str();
  c.add_option("--launcher", plan.launcher,
               "what starts ranks of this program, {ranks} for their number [GPUs: torchrun "
               "--standalone --nproc-per-node {ranks} --no-python; CPUs: mpirun -n {ranks}]")
      ->type_name("COMMAND");
  c.add_option("--mtbf", plan.mtbf_hours,
               "mean hours between failures of one device; the goodput is printed [the machine's]")
      ->check(real_range(1e-3, 1e9));
  c.add_option("--checkpoint", plan.checkpoint_minutes,
               "minutes between checkpoints whose goodput is printed beside the best")
      ->check(real_range(1e-3, 1e6));
  c.add_option("--timeline", plan.timeline, "write the fastest layout's step for ui.perfetto.dev")
      ->type_name("FILE");
  c.add_flag("--json", plan.json, "the whole plan as JSON");
  c.footer(R"(Examples:
  saturate plan --preset base --batch 25088 --devices 2 --check
  saturate plan --preset gpt2-1558m --batch 16384 --devices 64 --machine h200
  saturate plan --model runs/ende --batch 8192 --devices 16 --machine pcie-ethernet
  saturate plan --preset gpt2-1558m --batch 16384 --devices 4096 --machine h200 --checkpoint 30
  saturate plan --preset gpt2-355m --batch 16384 --set batch.accumulate=4 --devices 2 --layout pp=2 --check
  saturate plan --preset tiny --device cpu --devices 2 --check --timeline step.json)");
  return &c;
}

}  // namespace saturate::apps
