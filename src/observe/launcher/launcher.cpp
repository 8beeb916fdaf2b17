// SPDX-License-Identifier: Apache-2.0
#include "observe/launcher/launcher.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string_view>

#include "base/cache_folder.h"
#include "base/error.h"
#include "base/log.h"
#include "observe/capture/settings.h"
#include "observe/launcher/cut_captures.h"
#include "observe/launcher/process_tree.h"
#include "observe/launcher/thread_sampler.h"
#include "observe/read/sat_writer.h"
#include "observe/stacks/stack_thread.h"
#include "observe/system/background.h"
#include "observe/system/copy_rates.h"
#include "observe/system/counters.h"

namespace saturate::observe {
namespace {

constexpr int64_t kSampleNs = 10'000'000, kLongestSampleNs = 200'000'000;
constexpr double kMostOfACore = 0.02;  // for samples of threads: more of them, more rarely
constexpr int kSamplesAWrite = 50, kSamplesOfCost = 40;

int64_t now_ns() {
  timespec t{};
  clock_gettime(CLOCK_REALTIME, &t);
  return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

// What this thread ran.
int64_t own_cpu_ns() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

// A library that was named, as the command will find it from wherever it runs.
std::string named_library(const std::string& path, const char* option, const char* remedy) {
  std::ifstream file(path, std::ios::binary);
  char head[4] = {};
  if (!file.read(head, sizeof head) || std::string_view(head, sizeof head) != "\177ELF")
    throw Error(Errc::invalid_argument, "doctor",
                fmt::format("{} {}: is no library that can be read; {}", option, path, remedy));
  return std::filesystem::absolute(path).string();
}

std::string find_library(const std::string& given) {
  constexpr const char* kName = "libsaturate_capture.so";
  if (!given.empty())
    return named_library(given, "--library", "name libsaturate_capture.so, or leave it out");
  if (std::string found = installed_library(kName); !found.empty()) return found;
  throw Error(Errc::unsupported, "doctor",
              fmt::format("{} is not beside this program; install the whole program, or name it "
                          "with --library",
                          kName));
}

void refuse_other_owner() {
  const char* owner = std::getenv(cupti::kInjectionVariable);
  if (owner == nullptr || *owner == '\0' || std::strcmp(owner, "none") == 0) return;
  throw Error(
      Errc::invalid_argument, "doctor",
      fmt::format("{} is set to {}: another tool watches CUDA programs here (Nsight "
                  "Systems, a monitoring agent); CUDA takes one at a time: unset it, or run "
                  "without that tool",
                  cupti::kInjectionVariable, owner));
}

class Child {
 public:
  Child(const LaunchOptions& o, const std::string& library, const std::string& cupti_library) {
    sigset_t blocked;
    sigemptyset(&blocked);
    for (const int s : {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGCHLD, SIGCONT})
      sigaddset(&blocked, s);
    pthread_sigmask(SIG_BLOCK, &blocked, &before_);
    signals_ = blocked;
    int ready[2];
    if (pipe2(ready, O_CLOEXEC) != 0)
      throw Error(Errc::io, "doctor", std::string("cannot make a pipe: ") + std::strerror(errno));
    pid_ = fork();
    if (pid_ == 0) start(o, library, cupti_library, ready[1]);
    const int fork_error = errno;
    close(ready[1]);
    int problem = 0;
    const bool failed = pid_ > 0 && read(ready[0], &problem, sizeof problem) == sizeof problem;
    close(ready[0]);
    if (pid_ < 0 || failed) {
      if (failed) waitpid(pid_, nullptr, 0);
      pthread_sigmask(SIG_SETMASK, &before_, nullptr);
      throw Error(Errc::invalid_argument, "doctor",
                  fmt::format("cannot run {}: {}; check the name and PATH", o.command[0],
                              std::strerror(failed ? problem : fork_error)));
    }
  }
  ~Child() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  pid_t pid() const { return pid_; }
  bool asked_to_end() const { return asked_to_end_; }

  // Passes on what signals come until `until_ns`; true when the command has ended.
  bool wait(int64_t until_ns) {
    for (;;) {
      const int64_t left = std::max<int64_t>(0, until_ns - now_ns());
      const timespec timeout{static_cast<time_t>(left / 1'000'000'000), left % 1'000'000'000};
      siginfo_t info{};
      const int signal = sigtimedwait(&signals_, &info, &timeout);
      if (signal < 0) return ended();
      if (signal == SIGCHLD) {
        if (ended()) return true;
        continue;
      }
      for (const int s : {SIGTERM, SIGINT, SIGHUP, SIGQUIT}) asked_to_end_ |= signal == s;
      // A terminal sends to the whole group itself.
      if (info.si_code != SI_KERNEL) kill(pid_, signal);
    }
  }

  int status() const { return status_; }  // of waitpid
  int exit_code() const {
    return WIFSIGNALED(status_) ? 128 + WTERMSIG(status_) : WEXITSTATUS(status_);
  }

 private:
  [[noreturn]] void start(const LaunchOptions& o, const std::string& library,
                          const std::string& cupti_library, int ready) {
    const auto set = [](const char* variable, const std::string& value) {
      setenv(variable, value.c_str(), 1);
    };
    const auto milliseconds = [](double seconds) {
      return std::to_string(static_cast<int64_t>(seconds * 1000));
    };
    set(cupti::kInjectionVariable, library);
    set(cupti::kFolderVariable, std::filesystem::absolute(o.folder).string());
    if (!cupti_library.empty()) set(cupti::kCuptiVariable, cupti_library);
    set(cupti::kDelayVariable, milliseconds(o.delay_s));
    set(cupti::kMemoryVariable, o.memory ? "1" : "0");
    set(cupti::kNodesVariable, o.graph_nodes ? "1" : "0");
    set(cupti::kDurationVariable, milliseconds(o.duration_s));
    for (const auto& [variable, value] : o.environment) set(variable.c_str(), value);
    prepare(o);
    std::vector<char*> arguments;
    for (const std::string& a : o.command) arguments.push_back(const_cast<char*>(a.c_str()));
    arguments.push_back(nullptr);
    signal(SIGXFSZ, SIG_DFL);  // this program ignores it
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    execvp(arguments[0], arguments.data());
    const int problem = errno;
    const ssize_t reported = write(ready, &problem, sizeof problem);
    _exit(reported == sizeof problem ? 127 : 126);
  }

  // Streams and cores of a run that is compared. A core that is not there is for the command to
  // do without.
  static void prepare(const LaunchOptions& o) {
    if (!o.cores.empty()) {
      cpu_set_t cores;
      CPU_ZERO(&cores);
      for (const int core : o.cores)
        if (core >= 0 && core < CPU_SETSIZE) CPU_SET(core, &cores);
      sched_setaffinity(0, sizeof cores, &cores);
    }
    if (o.output.empty()) return;
    const int in = open("/dev/null", O_RDONLY);
    const int out = open(o.output.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0666);
    if (in >= 0) dup2(in, STDIN_FILENO);
    if (out >= 0) dup2(out, STDOUT_FILENO), dup2(out, STDERR_FILENO);
    if (in > STDERR_FILENO) close(in);
    if (out > STDERR_FILENO) close(out);
  }

  bool ended() {
    int status = 0;
    if (waitpid(pid_, &status, WNOHANG) != pid_) return false;
    status_ = status;
    return true;
  }

  pid_t pid_ = -1;
  int status_ = 0;
  bool asked_to_end_ = false;
  sigset_t before_{}, signals_{};
};

// Counters of the run, taken in a thread of their own: a driver that hangs must not keep signals
// and the end of the command waiting.
class OutsideView {
 public:
  // `driver` may be null; `no_gpu` then says why.
  OutsideView(int64_t root, std::unique_ptr<GpuMonitor> driver, const std::string& no_gpu)
      : collector_(root),
        sampler_(Sampler(std::move(driver), no_gpu, ProcessReader(),
                         {.gpus = {}, .pcie = false, .also = {root}}),
                 kPeriodS) {}
  void collect() {
    if (const std::optional<Snapshot> newest = sampler_.newest()) collector_.add(*newest);
  }
  void write(const std::string& folder) {
    if (!sampler_.stop(1)) log_warning("the driver does not answer; counters end before that");
    collect();
    try {
      write_counters(collector_.finish(), folder);
    } catch (const Error& e) {
      log_warning(e.what());
    }
  }

 private:
  static constexpr double kPeriodS = 0.5;
  CounterCollector collector_;
  BackgroundSampler sampler_;
};

// Ends what takes longer than it may, or goes on after it was asked to end.
class Deadline {
 public:
  Deadline(double timeout_s, int64_t now)
      : at_(timeout_s > 0 ? now + static_cast<int64_t>(1e9 * timeout_s) : INT64_MAX),
        limited_(timeout_s > 0) {}
  void check(int64_t now, bool asked) {
    if (!limited_) return;
    if (asked && !asked_) at_ = std::min(at_, now + kGraceNs);
    asked_ = asked;
    if (now < at_) return;
    timed_out_ = !asked_;
    signal_descendants(signals_++ == 0 ? SIGTERM : SIGKILL);
    at_ = now + kGraceNs;
  }
  bool timed_out() const { return timed_out_; }

 private:
  static constexpr int64_t kGraceNs = 5'000'000'000;
  int64_t at_;
  int signals_ = 0;
  bool limited_, asked_ = false, timed_out_ = false;
};

int64_t page_faults_of_children() {
  rusage use{};
  getrusage(RUSAGE_CHILDREN, &use);
  return use.ru_minflt;
}

void collect(const std::string& folder, LaunchResult& result) {
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::filesystem::path& path = entry.path();
    if (path.extension() == ".sat" && path.filename() != "host.sat") {
      ++result.captured;
      // One that ended may still be known to the kernel, when nobody waits for it.
      const int process = std::atoi(path.filename().c_str());
      const std::optional<ProcessTimes> times = ProcessReader().process(process);
      if (times && times->state != 'Z' && times->state != 'X')
        log_warning(
            fmt::format("process {} goes on although the command has ended; the report is of "
                        "what it recorded so far",
                        process));
    }
    if (path.extension() != ".failed") continue;
    std::string line;
    std::ifstream file(path);
    std::getline(file, line);
    result.failures.push_back(fmt::format("process {}: {}", path.stem().string(), line));
  }
}

CopyRates rates_of(const GpuMonitor& driver, std::string& problem) {
  std::string machine = "driver " + driver.driver_version();
  for (const GpuInfo& gpu : driver.gpus()) machine += ", " + gpu.uuid;
  return machine_copy_rates(machine, user_cache_folder(), problem);
}

}  // namespace

std::string installed_library(const std::string& name) {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  const fs::path root = program.parent_path().parent_path();
  for (const fs::path& folder :
       {root / "lib", root / "lib" / "x86_64-linux-gnu", root / "lib" / "aarch64-linux-gnu",
        root / "lib64", program.parent_path()}) {
    if (fs::exists(folder / name, error)) return (folder / name).string();
  }
  return "";
}

LaunchResult run_captured(const LaunchOptions& o) {
  if (o.command.empty())
    throw Error(Errc::invalid_argument, "doctor", "no command after --; give a program to run");
  refuse_other_owner();
  const std::string library = find_library(o.library);
  const std::string cupti_library =
      o.cupti.empty() ? ""
                      : named_library(o.cupti, "--cupti",
                                      "name libcupti.so of a CUDA toolkit, or leave it out to "
                                      "take the program's own");
  SatWriter writer((std::filesystem::path(o.folder) / "host.sat").string());
  Trace host;
  std::string no_gpu;
  std::unique_ptr<GpuMonitor> driver = GpuMonitor::open(no_gpu);  // takes long on some machines
  std::string no_rates;
  if (driver)
    host.copy_rates = rates_of(*driver, no_rates);
  else  // before the command, which may take hours
    log_warning("[doctor] no GPU to watch: " + no_gpu);
  const int64_t started_ns = now_ns(), faults = page_faults_of_children();
  Child child(o, library, cupti_library);
  Deadline deadline(o.timeout_s, started_ns);
  std::error_code no_link;  // as /proc shows it
  const std::string folder = std::filesystem::weakly_canonical(o.folder, no_link).string();
  ThreadSampler sampler(child.pid(), now_ns, "/proc", {}, folder);
  StackThread stacks(child.pid(), now_ns);
  OutsideView outside(child.pid(), std::move(driver), no_gpu);
  bool writing = true;
  const auto write = [&] {
    if (!writing) return;
    try {
      sampler.take_spans(host);
      stacks.take(host);
      writer.write(host, now_ns());
      host.spans.clear();
      host.samples.clear();
      host.host_uses.clear();
    } catch (const Error& e) {  // the disk is full, say: the command still runs to its end
      log_warning(e.what());
      writing = false;
    }
  };
  int64_t next = now_ns();
  double cost_ns = 0;  // of a sample, lately
  int64_t samples = 0;
  const int64_t begun_ns = next;
  for (; !child.wait(next); ++samples) {
    deadline.check(now_ns(), child.asked_to_end());
    const int64_t before_ns = own_cpu_ns();
    sampler.sample();
    cost_ns += (static_cast<double>(own_cpu_ns() - before_ns) - cost_ns) / kSamplesOfCost;
    outside.collect();
    if (samples % kSamplesAWrite == kSamplesAWrite - 1) write();
    next = std::max(next + std::clamp(static_cast<int64_t>(cost_ns / kMostOfACore), kSampleNs,
                                      kLongestSampleNs),
                    now_ns());
  }
  const int64_t ended_ns = now_ns();
  sampler.finish();
  host.notes = sampler.summary();
  if (!no_rates.empty()) host.notes.push_back("rates of copies were not measured: " + no_rates);
  for (std::string& note : stacks.notes()) host.notes.push_back(std::move(note));
  if (const int64_t mean_ns = (ended_ns - begun_ns) / std::max<int64_t>(1, samples);
      samples >= kSamplesAWrite && mean_ns > 3 * kSampleNs / 2)
    host.notes.push_back(fmt::format(
        "host: its threads were sampled every {:.0f} ms, not every {}, to take no more than "
        "{:.0f}% of a core: shorter waits have their kind from few samples",
        1e-6 * static_cast<double>(mean_ns), kSampleNs / 1'000'000, 100 * kMostOfACore));
  host.host_uses = sampler.uses();
  write();
  if (writing) writer.close(host);
  outside.write(o.folder);
  LaunchResult result;
  result.exit_code = child.exit_code();
  complete_cut_captures(o.folder, child.pid(), child.status(), ended_ns);
  result.wall_s = 1e-9 * static_cast<double>(ended_ns - started_ns);
  result.page_faults = page_faults_of_children() - faults;
  result.timed_out = deadline.timed_out();
  result.interrupted = child.asked_to_end();
  result.no_gpu = no_gpu;
  collect(o.folder, result);
  return result;
}

}  // namespace saturate::observe
