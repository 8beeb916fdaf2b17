// SPDX-License-Identifier: Apache-2.0
#include "observe/system/copy_rates.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "base/error.h"
#include "base/json.h"

namespace saturate::observe {
namespace {

constexpr size_t kBytes = 64 << 20;
constexpr int64_t kTimes = 3;  // something else may use the link at one time; the fastest counts
constexpr int kTimeoutMs = 20'000;
// Copies of one kind: a link that was asleep takes some to wake up.
constexpr int kLeastCopies = 5, kMostCopies = 40, kCopiesWithoutGain = 4;

// What the child says; plain, since it goes through a pipe.
struct Answer {
  char problem[128] = {};
  char device[128] = {};
  char bus[32] = {};
  double pinned_in = 0, pinned_out = 0, pageable_in = 0, pageable_out = 0;
};

// GB/s of the fastest; 0 when one failed.
template <class Copy>
double best_rate(const Copy& copy) {
  using Clock = std::chrono::steady_clock;
  double best = 0;
  for (int i = 0, idle = 0; i < kLeastCopies || (idle < kCopiesWithoutGain && i < kMostCopies);
       ++i) {
    const auto start = Clock::now();
    if (!copy()) return 0;
    const double ns = std::chrono::duration<double, std::nano>(Clock::now() - start).count();
    const double rate = static_cast<double>(kBytes) / std::max(ns, 1.0);
    idle = rate > 1.01 * best ? 0 : idle + 1;
    best = std::max(best, rate);
  }
  return best;
}

// In the child. The driver's functions by the names that every driver since CUDA 7 has.
Answer measure_here() {
  Answer a;
  const auto fail = [&](const char* what, int code) {
    std::snprintf(a.problem, sizeof a.problem, "%s (CUDA error %d)", what, code);
    return a;
  };
  const char* named = std::getenv("SATURATE_CUDA_DRIVER");
  void* library = dlopen(named != nullptr ? named : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return fail("libcuda.so.1 cannot be loaded", 0);
  const auto call = [&]<class... Args>(const char* name, Args... args) {
    auto* f = reinterpret_cast<int (*)(Args...)>(dlsym(library, name));
    return f == nullptr ? -1 : f(args...);
  };
  using Address = unsigned long long;
  int device = 0;
  void *context = nullptr, *pinned = nullptr;
  Address memory = 0;
  if (const int e = call("cuInit", 0u)) return fail("CUDA does not start", e);
  if (const int e = call("cuDeviceGet", &device, 0)) return fail("no GPU is visible", e);
  call("cuDeviceGetName", a.device, int{sizeof a.device - 1}, device);
  call("cuDeviceGetPCIBusId", a.bus, int{sizeof a.bus - 1}, device);
  if (const int e = call("cuDevicePrimaryCtxRetain", &context, device))
    return fail("the GPU takes no context", e);
  if (const int e = call("cuCtxSetCurrent", context)) return fail("the GPU takes no context", e);
  if (const int e = call("cuMemAlloc_v2", &memory, kBytes)) return fail("no memory on the GPU", e);
  if (const int e = call("cuMemAllocHost_v2", &pinned, kBytes)) return fail("no pinned memory", e);
  void* pageable = std::aligned_alloc(4096, kBytes);
  if (pageable == nullptr) return fail("no memory", 0);
  std::memset(pageable, 1, kBytes);
  std::memset(pinned, 1, kBytes);
  const auto rate = [&](const char* name, auto to, auto from) {
    return best_rate(
        [&, name] { return call(name, to, from, kBytes) == 0 && call("cuCtxSynchronize") == 0; });
  };
  const auto in = [&](void* host) {
    return rate("cuMemcpyHtoD_v2", memory, static_cast<const void*>(host));
  };
  const auto out = [&](void* host) { return rate("cuMemcpyDtoH_v2", host, memory); };
  a.pinned_in = in(pinned), a.pinned_out = out(pinned);
  a.pageable_in = in(pageable), a.pageable_out = out(pageable);
  if (std::min({a.pinned_in, a.pinned_out, a.pageable_in, a.pageable_out}) <= 0)
    return fail("a copy failed", 0);
  return a;
}

class LockedFile {
 public:
  explicit LockedFile(const std::string& path)
      : fd_(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666)) {
    if (fd_ >= 0) flock(fd_, LOCK_EX);
  }
  ~LockedFile() {
    if (fd_ >= 0) close(fd_);
  }
  LockedFile(const LockedFile&) = delete;
  LockedFile& operator=(const LockedFile&) = delete;

 private:
  int fd_;
};

// FNV-1a: of a name of a file alone.
uint64_t hash(const std::string& text) {
  uint64_t h = 14695981039346656037ull;
  for (const unsigned char c : text) h = (h ^ c) * 1099511628211ull;
  return h;
}

// Not known when there is no such file, or it is of another machine or damaged.
CopyRates read_cached(const std::string& path, const std::string& machine, int64_t& times) {
  times = 0;
  try {
    if (!std::filesystem::exists(path)) return {};
    const Json j = read_json_file(path);
    JsonFields f(j, "doctor", path);
    if (f.text("machine") != machine) return {};
    CopyRates r;
    r.device = f.text("device");
    r.bus = f.text("bus");
    for (const auto& [rate, key] : {std::pair{&r.pinned_in, "pinned_in"},
                                    {&r.pinned_out, "pinned_out"},
                                    {&r.pageable_in, "pageable_in"},
                                    {&r.pageable_out, "pageable_out"}}) {
      *rate = f.number(key);
      if (!(*rate > 0 && *rate < 1e6)) return {};
    }
    times = f.integer("times");
    return r;
  } catch (const std::exception&) {
    return {};
  }
}

}  // namespace

CopyRates measure_copy_rates(std::string& problem) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    problem = std::string("cannot make a pipe: ") + std::strerror(errno);
    return {};
  }
  const pid_t child = fork();
  if (child == 0) {
    const Answer a = measure_here();
    const ssize_t written = write(ends[1], &a, sizeof a);
    _exit(written == sizeof a ? 0 : 1);  // the driver's own ends are the kernel's to tidy up
  }
  close(ends[1]);
  Answer a;
  bool told = false;
  pollfd waiting{ends[0], POLLIN, 0};
  if (child > 0 && poll(&waiting, 1, kTimeoutMs) > 0)
    told = read(ends[0], &a, sizeof a) == sizeof a;
  close(ends[0]);
  if (child > 0) {
    if (!told) kill(child, SIGKILL);
    waitpid(child, nullptr, told ? 0 : WNOHANG);  // one inside a driver that hangs does not end
  }
  problem = !told ? "CUDA did not answer within 20 s" : a.problem;
  if (!problem.empty()) return {};
  return {a.device, a.bus, a.pinned_in, a.pinned_out, a.pageable_in, a.pageable_out};
}

