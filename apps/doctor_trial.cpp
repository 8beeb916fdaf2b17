// SPDX-License-Identifier: Apache-2.0
#include "apps/doctor_trial.h"

#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "apps/doctor_capture.h"
#include "apps/report_output.h"
#include "base/durable_file.h"
#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "base/printable.h"
#include "observe/launcher/process_tree.h"
#include "observe/report/json.h"
#include "observe/report/text.h"
#include "observe/system/processes.h"
#include "observe/trial/nodes.h"
#include "observe/trial/python_part.h"
#include "observe/trial/trial.h"

namespace saturate::apps {
namespace {

using observe::Remedy;
using observe::Trial;
using observe::TrialOutcome;
using observe::TrialRun;

constexpr double kGraceS = 3;  // for what a run leaves behind
constexpr double kNoLimitS = 1e8;
constexpr size_t kLastLines = 6, kLastBytes = 4096;

std::map<std::string, std::string> environment_of_this() {
  std::map<std::string, std::string> all;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const size_t equals = text.find('=');
    if (equals != text.npos) all.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return all;
}

std::vector<int> allowed_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cores;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return cores;
  for (int c = 0; c < CPU_SETSIZE; ++c)
    if (CPU_ISSET(c, &set)) cores.push_back(c);
  return cores;
}

// Those of `allowed` that are beside the device at this PCI address; empty when all are.
std::vector<int> cores_beside(std::string bus, const std::vector<int>& allowed) {
  std::transform(bus.begin(), bus.end(), bus.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const auto list = observe::read_small_file("/sys/bus/pci/devices/" + bus + "/local_cpulist");
  if (bus.empty() || !list) return {};
  std::vector<int> near;
  for (const int core : observe::parse_core_list(*list))
    if (std::find(allowed.begin(), allowed.end(), core) != allowed.end()) near.push_back(core);
  return near.size() == allowed.size() ? std::vector<int>{} : near;
}

// Beside the capture library that was named, or where this program has its libraries.
std::string staging_library(const std::string& capture) {
  constexpr const char* kName = "libsaturate_staging.so";
  std::error_code error;
  const std::filesystem::path beside =
      std::filesystem::absolute(capture, error).replace_filename(kName);
  if (!capture.empty() && std::filesystem::exists(beside, error)) return beside.string();
  const std::string found = observe::installed_library(kName);
  if (found.empty())
    log_warning(fmt::format(
        "{} is not beside this program: copies through pinned memory are not tried", kName));
  return found;
}

observe::TrialHost host_of(const observe::Diagnosis& g, const observe::LaunchResult& watched,
                           const std::string& capture_library) {
  observe::TrialHost host;
  host.environment = environment_of_this();
  const std::vector<int> allowed = allowed_cores();
  host.cores = std::max(1, static_cast<int>(allowed.size()));
  if (const auto limit = observe::ProcessReader().cgroup_cpu(getpid()); limit && limit->cores)
    host.cores = std::clamp(static_cast<int>(std::floor(*limit->cores)), 1, host.cores);
  host.faults_per_s = static_cast<double>(watched.page_faults) / std::max(0.1, watched.wall_s);
  if (g.analysis.devices.size() == 1 && g.device().device == 0 && !g.ranks)
    host.near_cores = cores_beside(g.analysis.copy_rates.bus, allowed);
  host.staging = staging_library(capture_library);
  return host;
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& w : words) {
    const bool plain = !w.empty() && w.find_first_of(" \t\n'\"$&|;<>()*?[]#~`\\") == w.npos;
    text += (text.empty() ? "" : " ") + (plain ? w : "'" + w + "'");
  }
  return text;
}

std::string last_lines(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return "";
  const auto size = static_cast<std::streamoff>(file.tellg());
  file.seekg(std::max<std::streamoff>(0, size - static_cast<std::streamoff>(kLastBytes)));
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);)
    if (!line.empty()) lines.push_back(line);
  std::string text;
  for (size_t i = lines.size() - std::min(lines.size(), kLastLines); i < lines.size(); ++i)
    text += "       | " + printable(lines[i]).substr(0, 160) + "\n";
  return text;
}

class Runs {
 public:
  Runs(const DoctorOptions& o, observe::TrialHost host, double first_s, size_t planned)
      : o_(o),
        host_(std::move(host)),
        timeout_s_(o.trial_limit_s > 0 ? o.trial_limit_s : 3 * first_s + 60),
        planned_(planned),
        work_("") {
    std::filesystem::create_directory(work_.path() + "/python");
    write_durable_file(work_.path() + "/python/sitecustomize.py", observe::kTrialPython);
  }

