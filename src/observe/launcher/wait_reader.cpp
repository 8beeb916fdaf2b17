// SPDX-License-Identifier: Apache-2.0
#include "observe/launcher/wait_reader.h"

#include <fmt/format.h>
#include <linux/futex.h>
#include <poll.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>

#include "base/text.h"
#include "observe/system/processes.h"

namespace saturate::observe {
namespace {

constexpr int64_t kMapsEveryNs = 10'000'000'000;  // a large process has thousands of lines
constexpr size_t kMostPolled = 64;
constexpr const char *kThread = "another thread", *kPipe = "a pipe",
                     *kLocal = "another process (local socket)", *kEvents = "events",
                     *kMapped = "a mapped file";

struct Mapping {
  uint64_t begin = 0, end = 0;
  std::string_view flags, path;
};

// Lines of another form are passed over.
template <class Take>
void each_mapping(std::string_view maps, const Take& take) {
  for (size_t at = 0; at < maps.size();) {
    const size_t line_end = std::min(maps.find('\n', at), maps.size());
    const std::string_view line = maps.substr(at, line_end - at);
    at = line_end + 1;
    Mapping m;
    const auto begin = std::from_chars(line.data(), line.data() + line.size(), m.begin, 16);
    if (begin.ec != std::errc{} || begin.ptr == line.data() + line.size()) continue;
    const auto end = std::from_chars(begin.ptr + 1, line.data() + line.size(), m.end, 16);
    const auto after = static_cast<size_t>(end.ptr - line.data());
    if (end.ec != std::errc{} || line.size() < after + 5) continue;
    m.flags = line.substr(after + 1, 4);
    if (const size_t path = line.find_first_of("/["); path != std::string_view::npos)
      m.path = line.substr(path);
    take(m);
  }
}

bool is_python(std::string_view path) {
  const std::string_view name = path.substr(path.rfind('/') + 1);
  return name.starts_with("libpython") || name.starts_with("python");
}

}  // namespace

std::vector<std::pair<uint64_t, uint64_t>> python_data(std::string_view maps) {
  std::vector<std::pair<uint64_t, uint64_t>> found;
  each_mapping(maps, [&](const Mapping& m) {
    const bool follows = m.path.empty() && !found.empty() && found.back().second == m.begin;
    if (m.flags.starts_with("rw") && ((!m.path.empty() && is_python(m.path)) || follows))
      found.emplace_back(m.begin, m.end);
  });
  return found;
}

std::string largest_mapped_file(std::string_view maps) {
  constexpr uint64_t kLeast = 1 << 20;
  std::map<std::string_view, uint64_t> sizes;
  std::vector<std::string_view> code;
  each_mapping(maps, [&](const Mapping& m) {
    if (!m.path.starts_with("/") || m.path.starts_with("/dev/") || m.path.starts_with("/memfd:"))
      return;
    sizes[m.path] += m.end - m.begin;
    if (m.flags.find('x') != std::string_view::npos) code.push_back(m.path);
  });
  for (const std::string_view path : code) sizes.erase(path);
  std::string best;
  uint64_t most = kLeast;
  for (const auto& [path, bytes] : sizes)
    if (bytes >= most) most = bytes, best = path;
  return best;
}

WaitReader::WaitReader(std::string proc, OpenFiles& open, FileUses& uses,
                       std::function<int64_t()> clock, ReadMemory memory)
    : proc_(std::move(proc)),
      open_(open),
      uses_(uses),
      clock_(std::move(clock)),
      memory_(std::move(memory)) {
  if (memory_) return;
  memory_ = [](pid_t process, uint64_t address, void* to, size_t bytes) {
    const iovec local{to, bytes},
        remote{reinterpret_cast<void*>(address), bytes};  // NOLINT: an address over there
    return process_vm_readv(process, &local, 1, &remote, 1, 0) == static_cast<ssize_t>(bytes);
  };
}

bool WaitReader::memory(pid_t process, uint64_t address, void* to, size_t bytes) {
  errno = 0;
  if (memory_(process, address, to, bytes)) return true;
  memory_refused_ = memory_refused_ || errno == EPERM || errno == ENOSYS;
  return false;
}

WaitReader::Wait WaitReader::read(pid_t process, pid_t thread, char state, ThreadFile& calls,
                                  bool keep) {
  errno = 0;
  const std::string_view text = calls.read(proc_, process, thread, "syscall", keep);
  if (!text.empty()) {
    const auto call = parse_wait_call(text);
    return call ? of_call(process, thread, *call, state) : Wait{};
  }
  const int error = errno;
  if (error != EACCES && error != EPERM && error != ENOENT) return {};
  const auto function =
      read_small_file(fmt::format("{}/{}/task/{}/wchan", proc_, process, thread), 256);
  if (!function) return {};  // it has ended
  calls_refused_ = true;
  switch (call_kind_of_wchan(*function)) {
    case CallKind::futex:
      return {SpanKind::blocked, kThread};
    case CallKind::sleep:
      return {SpanKind::blocked, "sleep"};
    case CallKind::poll:
      return {SpanKind::blocked, kEvents};
    case CallKind::child:
      return {SpanKind::blocked, "a child process"};
    case CallKind::socket:
      return {SpanKind::network, "a peer"};
    case CallKind::write_fd:
      return {SpanKind::file_write, "a file"};
    case CallKind::read_fd:
      return {SpanKind::file_read, "a file"};
    case CallKind::fault:
    case CallKind::path:
    case CallKind::sync:
    case CallKind::async_io:
    case CallKind::select:
    case CallKind::epoll:
    case CallKind::other:
      return {};
  }
  return {};
}

WaitReader::Wait WaitReader::of_call(pid_t process, pid_t thread, const WaitCall& call,
                                     char state) {
  switch (call.kind) {
    case CallKind::fault:
      return state == 'D' ? of_fault(process, thread) : Wait{};
    case CallKind::read_fd:
    case CallKind::write_fd:
    case CallKind::socket:
      return of_fd(process, static_cast<int32_t>(call.args[0]), call.kind == CallKind::write_fd,
                   state);
    case CallKind::path:
      return state == 'D' ? of_file(process, text_at(process, call.path_at), SpanKind::file_read)
                          : Wait{};
    case CallKind::sync:
      return {SpanKind::file_write, "all files (sync)"};
    case CallKind::async_io:
      return {SpanKind::file_read, "asynchronous reads or writes"};
    case CallKind::poll:
    case CallKind::select:
      return of_several(process, polled(process, call));
    case CallKind::epoll:
      return of_several(process, open_.watched(process, static_cast<int32_t>(call.args[0])));
    case CallKind::futex:
      return of_futex(process, call);
    case CallKind::sleep:
      return {SpanKind::blocked, "sleep"};
    case CallKind::child:
      return {SpanKind::blocked, "a child process"};
    case CallKind::other:
      return {};
  }
  return {};
}

WaitReader::Wait WaitReader::of_file(pid_t process, const std::string& path, SpanKind kind) {
  if (path.empty()) return {kind, "a file"};
  uses_.saw_wait(process, kind, path, clock_());
  return {kind, uses_.name_of(path)};
}

WaitReader::Wait WaitReader::of_fd(pid_t process, int64_t fd, bool writes, char state) {
  const Target t = open_.target(process, fd);
  switch (t.kind) {
    case TargetKind::file:
      return of_file(process, t.name, writes ? SpanKind::file_write : SpanKind::file_read);
    case TargetKind::peer:
      if (t.name.starts_with("clients on")) return {SpanKind::blocked, t.name};
      return {SpanKind::network, t.name};
    case TargetKind::local_socket:
      return {SpanKind::blocked, kLocal};
    case TargetKind::pipe:
      return {SpanKind::blocked, kPipe};
    case TargetKind::device:
      return {SpanKind::blocked, t.name};
    case TargetKind::gone:  // being closed, while what was written last goes over the network
      if (writes && state == 'D')
        return of_file(process, uses_.last_written(process), SpanKind::file_write);
      return {};
    case TargetKind::other:
      return {};
  }
  return {};
}

// The first network peer, else the first other that says something.
WaitReader::Wait WaitReader::of_several(pid_t process, const std::vector<int64_t>& fds) {
  Wait found{SpanKind::blocked, kEvents};
  for (const int64_t fd : fds) {
    Wait one = of_fd(process, fd, false, 'S');
    if (one.kind == SpanKind::network) return one;
    if (found.name == kEvents && (one.name == kPipe || one.name == kLocal)) found = std::move(one);
  }
  return found;
}

std::vector<int64_t> WaitReader::polled(pid_t process, const WaitCall& call) {
  std::vector<int64_t> fds;
  if (call.kind == CallKind::poll) {
    std::array<pollfd, kMostPolled> entries{};
    const size_t n = std::min<size_t>(call.args[1], entries.size());
    if (!memory(process, call.args[0], entries.data(), n * sizeof(pollfd))) return fds;
    for (size_t i = 0; i < n; ++i)
      if (entries[i].fd >= 0) fds.push_back(entries[i].fd);
    return fds;
  }
  constexpr int64_t kMostBits = 1024;
  const int64_t n = std::min<int64_t>(static_cast<int64_t>(call.args[0]), kMostBits);
  for (int set = 1; set <= 2; ++set) {  // to read, to write
    std::array<uint64_t, kMostBits / 64> bits{};
    if (n <= 0 || call.args[static_cast<size_t>(set)] == 0 ||
        !memory(process, call.args[static_cast<size_t>(set)], bits.data(),
                static_cast<size_t>((n + 63) / 64) * 8))
      continue;
    for (int64_t fd = 0; fd < n && fds.size() < kMostPolled; ++fd)
      if (bits[static_cast<size_t>(fd / 64)] >> (fd % 64) & 1) fds.push_back(fd);
  }
  return fds;
}

// A mutex of the C library starts with its lock word; the thread that has it stands 8 bytes on. Its
// waiters wait for the word to change from 2. Of a lock that inherits priorities the word itself is the
// holder. Source: glibc nptl/pthread_mutex_lock.c, sysdeps/nptl/bits/struct_mutex.h; futex(2).
WaitReader::Wait WaitReader::of_futex(pid_t process, const WaitCall& call) {
  const uint64_t address = call.args[0];
  const auto operation = static_cast<int>(call.args[1]) & FUTEX_CMD_MASK;
  if (in_python(process, address)) return {SpanKind::gil, "interpreter lock"};
  const bool inherits = operation == FUTEX_LOCK_PI || operation == FUTEX_LOCK_PI2;
  std::array<uint32_t, 3> word{};
  const bool waits_for_mutex =
      inherits || ((operation == FUTEX_WAIT || operation == FUTEX_WAIT_BITSET) &&
                   (static_cast<uint32_t>(call.args[2]) == 2 ||
                    (static_cast<uint32_t>(call.args[2]) & FUTEX_WAITERS) != 0));
  if (!waits_for_mutex || !memory(process, address, word.data(), sizeof word))
    return {SpanKind::blocked, kThread};
  const uint32_t holder =
      inherits || (call.args[2] & FUTEX_WAITERS) != 0 ? word[0] & FUTEX_TID_MASK : word[2];
  const std::string name = holder == 0 ? "" : thread_name(process, static_cast<pid_t>(holder));
  if (name.empty()) {
    // Condition variables and semaphores wait with FUTEX_WAIT_BITSET alone.
    if (operation == FUTEX_WAIT && word[0] == 2)
      return {SpanKind::lock, "a lock (its holder is not known)"};
    return {SpanKind::blocked, kThread};
  }
  return {SpanKind::lock, fmt::format("held by thread {} ({})", holder, name)};
}

std::string WaitReader::thread_name(pid_t process, pid_t thread) const {
  const auto text = read_small_file(fmt::format("{}/{}/task/{}/comm", proc_, process, thread), 64);
  return text ? std::string(trim(*text)) : "";
}

bool WaitReader::in_python(pid_t process, uint64_t address) {
  Python& p = python_[process];
  const int64_t now = clock_();
  if (p.data.empty() && now - p.read_ns >= kMapsEveryNs) {
    p.read_ns = now;
    if (const auto maps = read_small_file(fmt::format("{}/{}/maps", proc_, process), 16 << 20))
      for (const auto& [begin, end] : python_data(*maps)) p.data.push_back({begin, end});
  }
  return std::any_of(p.data.begin(), p.data.end(),
                     [&](const Range& r) { return address >= r.begin && address < r.end; });
}

// Not every page comes from a file: a thread also waits for the process's map of its memory, which
// another changes, or for memory that was swapped out.
WaitReader::Wait WaitReader::of_fault(pid_t process, pid_t thread) {
  const auto function =
      read_small_file(fmt::format("{}/{}/task/{}/wchan", proc_, process, thread), 256);
  if (function && (function->find("rwsem") != std::string::npos ||
                   function->find("mmap_lock") != std::string::npos))
    return {SpanKind::lock, "the process's memory map (another thread maps or frees memory)"};
  if (function && function->find("swap") != std::string::npos)
    return {SpanKind::blocked, "memory that was swapped out"};
  const auto maps = read_small_file(fmt::format("{}/{}/maps", proc_, process), 16 << 20);
  const std::string file = maps ? largest_mapped_file(*maps) : "";
  return file.empty() ? Wait{SpanKind::file_read, kMapped}
                      : of_file(process, file, SpanKind::file_read);
}

std::string WaitReader::text_at(pid_t process, uint64_t address) {
  std::string text;
  constexpr uint64_t kPage = 4096;
  while (text.size() < kPage) {  // up to the end of each page: the next may not be there
    std::array<char, kPage> block;
    const uint64_t at = address + text.size();
    const size_t n = kPage - at % kPage;
    if (!memory(process, at, block.data(), n)) return "";
    const size_t length = strnlen(block.data(), n);
    text.append(block.data(), length);
    if (length < n) break;
  }
  return text.starts_with("/") ? text : "";  // where others begin is not known
}

std::vector<std::string> WaitReader::refused() const {
  std::vector<std::string> lines;
  if (calls_refused_)
    lines.push_back(
        "which call a thread waits in may not be read (/proc/PID/task/TID/syscall: ptrace rules of "
        "the container or kernel.yama.ptrace_scope), so files, peers and holders of locks have no "
        "names there");
  if (memory_refused_)
    lines.push_back(
        "memory of the program may not be read (process_vm_readv), so holders of locks and what a "
        "poll waits for are not known");
  return lines;
}

}  // namespace saturate::observe
