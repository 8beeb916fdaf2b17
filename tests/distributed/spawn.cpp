// SPDX-License-Identifier: Apache-2.0
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "distributed/checks.h"
#include "runtime/device.h"

namespace saturate::distributed {
namespace {

struct Child {
  pid_t pid = 0;
  std::filesystem::path errors;
};

void become_rank(int rank, int size, int port) {
  const auto set = [](const char* name, const std::string& value) {
    setenv(name, value.c_str(), 1);
  };
  for (const char* launcher : {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"}) unsetenv(launcher);
  for (const char* name : {"RANK", "LOCAL_RANK"}) set(name, std::to_string(rank));
  for (const char* name : {"WORLD_SIZE", "LOCAL_WORLD_SIZE"}) set(name, std::to_string(size));
  set("MASTER_ADDR", "127.0.0.1");
  set("MASTER_PORT", std::to_string(port));
}

std::string text_of(const std::filesystem::path& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::vector<Rank> spawn_ranks(int size, double limit_s, const std::function<int()>& body) {
  using Clock = std::chrono::steady_clock;
  static int calls = 0;
  const int port = 20000 + (getpid() * 16 + ++calls) % 20000;
  std::fflush(nullptr);
  std::vector<Child> children(static_cast<size_t>(size));
  const auto start = Clock::now();
  for (int rank = 0; rank < size; ++rank) {
    Child& child = children[static_cast<size_t>(rank)];
    child.errors = std::filesystem::temp_directory_path() /
                   ("saturate_ranks_" + std::to_string(getpid()) + "_" + std::to_string(rank));
    child.pid = fork();
    if (child.pid != 0) continue;
    if (!std::freopen(child.errors.c_str(), "w", stderr)) _exit(3);
    become_rank(rank, size, port);
    const int code = body();
    std::fflush(nullptr);
    _exit(code);
  }
  std::vector<Rank> ranks(children.size());
  size_t running = children.size();
  while (running > 0) {
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    for (size_t r = 0; r < children.size(); ++r) {
      if (children[r].pid == 0) continue;
      if (seconds > limit_s) kill(children[r].pid, SIGKILL);
      int status = 0;
      if (waitpid(children[r].pid, &status, WNOHANG) == 0) continue;
      children[r].pid = 0;
      --running;
      ranks[r] = {WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status), seconds, now_s(),
                  text_of(children[r].errors)};
      std::filesystem::remove(children[r].errors);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return ranks;
}

int count_gpus() {
  const pid_t pid = fork();
  if (pid == 0) _exit(cuda_device_count());
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 0;
}

}  // namespace saturate::distributed