  // `remedy` empty: unchanged. Its notes are in notes() until the next run.
  TrialRun run(const Remedy& remedy) {
    const std::string place = fmt::format("{}/{}", work_.path(), ++runs_);
    std::filesystem::create_directory(place);
    log_info(fmt::format("run {} of {}: {}", runs_, std::max(planned_, runs_),
                         remedy.id.empty() ? "unchanged" : remedy.title));
    observe::LaunchOptions l = launch_options(o_, place);
    l.environment = environment(remedy, place + ".notes");
    l.cores = remedy.cores;
    l.output = place + ".out";
    l.timeout_s = timeout_s_;
    TrialRun run;
    observe::LaunchResult r;
    try {
      r = observe::run_captured(l);
    } catch (const Error& e) {  // the disk is full, say
      run.outcome = TrialOutcome::failed;
      run.note = e.what();
      return run;
    }
    observe::end_descendants(kGraceS);
    run.wall_s = r.wall_s;
    run.exit_code = r.exit_code;
    if (r.interrupted) {
      run.outcome = TrialOutcome::interrupted;
    } else if (r.timed_out) {
      run.outcome = TrialOutcome::timed_out;
      run.note = fmt::format("ended after {:.1f} s (--trial-limit)", r.wall_s);
    } else if (r.exit_code != 0) {
      run.outcome = TrialOutcome::failed;
      run.note = fmt::format("failed with exit code {}; its last lines:", r.exit_code);
      run.last_lines = last_lines(l.output);
    } else {
      measure(place, run);
    }
    read_notes(place + ".notes");
    if (run.outcome == TrialOutcome::ended && remedy.staged && !noted("staged")) {
      run.outcome = TrialOutcome::no_effect;
      run.note = noted("no pinned") ? "no pinned memory could be had"
                                    : "no copy came by: the program has the CUDA runtime linked in";
    }
    std::error_code error;
    std::filesystem::remove_all(place, error);
    return run;
  }
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  bool noted(std::string_view start) const {
    return std::any_of(notes_.begin(), notes_.end(),
                       [&](const std::string& n) { return n.starts_with(start); });
  }

  void measure(const std::string& place, TrialRun& run) const {
    try {
      DoctorOptions same = o_;
      same.step_ms = 0;
      const observe::Diagnosis g = diagnose_capture(place, o_.command[0], same);
      const observe::StepAnalysis& steps = g.analysis.steps;
      run.step_ns = g.unrecorded_step_ns();
      run.mean_step_ns = steps.found ? steps.mean_ns / g.analysis.slowdown : 0;
      run.launches_a_step = observe::launches_a_step(g);
    } catch (const Error& e) {
      run.note = std::string("no steps: ") + e.what();
    }
  }

  void read_notes(const std::string& path) {
    notes_.clear();
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) notes_.push_back(line);
  }

  std::vector<std::pair<std::string, std::string>> environment(const Remedy& remedy,
                                                               const std::string& notes) const {
    auto all = remedy.environment;
    const auto before = [&](const char* variable, const std::string& value) {
      const auto at = host_.environment.find(variable);
      const bool more = at != host_.environment.end() && !at->second.empty();
      all.emplace_back(variable, more ? value + ":" + at->second : value);
    };
    before("PYTHONPATH", work_.path() + "/python");
    std::string words;
    for (const std::string& w : remedy.python) words += w + " ";
    all.emplace_back("SATURATE_TRIAL", words);
    all.emplace_back("SATURATE_TRIAL_WORKERS", std::to_string(remedy.workers));
    all.emplace_back("SATURATE_TRIAL_NOTES", notes);
    if (remedy.staged) {
      before("LD_PRELOAD", host_.staging);
      all.emplace_back("SATURATE_STAGING_THREADS",
                       std::to_string(std::clamp(host_.cores / 2, 1, 8)));
    }
    return all;
  }

  const DoctorOptions& o_;
  observe::TrialHost host_;
  double timeout_s_;
  size_t planned_, runs_ = 0;
  std::vector<std::string> notes_;
  CaptureFolder work_;
};

// False when no more may run.
bool add_run(Trial& trial, Remedy remedy, TrialRun run) {
  trial.interrupted = run.outcome == TrialOutcome::interrupted;
  observe::TrialRow row{std::move(remedy), std::move(run), {}};
  trial.rows.push_back(std::move(row));
  return !trial.interrupted;
}

