// SPDX-License-Identifier: Apache-2.0
// What CUPTI costs each launch of a process, on and off again, on a GPU. Not part of the build:
//   nvcc -O2 -std=c++20 -arch=sm_90a -o launch_pace tests/doctor/launch_pace.cu -ldl
//   taskset -c 4 ./launch_pace libcupti.so.13 register +10 -10 flush finalize
// One process does the steps in turn and, after each, times launches of an empty kernel: in
// nanoseconds, in turns of a fixed loop timed beside them (the pace of a core changes), and by the
// library that the host was in. A line of JSON a step. Steps: register, +KIND and -KIND (numbers of
// CUpti_ActivityKind: 1 copies, 8 devices, 10 kernels, 38 waits, 49 memory, 51 graphs), +launches
// and -launches (records of cudaLaunchKernel), flush, finalize, graph (makes one), play (launches
// all that were made). context+KIND and context-KIND: of the current context alone. subscribe,
// +callbacks, -callbacks (of all functions) and unsubscribe: the interface of callbacks.
#include <cuda_runtime.h>
#include <dlfcn.h>
#include <signal.h>
#include <time.h>
#include <ucontext.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

namespace {

constexpr int kLaunches = 500, kTurns = 20'000;  // of a stretch, of the fixed loop
constexpr double kSeconds = 0.5;                 // a step is timed
constexpr double kRestless = 1.05;  // the fixed loop before and after a stretch differ by more
constexpr uint32_t kCudaLaunchKernel = 211;  // of the runtime's callbacks

using Nullary = int (*)();
using WithKind = int (*)(uint32_t);
using WithCall = int (*)(uint32_t, uint8_t);
using WithContext = int (*)(void*, int);
using WithSubscriber = int (*)(uint32_t, void*);
using Subscribe = int (*)(void**, void (*)(void*, int, uint32_t, const void*), void*);
using Register = int (*)(void (*)(uint8_t**, size_t*, size_t*),
                         void (*)(void*, uint32_t, uint8_t*, size_t, size_t));

void* cupti = nullptr;
cudaStream_t stream;
int* counter = nullptr;
long launched = 0;

template <class Function>
Function entry(const char* name) {
  void* found = dlsym(cupti, name);
  if (found == nullptr) std::exit((std::fprintf(stderr, "no %s in libcupti\n", name), 1));
  return reinterpret_cast<Function>(found);
}

__global__ void count(int* n) {
  if (threadIdx.x == 0) atomicAdd(n, 1);
}

void launch(int times) {
  for (int i = 0; i < times; ++i) count<<<1, 32, 0, stream>>>(counter);
  launched += times;
}

double now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return 1e9 * static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec);
}

double turn_ns() {
  volatile uint64_t x = 1;
  const double begin = now_ns();
  for (int i = 0; i < kTurns; ++i) x = x * 6364136223846793005ull + 1;
  return (now_ns() - begin) / kTurns;
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

// Where the host is, five thousand times a second of its time.
std::array<void*, 1 << 14> places;
volatile size_t samples = 0;

void on_sample(int, siginfo_t*, void* context) {
  const auto* now = static_cast<ucontext_t*>(context);
  if (samples < places.size()) {
    places[samples] = reinterpret_cast<void*>(now->uc_mcontext.gregs[REG_RIP]);
    samples = samples + 1;
  }
}

std::map<std::string, double> shares_by_library() {
  struct sigaction action {};
  action.sa_sigaction = on_sample;
  action.sa_flags = SA_SIGINFO | SA_RESTART;
  sigaction(SIGPROF, &action, nullptr);
  samples = 0;
  sigevent event{};
  event.sigev_notify = SIGEV_SIGNAL;
  event.sigev_signo = SIGPROF;
  timer_t timer;
  timer_create(CLOCK_THREAD_CPUTIME_ID, &event, &timer);
  const itimerspec each{{0, 200'000}, {0, 200'000}};
  timer_settime(timer, 0, &each, nullptr);
  for (const double end = now_ns() + 1e9 * kSeconds; now_ns() < end;) launch(kLaunches);
  timer_delete(timer);
  cudaStreamSynchronize(stream);
  std::map<std::string, double> shares;
  for (size_t i = 0; i < samples; ++i) {
    Dl_info info{};
    const bool known = dladdr(places[i], &info) != 0 && info.dli_fname != nullptr;
    const std::string path = known ? info.dli_fname : "unknown";
    shares[path.substr(path.rfind('/') + 1)] += 1.0 / static_cast<double>(samples);
  }
  return shares;
}

void report(const std::string& step, int result) {
  std::vector<double> ns, turns;
  for (const double end = now_ns() + 1e9 * kSeconds; now_ns() < end;) {
    const double before = turn_ns(), begin = now_ns();
    launch(kLaunches);
    const double each = (now_ns() - begin) / kLaunches, after = turn_ns();
    cudaStreamSynchronize(stream);
    if (std::max(before, after) > kRestless * std::min(before, after)) continue;
    ns.push_back(each);
    turns.push_back(2 * each / (before + after));
  }
  std::printf("{\"step\": \"%s\", \"result\": %d", step.c_str(), result);
  if (!ns.empty()) std::printf(", \"launch_ns\": %.0f, \"turns\": %.0f", median(ns), median(turns));
  std::printf(", \"stretches\": %zu", ns.size());
  for (const auto& [library, share] : shares_by_library())
    if (share >= 0.02) std::printf(", \"in %s\": %.2f", library.c_str(), share);
  std::printf("}\n");
  std::fflush(stdout);
}

void* current_context() {
  void* driver = dlopen("libcuda.so.1", RTLD_NOW);
  void* context = nullptr;
  reinterpret_cast<int (*)(void**)>(dlsym(driver, "cuCtxGetCurrent"))(&context);
  return context;
}

cudaGraphExec_t make_graph() {
  cudaGraph_t graph;
  cudaGraphExec_t made;
  cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed);
  for (int i = 0; i < 10; ++i) count<<<1, 32, 0, stream>>>(counter);
  cudaStreamEndCapture(stream, &graph);
  cudaGraphInstantiate(&made, graph, 0);
  return made;
}

