// SPDX-License-Identifier: Apache-2.0
// A "CUDA program" without CUDA: a training loop of a shape given on the command line, and a way to
// end. Prints what it did on standard output, for the tests to compare with the report.
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "observe/capture/cupti_abi.h"
#include "tests/capture/fake_cuda.h"
#include "tests/include/observe/testing/cubin.h"

namespace cupti = saturate::observe::cupti;

namespace {

struct Options {
  long steps = 60, seconds = 0, launches = 10, kernel_us = 50, call_us = 4, load_ms = 0,
       leak_mib = 0, fault_mib = 0, exit_code = 0;
  std::string end =
      "return";  // return, _exit, quick_exit, exec, abort, crash, term, kill, kill9, wait
  std::string fails_with, hangs_with;       // environment variables that it cannot bear
  bool fp32 = false;                        // products that TF32 makes five times as fast
  bool module = false, subscriber = false;  // code of its own; callbacks of its own
  bool fork = false, other_profiler = false, neighbour = false, graph = false, spawn = false,
       no_cuda = false, pooled = false, stream = false, ahead = false;
};

void step(const Options& o) {
  if (o.load_ms > 0) {
    usleep(static_cast<useconds_t>(o.load_ms * 1000));
    fake_copy_in(1 << 20, 50'000);
  }
  if (o.fault_mib > 0) {  // host memory that malloc gives back to the kernel each step
    volatile char* memory = static_cast<char*>(std::malloc(static_cast<size_t>(o.fault_mib) << 20));
    for (long i = 0; i < o.fault_mib << 20; i += 4096) memory[i] = 1;
    std::free(const_cast<char*>(memory));
  }
  static const char* tf32 = std::getenv("NVIDIA_TF32_OVERRIDE");
  const long kernel_us = o.fp32 && tf32 != nullptr && *tf32 == '1' ? o.kernel_us / 5 : o.kernel_us;
  fake_get_device();
  if (o.graph) fake_graph_launch(o.launches * o.kernel_us * 1000, o.call_us * 1000);
  for (long i = 0; !o.graph && i < o.launches; ++i)
    fake_launch(o.module ? "wave"
                : o.fp32 ? "ampere_sgemm_128x64_nn"
                : i == 0 ? "_Z5firstPf"
                         : "sm90_gemm_bf16bf16",
                kernel_us * 1000, o.call_us * 1000);
  if (o.leak_mib > 0) {  // and as much that is given back
    fake_malloc(o.leak_mib << 20, o.pooled);
    fake_free(fake_malloc(o.leak_mib << 20, o.pooled));
  }
  if (!o.ahead) o.stream ? fake_stream_synchronize(7) : fake_synchronize();
}

// A profiler of the program itself, as torch.profiler uses CUPTI. Counts the kernels it is told of.
std::set<uint8_t*> other_buffers;
std::set<uint32_t> other_numbers;  // which tell a profiler what call issued a kernel
long other_kernels = 0, unknown_buffers = 0;

void other_requested(uint8_t** buffer, size_t* size, size_t* most) {
  *size = 1 << 16;
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(8, *size));
  *most = 0;
  other_buffers.insert(*buffer);
}
void other_completed(void*, uint32_t, uint8_t* buffer, size_t, size_t valid) {
  if (other_buffers.erase(buffer) == 0) {
    ++unknown_buffers;
    return;
  }
  void* record = nullptr;
  while (cuptiActivityGetNextRecord(buffer, valid, &record) == 0) {
    const auto* kernel = static_cast<const cupti::KernelActivity*>(record);
    if (kernel->kind != cupti::kConcurrentKernel) continue;
    ++other_kernels;
    other_numbers.insert(kernel->correlation);
  }
  std::free(buffer);
}

void profile(const Options& o) {
  cuptiActivityRegisterCallbacks(other_requested, other_completed);
  cuptiActivityEnable(cupti::kConcurrentKernel);
  const int64_t before = fake_launches();
  for (int i = 0; i < 20; ++i) step(o);
  cuptiActivityDisable(cupti::kConcurrentKernel);
  cuptiActivityFlushAll(1);
  std::printf("profiled %ld of %ld by %zu numbers, unknown %ld\n", other_kernels,
              static_cast<long>(fake_launches() - before), other_numbers.size(), unknown_buffers);
}

// The same by the newer interface, where several may.
void profile_beside_others(const Options& o) {
  void* subscriber = nullptr;
  cupti::SubscriberParams params{sizeof params, "a profiler", nullptr, 0, 1, {}};
  if (cuptiSubscribe_v2(&subscriber, nullptr, nullptr, &params) != 0) std::printf("refused\n");
  if (subscriber == nullptr) return;
  cuptiActivityRegisterCallbacks_v2(
      subscriber,
      [](uint8_t** buffer, size_t* size, size_t* most, void*) {
        other_requested(buffer, size, most);
      },
      [](uint8_t* buffer, size_t size, size_t valid, void*) {
        other_completed(nullptr, 0, buffer, size, valid);
      });
  cuptiActivityEnable_v2(subscriber, cupti::kConcurrentKernel, nullptr);
  const int64_t before = fake_launches();
  for (int i = 0; i < 20; ++i) step(o);
  cuptiActivityDisable_v2(subscriber, cupti::kConcurrentKernel, nullptr);
  cuptiActivityFlushAll(1);
  cuptiUnsubscribe(subscriber);
  std::printf("profiled %ld of %ld by %zu numbers, unknown %ld\n", other_kernels,
              static_cast<long>(fake_launches() - before), other_numbers.size(), unknown_buffers);
}

Options parse(int argc, char** argv) {
  Options o;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    const auto number = [&] { return i + 1 < argc ? std::strtol(argv[++i], nullptr, 10) : 0; };
    if (name == "--steps") o.steps = number();
    if (name == "--seconds") o.seconds = number();
    if (name == "--launches") o.launches = number();
    if (name == "--kernel-us") o.kernel_us = number();
    if (name == "--call-us") o.call_us = number();
    if (name == "--load-ms") o.load_ms = number();
    if (name == "--leak-mib") o.leak_mib = number();
    if (name == "--exit") o.exit_code = number();
    if (name == "--end" && i + 1 < argc) o.end = argv[++i];
    if (name == "--fault-mib") o.fault_mib = number();
    if (name == "--fails-with" && i + 1 < argc) o.fails_with = argv[++i];
    if (name == "--hangs-with" && i + 1 < argc) o.hangs_with = argv[++i];
    if (name == "--fp32") o.fp32 = true;
    if (name == "--module") o.module = true;
    if (name == "--subscriber") o.subscriber = true;
    if (name == "--fork") o.fork = true;
    if (name == "--other-profiler") o.other_profiler = true;
    if (name == "--neighbour") o.neighbour = true;
    if (name == "--graph") o.graph = true;
    if (name == "--pooled") o.pooled = true;
    if (name == "--ahead") o.ahead = true;
    if (name == "--stream-sync") o.stream = true;
    if (name == "--spawn") o.spawn = true;
    if (name == "--no-cuda") o.no_cuda = true;
  }
  return o;
}