CopyRates machine_copy_rates(const std::string& machine, const std::string& cache_folder,
                             std::string& problem) {
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  const std::string key = fmt::format("{}, visible {}", machine, visible ? visible : "all");
  std::error_code error;
  if (!cache_folder.empty()) std::filesystem::create_directories(cache_folder, error);
  if (cache_folder.empty() || error) return measure_copy_rates(problem);
  const std::string path = fmt::format("{}/copies-{:016x}.json", cache_folder, hash(key));
  // A doctor for each rank starts on all at once: one measures, on a bus of its own.
  const LockedFile lock(cache_folder + "/copies.lock");
  int64_t times = 0;
  CopyRates r = read_cached(path, key, times);
  if (times >= kTimes) return r;
  const CopyRates now = measure_copy_rates(problem);
  if (r.known()) problem.clear();
  if (!now.known()) return r;
  r.take(now);
  try {
    write_json_file(path, {{"about",
                            "copies of 64 MiB in GB/s, measured by saturate doctor; "
                            "delete it to have them measured again"},
                           {"machine", key},
                           {"times", times + 1},
                           {"device", r.device},
                           {"bus", r.bus},
                           {"pinned_in", r.pinned_in},
                           {"pinned_out", r.pinned_out},
                           {"pageable_in", r.pageable_in},
                           {"pageable_out", r.pageable_out}});
  } catch (const Error&) {  // then the next run measures again
  }
  return r;
}

}  // namespace saturate::observe
