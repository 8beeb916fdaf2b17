// SPDX-License-Identifier: Apache-2.0
#include "observe/system/processes.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <set>

#include "base/text.h"

namespace saturate::observe {
namespace {

std::optional<int64_t> to_number(std::string_view text) {
  text = trim(text);
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return {};
  return value;
}

std::vector<std::string_view> words(std::string_view text) {
  std::vector<std::string_view> found;
  size_t at = 0;
  while ((at = text.find_first_not_of(" \t\n", at)) != std::string_view::npos) {
    const size_t end = std::min(text.find_first_of(" \t\n", at), text.size());
    found.push_back(text.substr(at, end - at));
    at = end;
  }
  return found;
}

// What stands after "key" up to the end of its line, trimmed.
std::optional<std::string_view> field(std::string_view text, std::string_view key) {
  size_t at = 0;
  while (at < text.size()) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = text.substr(at, end - at);
    if (line.starts_with(key)) return trim(line.substr(key.size()));
    at = end + 1;
  }
  return {};
}

std::optional<int64_t> number_field(std::string_view text, std::string_view key) {
  const auto value = field(text, key);
  if (!value) return {};
  return to_number(value->substr(0, value->find(' ')));
}

std::vector<int64_t> numbered_entries(const std::string& folder) {
  std::vector<int64_t> ids;
  DIR* dir = opendir(folder.c_str());
  if (!dir) return ids;
  while (const dirent* entry = readdir(dir)) {
    if (const auto id = to_number(entry->d_name); id && *id > 0) ids.push_back(*id);
  }
  closedir(dir);
  std::sort(ids.begin(), ids.end());
  return ids;
}

int64_t ticks_to_ns(int64_t ticks) {
  static const int64_t per_second = std::max<int64_t>(sysconf(_SC_CLK_TCK), 1);
  return ticks * (1'000'000'000 / per_second);
}

// The command name in parentheses may itself hold blanks and parentheses: the last one closes it.
struct Stat {
  std::string_view name;
  std::vector<std::string_view> after;  // state is [0], the third field of proc(5)
};
std::optional<Stat> parse_stat(std::string_view text) {
  const size_t open = text.find('('), close = text.rfind(')');
  if (open == std::string_view::npos || close == std::string_view::npos || close < open) return {};
  Stat s{text.substr(open + 1, close - open - 1), words(text.substr(close + 1))};
  if (s.after.size() < 20) return {};
  return s;
}

}  // namespace

std::optional<std::string> read_small_file(const std::string& path, size_t limit) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) return {};
  std::string text;
  char block[4096];
  ssize_t n = 0;
  while (text.size() < limit &&
         (n = read(file, block, std::min(sizeof block, limit - text.size()))) > 0)
    text.append(block, static_cast<size_t>(n));
  close(file);
  if (n < 0) return {};
  return text;
}

ProcessReader::ProcessReader(std::string proc, std::string cgroups)
    : proc_(std::move(proc)), cgroups_(std::move(cgroups)) {}

std::optional<std::string> ProcessReader::file(const std::string& path) const {
  return read_small_file(proc_ + "/" + path);
}

std::vector<int64_t> ProcessReader::pids() const { return numbered_entries(proc_); }

std::string ProcessReader::user_name(int64_t uid) const {
  passwd entry{};
  passwd* found = nullptr;
  char text[4096];
  if (getpwuid_r(static_cast<uid_t>(uid), &entry, text, sizeof text, &found) == 0 && found)
    return found->pw_name;
  return std::to_string(uid);
}

std::optional<ProcessTimes> ProcessReader::process(int64_t pid) const {
  const std::string folder = fmt::format("{}/{}", proc_, pid);
  const auto stat_text = read_small_file(folder + "/stat");
  if (!stat_text) return {};
  const auto stat = parse_stat(*stat_text);
  if (!stat) return {};
  ProcessTimes p;
  p.pid = pid;
  p.name = stat->name;
  p.state = stat->after[0].empty() ? '?' : stat->after[0][0];
  p.parent = to_number(stat->after[1]).value_or(0);
  p.threads = static_cast<int>(to_number(stat->after[17]).value_or(0));
  p.start_ticks = to_number(stat->after[19]).value_or(0);
  const auto user = to_number(stat->after[11]), system = to_number(stat->after[12]);
  if (user && system) p.cpu_ns = ticks_to_ns(*user + *system);
  if (stat->after.size() > 39) {
    if (const auto ticks = to_number(stat->after[39])) p.io_wait_ns = ticks_to_ns(*ticks);
  }
  if (auto command = read_small_file(folder + "/cmdline", 65536)) {
    while (!command->empty() && command->back() == '\0') command->pop_back();
    std::replace(command->begin(), command->end(), '\0', ' ');
    p.command = *command;
  }
  if (p.command.empty()) p.command = "[" + p.name + "]";
  if (const auto status = read_small_file(folder + "/status")) {
    if (const auto kib = number_field(*status, "VmRSS:")) p.resident_bytes = *kib * 1024;
    if (const auto uid = field(*status, "Uid:")) {
      if (const auto ids = words(*uid); !ids.empty())
        p.user = user_name(to_number(ids[0]).value_or(-1));
    }
    if (const auto inner = field(*status, "NSpid:")) {
      const auto ids = words(*inner);
      for (size_t i = 1; i < ids.size(); ++i) p.inner_pids.push_back(to_number(ids[i]).value_or(0));
    }
    p.voluntary = number_field(*status, "voluntary_ctxt_switches:");
    p.involuntary = number_field(*status, "nonvoluntary_ctxt_switches:");
  }
  if (const auto io = read_small_file(folder + "/io")) {
    p.read_bytes = number_field(*io, "read_bytes:");
    p.written_bytes = number_field(*io, "write_bytes:");
  }
  return p;
}

