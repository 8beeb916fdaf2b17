// SPDX-License-Identifier: Apache-2.0
// `saturate plan`: which layout trains a model fastest on so many devices.
#include "plan/planner.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <sstream>

#include "apps/commands.h"
#include "apps/report_output.h"
#include "base/counted.h"
#include "base/durable_file.h"
#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "base/text.h"
#include "model/hf_config.h"
#include "plan/measure.h"
#include "plan/report.h"
#include "train/model_setup.h"
#include "train/tuned_tables.h"

namespace saturate::apps {
namespace {

// A file that goes with this object.
class ScratchFile {
 public:
  ScratchFile(const char* ending, const std::string& content)
      : path_((std::filesystem::temp_directory_path() /
               fmt::format("saturate-plan-{}{}", getpid(), ending))
                  .string()) {
    if (!content.empty()) write_durable_file(path_, content);
  }
  ~ScratchFile() {
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
  }
  ScratchFile(const ScratchFile&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Standard output of this program, started by `launcher`. Errors: io with the command.
std::string output_of(const std::string& launcher, const std::string& arguments) {
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  const std::string command = fmt::format("{} '{}' {}", launcher, self, arguments);
  std::FILE* out = popen(command.c_str(), "r");
  if (out == nullptr) throw Error(Errc::io, "plan", "cannot start " + command);
  std::string text;
  for (int c = std::fgetc(out); c != EOF; c = std::fgetc(out)) text += static_cast<char>(c);
  if (pclose(out) != 0)
    throw Error(
        Errc::io, "plan",
        fmt::format("{}: ended with an error; --launcher says how ranks are started", command));
  return text;
}

Json row_of(const std::string& output) {
  std::istringstream lines(output);
  std::optional<Json> row;
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with("{")) row = try_parse_json(line);
  if (!row) throw Error(Errc::io, "plan", "bench printed no row");
  return *row;
}

// The keys of [model] that make a preset the model of a folder.
void take_model(RunConfig& config, const std::string& folder) {
  const model::ModelConfig m = model::read_model_config(folder);
  ArchitectureConfig& a = config.model;
  const bool lm = m.kind == model::ModelKind::decoder_only;
  a.preset = lm ? "gpt2-124m" : "base";
  a.d_model = m.d_model;
  if (!lm) a.encoder_layers = m.encoder_layers;
  a.decoder_layers = m.decoder_layers;
  a.heads = m.heads;
  a.kv_heads = m.kv_heads;
  a.ffn = m.ffn;
  a.max_positions = m.max_positions;
  a.norm = model::name_of(m.norm);
  a.norm_position = model::name_of(m.norm_position);
  a.activation = model::name_of(m.activation);
  a.positions = model::name_of(m.positions);
  a.gated = m.gated;
  a.bias = m.biases;
  a.tie_embeddings = m.tied_output;
  a.mixers = m.mixers;
  config.data.vocab_size = m.vocab_target;
}

plan::Machine machine_of(const PlanOptions& o, Device device, const std::string& launcher) {
  if (!o.machine.empty()) return plan::read_machine(o.machine);
  plan::Machine m = plan::measure_device(device);
  if (o.devices == 1) return m;
  if (device.is_cuda() && o.devices > m.devices_per_host)
    throw Error(Errc::invalid_argument, "plan",
                fmt::format("this machine has {}, and {} are planned for: give the machine's "
                            "file with --machine (saturate bench links writes one)",
                            counted(m.devices_per_host, "GPU"), o.devices));
  log_info("measuring the links of this machine");
  const ScratchFile file(".toml", plan::to_toml(m));
  output_of(plan::started_by(launcher, o.devices),
            fmt::format("bench links --device {} --machine '{}'", device.is_cuda() ? "cuda" : "cpu",
                        file.path()));
  return plan::read_machine(file.path());
}

// Says every ten seconds where the planner is.
void report_progress(plan::PlanRequest& request) {
  using Clock = std::chrono::steady_clock;
  request.on_layout = [said = Clock::now(), tried = 0](const std::string& layout,
                                                       size_t fit) mutable {
    ++tried;
    if (Clock::now() - said < std::chrono::seconds(10)) return;
    said = Clock::now();
    log_info(fmt::format("{} layouts looked at, {} fit; now {}", tried, fit, layout));
  };
}

// Measured times in place of estimates for the layouts at the head of the table, until they stay
// there.
plan::Plan plan_with_measured_operations(plan::PlanRequest& request) {
  constexpr size_t kHead = 3;
  plan::Plan plan = plan::make_plan(request);
  for (int round = 0; round < 3; ++round) {
    bool added = false;
    for (size_t i = 0; i < std::min(plan.ranked.size(), kHead); ++i) {
      const plan::Estimate& e = plan.ranked[i];
      if (e.measured > 0.99) continue;
      for (const plan::MeasuredOperation& x :
           plan::measure_operations(e.config, request.length, request.devices, 0, request.device))
        request.machine.operations[x.key] = x.us;
      added = true;
    }
    if (!added) break;
    plan = plan::make_plan(request);
  }
  return plan;
}

void check_predictions(const PlanOptions& o, const plan::Plan& plan,
                       const plan::PlanRequest& request, const std::string& launcher) {
  constexpr size_t kChecked = 3;
  const ScratchFile file("-run.toml", to_toml(request.config));
  fmt::print("{:<34} {:>12} {:>12} {:>8} {:>12} {:>12} {:>8}\n", "layout", "predicted ms",
             "measured ms", "error", "predicted", "taken", "error");
  double sum = 0;
  const size_t n = std::min(plan.ranked.size(), kChecked);
  for (size_t i = 0; i < n; ++i) {
    const plan::Estimate& e = plan.ranked[i];
    const Json row = row_of(
        output_of(request.devices > 1 ? plan::started_by(launcher, request.devices) : "",
                  fmt::format("bench step --config '{}' {} --length {} --repeats {}", file.path(),
                              plan::layout_flags(e), request.length, o.check_steps)));
    const double ms = row["step_ms"].number().value_or(0);
    const double taken = row["taken_bytes"].number().value_or(0);
    const auto bytes = static_cast<double>(e.memory.total());
    sum += std::abs(e.step_ms / ms - 1);
    fmt::print("{:<34} {:>12.2f} {:>12.2f} {:>+7.1f}% {:>12} {:>12} {:>+7.2f}%\n", e.layout,
               e.step_ms, ms, 100 * (e.step_ms / ms - 1), format_bytes(bytes), format_bytes(taken),
               100 * (bytes / taken - 1));
  }
  if (n > 0) fmt::print("mean error of the step {:.1f}%\n", 100 * sum / static_cast<double>(n));
}

}  // namespace

int run_plan(const PlanOptions& given) {
  PlanOptions o = given;
  if (!o.timeline.empty()) check_report_path("plan", o.timeline);
  if (!o.model.empty()) take_model(o.config, o.model);
  if (!o.layout.empty()) set_parallel(o.config, o.layout);
  check_config(o.config);
  const bool lm = train::is_language_model(o.config);
  plan::PlanRequest request{.config = o.config, .devices = o.devices, .device = {}, .machine = {}};
  request.one_layout = !o.layout.empty();
  request.length =
      o.length.value_or(lm ? std::min<int64_t>(train::longest_sentence(o.config), 1024) : 32);
  const bool here = o.machine.empty();
  request.device = parse_device(o.config.train.device);
  if (here) {
    use_device(request.device);
    request.kernels = train::kernel_options(o.config, request.device);
  }
  std::string launcher = o.launcher;
  if (launcher.empty())
    launcher = (here ? request.device.is_cuda() : plan::read_machine(o.machine).gpu)
                   ? "torchrun --standalone --nproc-per-node {ranks} --no-python"
                   : "mpirun -n {ranks}";
  request.machine = machine_of(o, request.device, launcher);
  if (o.mtbf_hours > 0) request.machine.failures.device_mtbf_hours = o.mtbf_hours;
  report_progress(request);
  const plan::Plan plan = here ? plan_with_measured_operations(request) : plan::make_plan(request);
  if (o.json) {
    fmt::print("{}\n", plan::to_json(plan, request).dump(2));
  } else {
    fmt::print("{}{}", plan::to_text(plan, request, launcher, o.rows),
               plan::goodput_text(plan, request, o.checkpoint_minutes * 60));
  }
  if (plan.ranked.empty()) return kExitUsage;
  if (!o.timeline.empty())
    deliver_report("plan",
                   plan::timeline_json(plan::step_lists(request, plan.ranked.front().config)),
                   o.timeline);
  if (o.check) check_predictions(o, plan, request, launcher);
  return 0;
}

}  // namespace saturate::apps
