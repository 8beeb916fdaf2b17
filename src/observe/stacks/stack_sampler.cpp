// SPDX-License-Identifier: Apache-2.0
#include "observe/stacks/stack_sampler.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <utility>

#include "observe/read/merge.h"

namespace saturate::observe {
namespace {

constexpr int64_t kListEvery = 48;  // samples between searches for new processes
constexpr int kMostTries = 12;      // each twice as late as the one before: half an hour in all
constexpr size_t kMostOpenFiles = 400;
constexpr size_t kMostWithInstructions = 64;  // threads: each takes 8 KiB that the kernel locks
constexpr size_t kMostNativeThreads = 16;     // of a process without Python
// A thread that waits for a core, or that the kernel works for, is still where it was seen last.
// Older ones are of before a long call of the kernel, such as one that gives memory back.
constexpr int64_t kFreshNs = 5 * InstructionSampler::kPeriodNs;

int64_t monotonic_ns() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

// Its functions say less than the line that it runs.
bool is_interpreter(const std::string& path) {
  const std::string name = path.substr(path.rfind('/') + 1);
  return name.starts_with("python") || name.starts_with("libpython");
}

struct Wait {
  int64_t number;
  const char* name;
};
// What threads of a training program wait in. Those that 64-bit Arm has not are left out there.
constexpr Wait kWaits[] = {
#if defined(SYS_poll)
    {SYS_poll, "poll"},       {SYS_select, "select"},    {SYS_epoll_wait, "epoll_wait"},
    {SYS_open, "open"},       {SYS_accept, "accept"},
#endif
    {SYS_read, "read"},       {SYS_pread64, "pread"},    {SYS_readv, "readv"},
    {SYS_write, "write"},     {SYS_pwrite64, "pwrite"},  {SYS_writev, "writev"},
    {SYS_openat, "openat"},   {SYS_fsync, "fsync"},      {SYS_fdatasync, "fdatasync"},
    {SYS_ppoll, "ppoll"},     {SYS_pselect6, "pselect"}, {SYS_epoll_pwait, "epoll_wait"},
    {SYS_futex, "futex"},     {SYS_nanosleep, "sleep"},  {SYS_clock_nanosleep, "sleep"},
    {SYS_recvfrom, "recv"},   {SYS_recvmsg, "recvmsg"},  {SYS_sendto, "send"},
    {SYS_sendmsg, "sendmsg"}, {SYS_accept4, "accept"},   {SYS_connect, "connect"},
    {SYS_wait4, "wait"},      {SYS_waitid, "wait"},      {SYS_ioctl, "ioctl"},
    {SYS_flock, "flock"},     {SYS_mmap, "mmap"},        {SYS_munmap, "munmap"},
    {SYS_madvise, "madvise"},
};

std::string name_of_wait(int64_t number) {
  if (number == -1) return "page fault";
  for (const Wait& w : kWaits)
    if (w.number == number) return w.name;
  return "system call " + std::to_string(number);
}

// The text of `syscall` in /proc: "running", or the number of the call with its arguments; empty
// when it cannot be read.
std::string read_wait(int file) {
  std::array<char, 256> text;
  const ssize_t got = file < 0 ? -1 : pread(file, text.data(), text.size() - 1, 0);
  return {text.data(), got > 0 ? static_cast<size_t>(got) : 0};
}

bool alike(const HostSample& a, const HostSample& b) {
  return a.stack == b.stack && a.state == b.state && a.wait == b.wait && a.holder == b.holder &&
         a.holder_stack == b.holder_stack;
}

}  // namespace

StackSampler::StackSampler(pid_t root, std::function<int64_t()> clock)
    : root_(root), clock_(std::move(clock)) {}

StackSampler::~StackSampler() {
  for (auto& [pid, process] : processes_)
    for (auto& [id, thread] : process.threads)
      if (thread.file >= 0) close(thread.file);
}

void StackSampler::sample() {
  if (samples_ % kListEvery == 0) look_around();
  for (auto& [pid, process] : processes_) {
    if (process.python == nullptr && samples_ >= process.next_try) try_attach(pid, process);
    if (process.python != nullptr)
      sample_process(pid, process);
    else if (process.native)
      sample_native(pid, process);
  }
  ++samples_;
}

void StackSampler::look_around() {
  std::set<pid_t> there;
  const std::multimap<int64_t, int64_t> children = reader_.children();
  std::vector<pid_t> tree = {root_};
  for (size_t i = 0; i < tree.size(); ++i) {
    if (!there.insert(tree[i]).second) continue;
    std::error_code gone;
    const std::string program =
        std::filesystem::read_symlink("/proc/" + std::to_string(tree[i]) + "/exe", gone).string();
    Process& process = processes_[tree[i]];
    if (process.program != program) {
      process.tries = 0, process.next_try = samples_;
      process.code = nullptr;
    }
    process.program = program;
    process.native =
        process.python == nullptr && !program.empty() && !is_interpreter(program) && refused_ == 0;
    process.native_threads.clear();
    if (process.native)
      for (const int64_t id : reader_.thread_ids(tree[i]))
        if (process.native_threads.size() < kMostNativeThreads)
          process.native_threads.push_back(static_cast<pid_t>(id));
    const auto [from, to] = children.equal_range(tree[i]);
    for (auto child = from; child != to; ++child) {
      tree.push_back(static_cast<pid_t>(child->second));
      pending_.parents[static_cast<uint32_t>(child->second)] = static_cast<uint32_t>(tree[i]);
    }
  }
  for (auto at = processes_.begin(); at != processes_.end();) {
    Process& process = at->second;
    if (there.contains(at->first)) {
      ++at;
      continue;
    }
    for (auto& [id, thread] : process.threads) forget(thread);
    if (!process.problem.empty()) problems_.insert(process.problem);
    at = processes_.erase(at);
  }
}

// A process may become Python at any time: by exec, or by loading the library.
void StackSampler::try_attach(pid_t pid, Process& process) {
  if (process.tries >= kMostTries) return;
  process.python = PythonProcess::attach(pid, process.problem);
  process.next_try = samples_ + (int64_t{4} << process.tries++);
  if (process.python == nullptr) return;
  process.problem.clear();
  process.tries = 0;
  std::error_code none;
  process.folder =
      std::filesystem::read_symlink("/proc/" + std::to_string(pid) + "/cwd", none).string();
  read_any_ = true;
}

void StackSampler::sample_process(pid_t pid, Process& process) {
  if (!process.python->read_threads(found_)) {
    process.python = nullptr;
    return;
  }
  std::vector<std::pair<Thread*, HostSample>> now;
  std::optional<HostSample> holder;
  now.reserve(found_.size());
  for (const PythonThread& found : found_) {
    if (found.frame == 0) continue;
    Thread& thread = process.threads[found.thread];
    // A thread that has gone into another interpreter is known to both; the younger is the inner one
    // and comes first.
    if (thread.seen == samples_) {
      const auto before = std::find_if(now.begin(), now.end(),
                                       [&](const auto& one) { return one.first == &thread; });
      if (before != now.end() && before->second.stack != kNoStack) continue;
      if (before != now.end()) now.erase(before);
    }
    now.emplace_back(&thread, look(pid, process, found, thread));
    if (found.has_lock) holder = now.back().second;
  }
  for (auto& [thread, sample] : now) {
    if (sample.state == HostState::lock && holder && holder->thread != sample.thread) {
      sample.holder = holder->thread;
      sample.holder_stack = holder->stack;
    }
  }
  for (auto& [thread, sample] : now) add(*thread, sample);
  if (process.threads.size() <= 2 * now.size() + 16) return;
  forget_before(process, samples_);
}

HostSample StackSampler::look(pid_t pid, Process& process, const PythonThread& found,
                              Thread& thread) {
  HostSample s;
  s.count = 1;
  s.thread =
      pending_.threads.add({static_cast<uint32_t>(pid), static_cast<uint64_t>(found.thread)});
  open_files(pid, process, found.thread, thread);
  std::string line = read_wait(thread.file);
  s.start_ns = s.end_ns = clock_();
  if (!line.empty() && line[0] != 'r') {
    char* rest = nullptr;
    const int64_t number = std::strtoll(line.c_str(), &rest, 10);
    const uint64_t first = std::strtoull(rest, nullptr, 16);
    const bool lock = number == SYS_futex && process.python->is_of_lock(first);
    s.state = lock ? HostState::lock : HostState::blocked;
    s.wait = pending_.names.add(lock ? "the interpreter lock" : name_of_wait(number));
    if (thread.seen == samples_ - 1 && thread.run.count > 0 && found.frame == thread.frame &&
        line == thread.wait_line)
      s.stack = thread.run.stack;
  }
  if (s.stack == kNoStack) {
    process.python->read_stack(found, stack_);
    s.stack = node_of(process, stack_);
    if (s.state == HostState::running && s.stack != kNoStack) {
      const NativeCode::Place* place = native_place(pid, process, thread);
      if (place != nullptr && !is_interpreter(place->file)) s.stack = node_of(*place, s.stack);
    }
  }
  thread.seen = samples_;
  thread.frame = found.frame;
  thread.wait_line = std::move(line);
  return s;
}

void StackSampler::open_files(pid_t pid, const Process& process, pid_t id, Thread& thread) {
  if (thread.seen >= 0) return;
  if (process.threads.size() <= kMostOpenFiles) {
    const std::string path =
        "/proc/" + std::to_string(pid) + "/task/" + std::to_string(id) + "/syscall";
    thread.file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  }
  if (refused_ != 0 || with_instructions_ >= kMostWithInstructions) return;
  int error = 0;
  thread.instructions = InstructionSampler::open(id, error);
  if (thread.instructions != nullptr)
    ++with_instructions_;
  else if (error != ESRCH)  // it has not just ended
    refused_ = error;
}

// The function that the thread runs; null where that is not known, as when it comes from a long call
// of the kernel.
const NativeCode::Place* StackSampler::native_place(pid_t pid, Process& process, Thread& thread) {
  if (thread.instructions == nullptr) return nullptr;
  const auto point = thread.instructions->last();
  const int64_t now = monotonic_ns();
  if (!point || now - point->time_ns > kFreshNs) return nullptr;
  if (process.code == nullptr) process.code = std::make_unique<NativeCode>(pid);
  return process.code->at(point->address, now);
}

void StackSampler::sample_native(pid_t pid, Process& process) {
  forget_before(process, samples_ - 2 * kListEvery);
  for (const pid_t id : process.native_threads) {
    Thread& thread = process.threads[id];
    open_files(pid, process, id, thread);
    const std::string line = read_wait(thread.file);
    thread.seen = samples_;
    if (line.empty() || refused_ != 0) continue;
    HostSample s;
    s.count = 1;
    s.thread = pending_.threads.add({static_cast<uint32_t>(pid), static_cast<uint64_t>(id)});
    s.start_ns = s.end_ns = clock_();
    if (line[0] != 'r') {
      const std::string wait = name_of_wait(std::strtoll(line.c_str(), nullptr, 10));
      s.state = HostState::blocked;
      s.wait = pending_.names.add(wait);
      s.stack = node_of({wait, "[kernel]"}, kNoStack);
    } else if (const NativeCode::Place* place = native_place(pid, process, thread)) {
      s.stack = node_of(*place, kNoStack);
    } else {
      s.stack = node_of({"(not known)", "[not known]"}, kNoStack);
    }
    add(thread, s);
  }
}

uint32_t StackSampler::node_of(const NativeCode::Place& place, uint32_t caller) {
  return pending_.stacks.add({caller, pending_.names.add(place.function),
                              pending_.names.add(place.file), 0, pending_.names.add("")});
}

uint32_t StackSampler::node_of(Process& process, const std::vector<PythonPlace*>& stack) {
  uint32_t node = kNoStack;
  for (auto at = stack.rbegin(); at != stack.rend(); ++at) {
    PythonPlace& p = **at;
    if (!p.source) p.source = sources_.at(p.file, p.at, process.folder);
    node = pending_.stacks.add({node, pending_.names.add(p.function), pending_.names.add(p.file),
                                static_cast<uint32_t>(std::max(0, p.at.line)),
                                pending_.names.add(*p.source)});
  }
  return node;
}

void StackSampler::add(Thread& thread, const HostSample& sample) {
  if (thread.run.count > 0 && alike(thread.run, sample)) {
    thread.run.end_ns = sample.end_ns;
    ++thread.run.count;
    return;
  }
  end_run(thread);
  thread.run = sample;
}

void StackSampler::end_run(Thread& thread) {
  if (thread.run.count > 0 && thread.run.stack != kNoStack) pending_.samples.push_back(thread.run);
  thread.run.count = 0;
}

void StackSampler::forget(Thread& thread) {
  end_run(thread);
  if (thread.file >= 0) close(thread.file);
  thread.file = -1;
  if (thread.instructions != nullptr) --with_instructions_;
  thread.instructions = nullptr;
}

// Threads that have ended: none of them was seen from sample `number` on.
void StackSampler::forget_before(Process& process, int64_t number) {
  for (auto at = process.threads.begin(); at != process.threads.end();) {
    if (at->second.seen >= number) {
      ++at;
      continue;
    }
    forget(at->second);
    at = process.threads.erase(at);
  }
}

void StackSampler::take(Trace& trace) {
  for (auto& [pid, process] : processes_)
    for (auto& [id, thread] : process.threads) end_run(thread);
  append_trace(trace, pending_, 0);
  pending_ = Trace();
}

std::vector<std::string> StackSampler::notes() const {
  std::set<std::string> problems = problems_;
  for (const auto& [pid, process] : processes_)
    if (!process.problem.empty()) problems.insert(process.problem);
  std::vector<std::string> out;
  for (const std::string& p : problems)
    out.push_back("lines of Python: of a process that was started none are known: " + p);
  if (problems.empty() && !read_any_)
    out.push_back("lines of Python: no process that was started runs Python 3.9 to 3.15");
  if (refused_ != 0)
    out.push_back(std::string("functions of native code are not known: the kernel refuses "
                              "perf_event_open (") +
                  std::strerror(refused_) +
                  "); it is allowed where kernel.perf_event_paranoid is at most 2 and no container "
                  "forbids it");
  return out;
}

}  // namespace saturate::observe