std::multimap<int64_t, int64_t> ProcessReader::children() const {
  std::multimap<int64_t, int64_t> pairs;
  for (const int64_t pid : pids()) {
    if (const auto of = parent(pid)) pairs.emplace(*of, pid);
  }
  return pairs;
}

std::vector<int64_t> ProcessReader::tree(int64_t root) const {
  // A kernel that lists children saves reading every process of the machine.
  const bool listed = file(fmt::format("{}/task/{}/children", root, root)).has_value();
  const std::multimap<int64_t, int64_t> all = listed ? decltype(all){} : children();
  std::vector<int64_t> found{root};
  std::set<int64_t> seen{root};  // a tree read while it changes may hold a circle
  for (size_t i = 0; i < found.size(); ++i) {
    const int64_t parent = found[i];
    for (auto [child, end] = all.equal_range(parent); child != end; ++child)
      if (seen.insert(child->second).second) found.push_back(child->second);
    if (!listed) continue;
    for (const int64_t thread : thread_ids(parent))
      if (const auto text = file(fmt::format("{}/task/{}/children", parent, thread)))
        for (const std::string_view word : words(*text))
          if (const auto child = to_number(word); child && seen.insert(*child).second)
            found.push_back(*child);
  }
  return found;
}

std::vector<int64_t> ProcessReader::thread_ids(int64_t pid) const {
  return numbered_entries(fmt::format("{}/{}/task", proc_, pid));
}

std::vector<ThreadTimes> ProcessReader::threads(int64_t pid) const {
  std::vector<ThreadTimes> found;
  for (const int64_t id : thread_ids(pid)) {
    const std::string folder = fmt::format("{}/{}/task/{}", proc_, pid, id);
    const auto stat_text = read_small_file(folder + "/stat");
    const auto stat = stat_text ? parse_stat(*stat_text) : std::nullopt;
    if (!stat) continue;
    ThreadTimes t;
    t.id = id;
    t.name = stat->name;
    t.state = stat->after[0].empty() ? '?' : stat->after[0][0];
    if (const auto text = read_small_file(folder + "/schedstat")) {
      if (const auto times = words(*text); times.size() >= 2) {
        t.run_ns = to_number(times[0]);
        t.wait_ns = to_number(times[1]);
      }
    }
    if (const auto status = read_small_file(folder + "/status")) {
      t.voluntary = number_field(*status, "voluntary_ctxt_switches:");
      t.involuntary = number_field(*status, "nonvoluntary_ctxt_switches:");
    }
    if (const auto where = read_small_file(folder + "/wchan"); where && *where != "0")
      t.waits_in = std::string(trim(*where));
    found.push_back(std::move(t));
  }
  return found;
}

std::optional<std::string> ProcessReader::environment(int64_t pid, std::string_view name) const {
  const auto text = read_small_file(fmt::format("{}/{}/environ", proc_, pid));
  if (!text) return {};
  size_t at = 0;
  while (at < text->size()) {
    const size_t end = std::min(text->find('\0', at), text->size());
    const std::string_view entry = std::string_view(*text).substr(at, end - at);
    if (entry.size() > name.size() && entry.starts_with(name) && entry[name.size()] == '=')
      return std::string(entry.substr(name.size() + 1));
    at = end + 1;
  }
  return {};
}

std::optional<bool> ProcessReader::maps(int64_t pid, std::string_view part) const {
  const auto text = read_small_file(fmt::format("{}/{}/maps", proc_, pid), 16 << 20);
  if (!text || text->empty()) return {};
  return text->find(part) != std::string::npos;
}

std::optional<int64_t> ProcessReader::parent(int64_t pid) const {
  const auto text = file(fmt::format("{}/stat", pid));
  const auto stat = text ? parse_stat(*text) : std::nullopt;
  if (!stat) return {};
  return to_number(stat->after[1]);
}