volatile sig_atomic_t terminated = 0;

}  // namespace

int main(int argc, char** argv) {
  const Options o = parse(argc, argv);
  std::printf("hello\n");
  if (o.no_cuda) return static_cast<int>(o.exit_code);
  if (o.spawn) {  // two ranks, as torchrun starts them
    for (int rank = 0; rank < 2; ++rank) {
      if (fork() != 0) continue;
      setenv("RANK", std::to_string(rank).c_str(), 1);
      execl(argv[0], argv[0], "--steps", std::to_string(o.steps).c_str(), "--leak-mib",
            std::to_string(o.leak_mib).c_str(), nullptr);
      _exit(127);
    }
    int status = 0, worst = 0;
    while (wait(&status) > 0) worst |= WEXITSTATUS(status);
    return worst;
  }
  if (!o.fails_with.empty() && std::getenv(o.fails_with.c_str()) != nullptr) {
    std::fprintf(stderr, "cannot bear %s\n", o.fails_with.c_str());
    return 3;
  }
  if (!o.hangs_with.empty() && std::getenv(o.hangs_with.c_str()) != nullptr)
    for (;;) pause();
  if (o.end == "crash") signal(SIGSEGV, SIG_DFL);  // sanitizers have a handler of their own
  if (!fake_cuda_init()) return 99;
  if (o.subscriber) {
    void* subscriber = nullptr;
    const auto nothing = [](void*, uint32_t, uint32_t, const void*) {};
    std::printf("callbacks: %d\n", cuptiSubscribe(&subscriber, nothing, nullptr));
  }
  if (o.module) {  // one that its name says nothing of
    const std::string module = saturate::observe::testing::cubin_of({{"wave", {0x22b, 0x229}}});
    fake_load_module(module.data(), module.size());
  }
  for (long i = 0; i < o.steps / 2; ++i) step(o);
  if (o.fork) {  // a data loader's worker: ends in the ordinary way, atexit and all
    const pid_t worker = fork();
    if (worker == 0) std::exit(0);
    waitpid(worker, nullptr, 0);
  }
  for (long i = o.steps / 2; i < o.steps; ++i) step(o);
  for (const time_t end = time(nullptr) + o.seconds; time(nullptr) < end;) step(o);
  if (o.other_profiler) profile(o);
  if (o.neighbour) profile_beside_others(o);
  std::printf("launched %ld\n", static_cast<long>(fake_launches()));
  std::fflush(stdout);
  if (o.end == "_exit") _exit(static_cast<int>(o.exit_code));
  if (o.end == "quick_exit") std::quick_exit(static_cast<int>(o.exit_code));
  if (o.end == "exec") {  // as another program, which uses CUDA as well
    const std::string steps = std::to_string(o.steps);
    char* arguments[] = {argv[0], const_cast<char*>("--steps"), const_cast<char*>(steps.c_str()),
                         nullptr};
    execv("/no/such/program", arguments);  // a search of PATH tries more than one
    execv(argv[0], arguments);
  }
  if (o.end == "abort") std::abort();
  if (o.end == "crash") {
    void* nothing = mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    *static_cast<volatile int*>(nothing) = 1;
  }
  if (o.end == "term") raise(SIGTERM);
  if (o.end == "kill") raise(SIGKILL);
  if (o.end == "kill9") syscall(SYS_kill, getpid(), SIGKILL);  // as if from outside
  if (o.end == "wait") {
    signal(SIGTERM, [](int) { terminated = 1; });
    std::printf("waiting\n");
    std::fflush(stdout);
    while (!terminated) usleep(1000);
  }
  return static_cast<int>(o.exit_code);
}
