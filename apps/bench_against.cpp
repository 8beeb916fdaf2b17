// SPDX-License-Identifier: Apache-2.0
#include "apps/bench_against.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>

#include "apps/commit.h"
#include "base/error.h"
#include "base/json.h"
#include "parallel/launch.h"

extern char** environ;

namespace saturate::apps {
namespace {

// The fields of a row that are times of what it measures.
constexpr const char* kTimes[] = {"step_ms", "ms", "forward_ms", "backward_ms"};

// What a shell would not take as it is; a command with such an argument is written in quotes and not run again.
constexpr const char* kNotPlain = " \t'\"\\;|&$*";

std::string command_of(std::span<const std::string> arguments) {
  std::string text = "saturate bench";
  for (const std::string& a : arguments)
    text += a.find_first_of(kNotPlain) == std::string::npos ? " " + a : " '" + a + "'";
  return text;
}

// What is measured: the arguments behind `bench`, and what an earlier row says about it.
struct Case {
  std::vector<std::string> arguments;
  std::optional<Json> row;
};

// The arguments without --against and --rounds, which are about the comparison.
std::vector<std::string> measured_arguments(const std::vector<std::string>& given) {
  std::vector<std::string> kept;
  for (size_t i = 0; i < given.size(); ++i) {
    const bool apart = given[i] == "--against" || given[i] == "--rounds";
    const bool joined = given[i].starts_with("--against=") || given[i].starts_with("--rounds=");
    if (apart) ++i;
    if (!apart && !joined) kept.push_back(given[i]);
  }
  return kept;
}

// The last row of each command in the file; of `what` alone, and of the very command when it has more arguments.
std::vector<Case> cases_of_file(const std::string& path, const std::vector<std::string>& given) {
  std::ifstream in(path);
  if (!in) throw Error(Errc::io, "bench", "cannot read " + path + " (--against)");
  std::map<std::string, Json> rows;
  std::vector<std::string> order;
  std::string line;
  for (int64_t number = 1; std::getline(in, line); ++number) {
    if (line.empty()) continue;
    std::optional<Json> row = try_parse_json(line);
    if (!row || row->if_object() == nullptr)
      throw Error(Errc::invalid_argument, "bench",
                  fmt::format("{}:{}: not a row of `saturate bench` (one JSON object a line)", path,
                              number));
    const std::string* command = (*row)["command"].if_string();
    if (command == nullptr || !command->starts_with("saturate bench ") ||
        command->find("--ladder") != std::string::npos ||
        command->find("--against") != std::string::npos ||
        command->find_first_of(kNotPlain + 1) != std::string::npos)
      continue;
    const std::string what = command_of({given.data(), std::min<size_t>(given.size(), 1)}) + " ";
    if (given.size() > 1 ? *command != command_of(given) : !(*command + " ").starts_with(what))
      continue;
    if (!rows.contains(*command)) order.push_back(*command);
    rows[*command] = *row;
  }
  std::vector<Case> cases;
  for (const std::string& command : order) {
    std::istringstream words(command.substr(std::string("saturate bench ").size()));
    Case c{{}, rows[command]};
    for (std::string word; words >> word;) c.arguments.push_back(word);
    cases.push_back(c);
  }
  if (cases.empty())
    throw Error(
        Errc::invalid_argument, "bench",
        path + ": no row whose command is " +
            (given.empty() ? "`saturate bench ...`" : "`" + command_of(given) + "`") +
            "; write rows with this program first, or give another program instead of a file");
  return cases;
}

// The row that a program prints. Errors: io when it cannot run or prints none.
Json measure(const std::string& program, const std::vector<std::string>& arguments) {
  std::vector<std::string> words{program, "bench"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  for (std::string& w : words) pointers.push_back(w.data());
  pointers.push_back(nullptr);
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw Error(Errc::io, "bench", "no pipe to another program");
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  pid_t child = 0;
  const int failed =
      posix_spawn(&child, program.c_str(), &actions, nullptr, pointers.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  std::string out;
  char buffer[4096];
  for (ssize_t n; failed == 0 && (n = read(ends[0], buffer, sizeof buffer)) > 0;)
    out.append(buffer, static_cast<size_t>(n));
  close(ends[0]);
  int status = 0;
  if (failed == 0) waitpid(child, &status, 0);
  std::istringstream lines(out);
  std::optional<Json> row;
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with("{")) row = try_parse_json(line);
  if (failed != 0 || status != 0 || !row)
    throw Error(
        Errc::io, "bench",
        fmt::format("{} {}: `{}`", program,
                    failed != 0   ? "cannot be run"
                    : status != 0 ? fmt::format("ended with code {}",
                                                WIFEXITED(status) ? WEXITSTATUS(status) : 128)
                                  : "printed no row",
                    command_of(arguments)));
  return *row;
}

std::string machine_of(const Json& row) {
  for (const char* key : {"device", "gpu"})
    if (const std::string* name = row[key].if_string()) return *name;
  return "";
}

// Half the distance of the percentiles by the median; -1 where the row has none.
double spread_of(const Json& row) {
  const auto p10 = row["p10_ms"].number(), p90 = row["p90_ms"].number(),
             ms = row["step_ms"].number();
  return p10 && p90 && ms && *ms > 0 ? (*p90 - *p10) / (2 * *ms) : -1;
}

void print(const char* field, double before, double now, const BenchRatio& r) {
  fmt::print("  {:<12} {:>11.4f} {:>11.4f}   {:.3f} ({:.3f} to {:.3f})  {}\n", field, before, now,
             r.ratio, r.low, r.high,
             r.slower()   ? "slower"
             : r.faster() ? "faster"
                          : "equal within noise");
}

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return (v[(v.size() - 1) / 2] + v[v.size() / 2]) / 2;
}

}  // namespace

std::string complete_row(const std::string& row, const std::string& device,
                         std::span<const std::string> arguments) {
  std::string r = row.substr(0, row.size() - 1);
  if (r.find("\"device\":") == std::string::npos) r += ",\"device\":" + Json(device).dump();
  return r + fmt::format(R"(,"commit":"{}","command":{}}})", kCommit,
                         Json(command_of(arguments)).dump());
}

int run_bench_against(const BenchOptions& o) {
  const std::vector<std::string> given = measured_arguments(o.arguments);
  if (parallel::current_launch().size > 1)
    throw Error(Errc::invalid_argument, "bench",
                "--against starts programs of its own, each one rank; start it without mpirun, "
                "srun or torchrun");
  const bool program = access(o.against.c_str(), X_OK) == 0;
  if (program && o.what.empty())
    throw Error(Errc::invalid_argument, "bench",
                "--against names a program: say what both measure, for example `bench gemm --shape "
                "4096 4096 4096`");
  const std::vector<Case> cases =
      program ? std::vector<Case>{{given, {}}} : cases_of_file(o.against, given);
  // [case][field]: times by this program, and by the other.
  std::vector<std::map<std::string, std::vector<double>>> now(cases.size()), before(cases.size());
  std::vector<Json> rows(cases.size());
  const auto keep = [](const Json& row, std::map<std::string, std::vector<double>>& times) {
    for (const char* field : kTimes)
      if (const auto ms = row[field].number(); ms && *ms > 0) times[field].push_back(*ms);
  };
  for (int64_t round = 0; round < o.rounds; ++round)
    for (size_t i = 0; i < cases.size(); ++i) {
      if (program) keep(measure(o.against, given), before[i]);
      rows[i] = measure("/proc/self/exe", cases[i].arguments);
      keep(rows[i], now[i]);
    }
  int64_t compared = 0;
  std::vector<std::string> slower;
  for (size_t i = 0; i < cases.size(); ++i) {
    const std::string command = command_of(cases[i].arguments);
    fmt::print("{}\n", command);
    if (cases[i].row && machine_of(*cases[i].row) != machine_of(rows[i])) {
      fmt::print("  not compared: the row is of \"{}\", this is \"{}\"\n",
                 machine_of(*cases[i].row), machine_of(rows[i]));
      continue;
    }
    for (const auto& [field, times] : now[i]) {
      BenchRatio ratio;
      double earlier = 0;
      if (cases[i].row) {
        const auto ms = (*cases[i].row)[field].number();
        if (!ms || !(*ms > 0)) continue;
        earlier = *ms;
        ratio = compare_with_row(earlier, spread_of(*cases[i].row), times);
      } else {
        const std::vector<double>& others = before[i][field];
        if (others.size() != times.size()) continue;
        earlier = median(others);
        ratio = compare_in_turns(others, times);
      }
      print(field.c_str(), earlier, median(times), ratio);
      ++compared;
      if (ratio.slower()) slower.push_back(field + " of `" + command + "`");
    }
  }
  if (compared == 0)
    throw Error(Errc::invalid_argument, "bench",
                o.against + ": nothing there can be compared with this machine");
  fmt::print("{} of {} times slower beyond noise\n", slower.size(), compared);
  for (const std::string& s : slower) fmt::print("  {}\n", s);
  return slower.empty() ? 0 : 1;
}

}  // namespace saturate::apps
