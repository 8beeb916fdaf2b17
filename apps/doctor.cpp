// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <utility>
#include <vector>

#include "apps/commands.h"
#include "apps/doctor_capture.h"
#include "apps/doctor_trial.h"
#include "apps/report_output.h"
#include "base/error.h"
#include "base/log.h"
#include "observe/launcher/launcher.h"
#include "observe/report/compare.h"
#include "observe/report/diagnosis.h"
#include "observe/report/html.h"
#include "observe/report/json.h"
#include "observe/report/perfetto.h"
#include "observe/report/text.h"

namespace saturate::apps {
namespace {

std::string render(const observe::Diagnosis& diagnosis, const std::string& format) {
  return format == "json"   ? observe::render_json(diagnosis)
         : format == "html" ? observe::render_html(diagnosis)
                            : observe::render_text(diagnosis);
}

std::string report_of_ranks(std::vector<observe::RankTrace> ranks, const std::string& path,
                            const std::string& name, const DoctorOptions& o) {
  const observe::Diagnosis diagnosis = observe::diagnose_ranks(
      ranks, name, {.warm_up = o.warm_up, .untraced_step_ns = 1e6 * o.step_ms},
      observe::read_counters(path));
  return o.format == "perfetto" ? observe::render_perfetto(ranks) : render(diagnosis, o.format);
}

std::string report_of_one(const std::string& path, const std::string& name,
                          const DoctorOptions& o) {
  const std::unique_ptr<observe::Capture> opened = observe::open_capture(path);
  observe::Capture& capture = *opened;
  const observe::Diagnosis diagnosis =
      observe::diagnose(capture, name, {.warm_up = o.warm_up, .untraced_step_ns = 1e6 * o.step_ms},
                        observe::read_counters(path));
  if (o.format != "perfetto") return render(diagnosis, o.format);
  if (static_cast<int64_t>(capture.trace().records()) < diagnosis.analysis.records)
    throw Error(Errc::unsupported, "doctor",
                name + ": is too long for one Perfetto trace; record a shorter capture");
  return observe::render_perfetto(capture.trace());
}

// To standard error without an own destination: standard output is the command's.
void report(const std::string& path, const std::string& name, const DoctorOptions& o) {
  std::vector<observe::RankTrace> ranks =
      o.ranks.empty() ? ranks_in(path, name) : observe::open_ranks(o.ranks);
  std::string text;
  if (!ranks.empty())
    text = report_of_ranks(std::move(ranks), path, name, o);
  else
    text = report_of_one(path, name, o);
  if (o.watch && o.output.empty()) {
    std::fwrite(text.data(), 1, text.size(), stderr);
    return;
  }
  deliver_report("doctor", text, o.output);
}

// A report must not replace what it is read from: a trace, or a file of a folder of captures.
void check_not_read(const std::string& output, const std::vector<std::string>& inputs) {
  if (output.empty() || output == "-") return;
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path target = fs::absolute(output, error);
  const bool of_capture = target.extension() == ".sat" || target.filename() == "counters.json";
  for (const std::string& input : inputs) {
    const fs::path source = fs::absolute(input, error);
    const fs::path folder = fs::is_directory(source, error) ? source : source.parent_path();
    if (fs::equivalent(target, source, error) ||
        (of_capture && fs::equivalent(target.parent_path(), folder, error)))
      throw Error(Errc::invalid_argument, "doctor",
                  output + ": is what the report is read from; give --output another file");
  }
}

// Where this rank keeps its capture below the folder that all of them name: "/rank3" when mpirun,
// Slurm or torchrun started a doctor for each rank, else "".
std::string rank_folder() {
  constexpr std::pair<const char*, const char*> kVariables[] = {
      {"RANK", "WORLD_SIZE"},
      {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
      {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS"}};
  for (const auto& [rank, world] : kVariables) {
    const char *its = std::getenv(rank), *all = std::getenv(world);
    if (its != nullptr && all != nullptr && std::atoi(all) > 1)
      return "/rank" + std::to_string(std::atoi(its));
  }
  return "";
}

// Whatever becomes of the report, the exit code is the command's.
int watch_command(const DoctorOptions& o) {
  const std::string place = rank_folder();
  CaptureFolder folder(o.keep.empty() ? "" : o.keep + place);
  check_report_path("doctor", o.output);
  const observe::LaunchResult result = observe::run_captured(launch_options(o, folder.path()));
  for (const std::string& failure : result.failures) log_error("[doctor] " + failure);
  try {
    check_captured(result, folder.path());
    report(folder.path(), o.command[0], o);
  } catch (const Error& e) {
    log_error(e.what());
    if (o.keep.empty() && folder.has_records()) {
      folder.keep();
      log_info(
          fmt::format("the capture is in {}: saturate doctor {}", folder.path(), folder.path()));
    }
  }
  if (!o.keep.empty() && result.captured > 0) {
    log_info("the capture is in " + folder.path());
    if (!place.empty()) log_info("when all ranks have ended: saturate doctor --ranks " + o.keep);
  }
  return result.exit_code;
}

}  // namespace

int run_doctor(const DoctorOptions& o) {
  if (o.watch && (!o.file.empty() || !o.compare.empty()))
    throw Error(Errc::invalid_argument, "doctor",
                "a trace and a command to watch; give one of the two");
  if (o.fix_trial) return run_fix_trial(o);
  if (o.watch) return watch_command(o);
  check_report_path("doctor", o.output);
  if (o.compare.size() == 2) {
    check_not_read(o.output, o.compare);
    std::vector<observe::Gate> gates;
    for (const std::string& text : o.fail_if) gates.push_back(observe::parse_gate(text));
    const observe::Comparison c = observe::compare(
        observe::diagnose(o.compare[0], {.warm_up = o.warm_up, .untraced_step_ns = 0}),
        observe::diagnose(o.compare[1], {.warm_up = o.warm_up, .untraced_step_ns = 0}), gates);
    deliver_report("doctor", c.text, o.output);
    for (const std::string& line : c.failed) log_error("[doctor] --fail-if: " + line);
    return c.failed.empty() ? 0 : kExitMachine;
  }
  if (!o.ranks.empty()) {
    check_not_read(o.output, o.ranks);
    report(o.ranks.front(), o.ranks.front(), o);
    return 0;
  }
  if (o.file.empty())
    throw Error(Errc::invalid_argument, "doctor",
                "no capture; give a trace of torch.profiler or Nsight Systems (saturate doctor "
                "trace.json.gz) or a command to watch (saturate doctor -- python train.py)");
  check_not_read(o.output, {o.file});
  report(o.file, o.file, o);
  return 0;
}

}  // namespace saturate::apps