void run_all(Runs& runs, std::vector<Remedy> remedies, Trial& trial) {
  const auto unchanged = [&] {
    trial.unchanged.push_back(runs.run({}));
    trial.interrupted = trial.unchanged.back().outcome == TrialOutcome::interrupted;
    return trial.unchanged.back().outcome == TrialOutcome::ended;
  };
  if (!unchanged()) return;
  const std::vector<std::string> notes = runs.notes();
  for (Remedy& remedy : remedies) {
    if (const std::string why = observe::no_use(remedy, notes); !why.empty()) {
      TrialRun left_out;
      left_out.outcome = TrialOutcome::left_out;
      left_out.note = why;
      add_run(trial, std::move(remedy), std::move(left_out));
    } else if (TrialRun run = runs.run(remedy);
               !add_run(trial, std::move(remedy), std::move(run))) {
      return;
    }
  }
  if (!unchanged()) return;
  std::vector<Remedy> gained;
  for (const observe::TrialRow& row : trial.rows)
    if (observe::gain_of(trial.unchanged, row.run, trial.watched_launches).factor >=
        observe::kGained)
      gained.push_back(row.remedy);
  if (gained.size() < 2) return;
  Remedy all = observe::together(gained);
  TrialRun run = runs.run(all);
  add_run(trial, std::move(all), std::move(run));
}

void deliver(const DoctorOptions& o, const std::string& report, const Trial& trial, bool shown) {
  std::string text = (shown ? "" : report) + observe::trial_text(trial);
  if (o.format == "json") {
    Json j =
        parse_json(report, "the report", {.max_bytes = size_t{1} << 30, .max_values = 1 << 28});
    j["fix_trial"] = observe::trial_json(trial);
    text = j.dump(2) + "\n";
  }
  if (o.output.empty())
    std::fwrite(text.data(), 1, text.size(), stderr);
  else
    deliver_report("doctor", text, o.output);
}

}  // namespace

int run_fix_trial(const DoctorOptions& o) {
  const std::string nodes = observe::several_nodes(o.command, environment_of_this());
  if (!nodes.empty())
    throw Error(
        Errc::invalid_argument, "doctor",
        fmt::format("--fix-trial starts a program again and again on one machine, and {} says "
                    "that this is one of several processes or nodes; start it before the "
                    "launcher: saturate doctor --fix-trial -- torchrun --nproc-per-node 2 "
                    "train.py",
                    printable(nodes)));
  check_report_path("doctor", o.output);
  observe::adopt_orphans();
  CaptureFolder folder(o.keep);
  log_info(
      "the command runs once now and is watched, then again with each remedy that its report calls "
      "for; ctrl-c ends all of it");
  observe::LaunchOptions first = launch_options(o, folder.path());
  first.timeout_s = kNoLimitS;
  const observe::LaunchResult watched = observe::run_captured(first);
  observe::end_descendants(kGraceS);
  for (const std::string& failure : watched.failures) log_error("[doctor] " + failure);
  try {
    check_captured(watched, folder.path());
    const observe::Diagnosis g = diagnose_capture(folder.path(), o.command[0], o);
    const bool json = o.format == "json", show = !json && o.output.empty();
    const std::string report = json ? observe::render_json(g) : observe::render_text(g);
    if (show) std::fwrite(report.data(), 1, report.size(), stderr);
    Trial trial;
    trial.command = joined(o.command);
    trial.interrupted = watched.interrupted;
    trial.watched_launches = observe::launches_a_step(g);
    const observe::TrialHost host = host_of(g, watched, o.library);
    std::vector<Remedy> remedies = observe::choose_remedies(g, host);
    if (watched.interrupted) {
      trial.why_not = "interrupted";
    } else if (watched.exit_code != 0) {
      trial.why_not = fmt::format("the command ended with exit code {}", watched.exit_code);
    } else if (remedies.empty()) {
      trial.why_not = "the report calls for no remedy that the environment could apply";
    } else {
      const size_t planned = remedies.size() + (remedies.size() > 1 ? 3 : 2);
      log_info(
          fmt::format("{} runs at most follow, of {:.1f} s each as things are: {:.1f} min; "
                      "their output is not shown",
                      planned, watched.wall_s, static_cast<double>(planned) * watched.wall_s / 60));
      Runs runs(o, host, watched.wall_s, planned);
      run_all(runs, std::move(remedies), trial);
    }
    for (observe::TrialRow& row : trial.rows)
      row.gain = gain_of(trial.unchanged, row.run, trial.watched_launches);
    deliver(o, report, trial, show);
    if (trial.interrupted) return 128 + SIGINT;
  } catch (const Error& e) {
    log_error(e.what());
  }
  if (!o.keep.empty() && watched.captured > 0) log_info("the capture is in " + folder.path());
  return watched.exit_code;
}

}  // namespace saturate::apps