int take(const std::string& step, std::vector<cudaGraphExec_t>& graphs) {
  if (step == "register")
    return entry<Register>("cuptiActivityRegisterCallbacks")(
        [](uint8_t** buffer, size_t* size, size_t* most) {
          *size = 1 << 20, *most = 0;
          *buffer = static_cast<uint8_t*>(std::aligned_alloc(8, *size));
        },
        [](void*, uint32_t, uint8_t* buffer, size_t, size_t) { std::free(buffer); });
  static void* subscriber = nullptr;
  if (step == "subscribe")
    return entry<Subscribe>("cuptiSubscribe")(
        &subscriber, [](void*, int, uint32_t, const void*) {}, nullptr);
  if (step == "+callbacks" || step == "-callbacks")
    return entry<WithSubscriber>("cuptiEnableAllDomains")(step[0] == '+', subscriber);
  if (step == "unsubscribe") return entry<int (*)(void*)>("cuptiUnsubscribe")(subscriber);
  if (step == "flush") return entry<WithKind>("cuptiActivityFlushAll")(1);
  if (step == "finalize") return entry<Nullary>("cuptiFinalize")();
  if (step == "+launches" || step == "-launches")
    return entry<WithCall>("cuptiActivityEnableRuntimeApi")(kCudaLaunchKernel, step[0] == '+');
  if (step == "graph") {
    graphs.push_back(make_graph());
    return cudaGetLastError();
  }
  if (step == "play") {
    for (cudaGraphExec_t g : graphs) cudaGraphLaunch(g, stream), launched += 10;
    return cudaStreamSynchronize(stream);
  }
  if (step.starts_with("context+") || step.starts_with("context-"))
    return entry<WithContext>(step[7] == '+' ? "cuptiActivityEnableContext"
                                             : "cuptiActivityDisableContext")(
        current_context(), std::atoi(step.c_str() + 8));
  const int kind = step[0] == '+' || step[0] == '-' ? std::atoi(step.c_str() + 1) : 0;
  if (kind == 0) std::exit((std::fprintf(stderr, "no step %s\n", step.c_str()), 2));
  return entry<WithKind>(step[0] == '+' ? "cuptiActivityEnable"
                                        : "cuptiActivityDisable")(static_cast<uint32_t>(kind));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) std::exit((std::fprintf(stderr, "usage: launch_pace LIBCUPTI STEP...\n"), 2));
  cudaMalloc(&counter, sizeof(int));
  cudaMemset(counter, 0, sizeof(int));
  cudaStreamCreate(&stream);
  report("no CUPTI", 0);
  cupti = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (cupti == nullptr) std::exit((std::fprintf(stderr, "%s\n", dlerror()), 1));
  std::vector<cudaGraphExec_t> graphs;
  for (int i = 2; i < argc; ++i) {
    const int result = take(argv[i], graphs);
    report(argv[i], result);
  }
  int counted = 0;
  const cudaError_t error = cudaMemcpy(&counted, counter, sizeof counted, cudaMemcpyDeviceToHost);
  std::printf("{\"launched\": %ld, \"counted\": %d, \"error\": \"%s\"}\n", launched, counted,
              cudaGetErrorName(error));
  return error == cudaSuccess && counted == launched ? 0 : 1;
}
