// SPDX-License-Identifier: Apache-2.0
#include "observe/launcher/thread_counts.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cctype>
#include <charconv>
#include <fstream>

namespace saturate::observe {
namespace {

int64_t number_at(std::string_view text, size_t& at) {
  while (at < text.size() && text[at] == ' ') ++at;
  int64_t value = 0;
  const auto read = std::from_chars(text.data() + at, text.data() + text.size(), value);
  at = static_cast<size_t>(read.ptr - text.data());
  return value;
}

int64_t field(std::string_view text, std::string_view key) {
  size_t at = text.find(key);
  if (at == std::string_view::npos) return 0;
  at = text.find_first_not_of(" \t", at + key.size());
  return at == std::string_view::npos ? 0 : number_at(text, at);
}

void read_stat(std::string_view stat, ThreadCounts& counts) {
  const size_t open = stat.find('('), close = stat.rfind(')');
  if (open == std::string_view::npos || close == std::string_view::npos || close + 2 >= stat.size())
    return;
  counts.name = stat.substr(open + 1, close - open - 1);
  counts.state = stat[close + 2];
  // utime and stime are the 14th and 15th field; the state is the third.
  size_t at = close + 2;
  for (int i = 3; i < 14 && at != std::string_view::npos; ++i) at = stat.find(' ', at + 1);
  if (at == std::string_view::npos) return;
  counts.user_ticks = number_at(stat, at);
  counts.system_ticks = number_at(stat, at);
}

}  // namespace

ThreadFile::~ThreadFile() { close(); }

void ThreadFile::close() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

void ThreadFiles::close() {
  for (ThreadFile* file : {&schedstat, &stat, &syscall, &io}) file->close();
}

std::string_view ThreadFile::read(const std::string& proc, pid_t process, pid_t thread,
                                  const char* name, bool keep) {
  static thread_local std::array<char, 4096> text;
  if (fd_ < 0) {
    const std::string path =
        proc + "/" + std::to_string(process) + "/task/" + std::to_string(thread) + "/" + name;
    fd_ = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd_ < 0) return {};
  }
  const ssize_t got = pread(fd_, text.data(), text.size(), 0);
  if (!keep) close();
  return got > 0 ? std::string_view(text.data(), static_cast<size_t>(got)) : std::string_view();
}

bool read_thread_io(pid_t pid, pid_t thread, ThreadIo& io, const std::string& proc,
                    ThreadFiles& files) {
  const std::string_view text = files.io.read(proc, pid, thread, "io", files.keep);
  io.read = field(text, "rchar:");
  io.written = field(text, "wchar:");
  return !text.empty();
}

int64_t cores_in(std::string_view list) {
  int64_t cores = 0;
  for (size_t at = 0; at < list.size();) {
    if (std::isdigit(static_cast<unsigned char>(list[at])) == 0) {
      ++at;
      continue;
    }
    const int64_t first = number_at(list, at);
    const bool range = at < list.size() && list[at] == '-';
    if (range) ++at;
    cores += (range ? number_at(list, at) : first) - first + 1;
  }
  return cores;
}

int64_t cores_of_machine(const std::string& proc) {
  std::ifstream file(proc + "/stat");
  int64_t cores = 0;
  for (std::string line; std::getline(file, line) && line.starts_with("cpu");)
    if (line.size() > 3 && line[3] != ' ') ++cores;
  return cores;
}

bool read_thread(pid_t pid, pid_t thread, bool with_switches, ThreadCounts& counts,
                 const std::string& proc, ThreadFiles& files, const ThreadCounts* asleep) {
  const std::string_view times = files.schedstat.read(proc, pid, thread, "schedstat", files.keep);
  if (times.empty()) return false;
  size_t at = 0;
  counts.run_ns = number_at(times, at);
  counts.wait_ns = number_at(times, at);
  counts.slices = number_at(times, at);
  if (asleep != nullptr && asleep->slices == counts.slices && !with_switches) {
    counts = *asleep;
    return true;
  }
  read_stat(files.stat.read(proc, pid, thread, "stat", files.keep), counts);
  if (with_switches) {
    ThreadFile status;
    const std::string_view text = status.read(proc, pid, thread, "status", false);
    counts.voluntary = field(text, "\nvoluntary_ctxt_switches:");
    counts.involuntary = field(text, "\nnonvoluntary_ctxt_switches:");
    constexpr std::string_view kList = "\nCpus_allowed_list:";
    const size_t list = text.find(kList);
    if (list != text.npos) {
      const std::string_view rest = text.substr(list + kList.size());
      counts.may_use = cores_in(rest.substr(0, rest.find('\n')));
    }
  }
  return true;
}

}  // namespace saturate::observe