std::optional<bool> ProcessReader::inner_namespace() const {
  char target[128];
  const ssize_t n = readlink((proc_ + "/self/ns/pid").c_str(), target, sizeof target);
  if (n <= 0) return {};
  // The first namespace has this number in every kernel (PROC_PID_INIT_INO).
  return std::string_view(target, static_cast<size_t>(n)) != "pid:[4026531836]";
}

std::optional<bool> ProcessReader::uses_gpu(int64_t pid) const {
  const std::string folder = fmt::format("{}/{}/fd", proc_, pid);
  DIR* dir = opendir(folder.c_str());
  if (!dir) return maps(pid, "libcuda.so");
  bool found = false;
  while (const dirent* entry = readdir(dir)) {
    char target[512];
    const ssize_t n = readlink((folder + "/" + entry->d_name).c_str(), target, sizeof target);
    if (n > 0 && std::string_view(target, static_cast<size_t>(n)).starts_with("/dev/nvidia")) {
      found = true;
      break;
    }
  }
  closedir(dir);
  return found ? std::optional(true) : maps(pid, "libcuda.so");
}

ProcessReader::HostTimes ProcessReader::host() const {
  HostTimes h;
  if (const auto text = file("stat")) {
    if (const auto line = field(*text, "cpu ")) {
      int64_t total = 0, idle = 0, wait = 0;
      const auto ticks = words(*line);
      // user nice system idle iowait irq softirq steal; guest time is in user already
      for (size_t i = 0; i < std::min<size_t>(ticks.size(), 8); ++i) {
        const int64_t t = to_number(ticks[i]).value_or(0);
        total += t;
        if (i == 3) idle = t;
        if (i == 4) wait = t;
      }
      h.total_ticks = total;
      h.busy_ticks = total - idle - wait;
      h.io_wait_ticks = wait;
    }
    size_t at = 0;
    while ((at = text->find("\ncpu", at)) != std::string::npos) {
      ++h.cores;
      at += 4;
    }
  }
  if (const auto text = file("meminfo")) {
    if (const auto kib = number_field(*text, "MemTotal:")) h.memory_total = *kib * 1024;
    if (const auto kib = number_field(*text, "MemAvailable:")) h.memory_available = *kib * 1024;
  }
  return h;
}

std::optional<CgroupCpu> ProcessReader::cgroup_cpu(int64_t pid) const {
  const auto text = file(fmt::format("{}/cgroup", pid));
  if (!text) return {};
  CgroupCpu c;
  std::string folder;
  bool second = false;
  size_t at = 0;
  while (at < text->size()) {  // lines "0::/path" (version 2) or "4:cpu,cpuacct:/path"
    const size_t end = std::min(text->find('\n', at), text->size());
    const std::string_view line = std::string_view(*text).substr(at, end - at);
    at = end + 1;
    const size_t first = line.find(':'), last = line.find(':', first + 1);
    if (first == std::string_view::npos || last == std::string_view::npos) continue;
    const std::string_view controllers = line.substr(first + 1, last - first - 1);
    const bool cpu =
        controllers == "cpu" || controllers.starts_with("cpu,") || controllers.ends_with(",cpu");
    if (!cpu && !(controllers.empty() && folder.empty())) continue;
    second = controllers.empty();
    c.path = std::string(line.substr(last + 1));
    folder = cgroups_ + (second ? "" : "/cpu");
  }
  if (folder.empty()) return {};
  // Inside a container the path may be that of the host, which is not below the mounted folder: the
  // mounted folder itself is then the container's own.
  std::string inside = folder + (c.path == "/" ? "" : c.path);
  if (!read_small_file(inside + "/cpu.stat")) inside = folder;
  const auto stat = read_small_file(inside + "/cpu.stat");
  if (!stat) return {};
  c.periods = number_field(*stat, "nr_periods ");
  c.throttled_periods = number_field(*stat, "nr_throttled ");
  if (second) {
    if (const auto us = number_field(*stat, "throttled_usec ")) c.throttled_ns = *us * 1000;
  } else {
    c.throttled_ns = number_field(*stat, "throttled_time ");
  }
  // The tightest limit on the way to the root counts.
  for (std::string level = inside; level.size() >= folder.size();
       level = level.substr(0, level.rfind('/'))) {
    std::optional<int64_t> quota, period;
    if (second) {
      const auto max = read_small_file(level + "/cpu.max");
      const auto parts = max ? words(*max) : std::vector<std::string_view>();
      if (parts.size() == 2) {
        quota = to_number(parts[0]);
        period = to_number(parts[1]);
      }
    } else {
      const auto q = read_small_file(level + "/cpu.cfs_quota_us"),
                 p = read_small_file(level + "/cpu.cfs_period_us");
      if (q) quota = to_number(*q);
      if (p) period = to_number(*p);
    }
    if (quota && period && *quota > 0 && *period > 0) {
      const double cores = static_cast<double>(*quota) / static_cast<double>(*period);
      c.cores = std::min(cores, c.cores.value_or(cores));
    }
    if (level == folder) break;
  }
  return c;
}

}  // namespace saturate::observe
