// SPDX-License-Identifier: Apache-2.0
// Writes small /proc and cgroup trees to a temporary folder, as recorded from Linux 6.x.
#pragma once
#include <fmt/format.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

namespace saturate::observe::testing {

class ProcTree {
 public:
  ProcTree() {
    static int count = 0;
    root = std::filesystem::temp_directory_path() /
           fmt::format("saturate-proc-{}-{}", getpid(), count++);
    write("proc/stat",
          "cpu  100 0 100 700 100 0 0 0 0 0\ncpu0 50 0 50 350 50 0 0 0 0 0\n"
          "cpu1 50 0 50 350 50 0 0 0 0 0\nintr 0\n");
    write("proc/meminfo", "MemTotal:       1000 kB\nMemFree: 1 kB\nMemAvailable:    400 kB\n");
  }
  ~ProcTree() { std::filesystem::remove_all(root); }
  ProcTree(const ProcTree&) = delete;
  ProcTree& operator=(const ProcTree&) = delete;

  std::string proc() const { return root / "proc"; }
  std::string cgroups() const { return root / "cgroup"; }

  void write(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories((root / path).parent_path());
    std::ofstream(root / path, std::ios::binary) << text;
  }
  // proc(5) stat: `ticks` of user time; started at `start`.
  static std::string stat(int64_t pid, const std::string& name, char state, int64_t parent,
                          int64_t ticks, int64_t start) {
    return fmt::format(
        "{} ({}) {} {} 1 1 0 -1 4194304 1 0 0 0 {} 0 0 0 20 0 2 0 {} 1000 100 18446744073709551615 "
        "1 1 0 0 0 0 0 0 0 0 0 0 17 0 0 0 12 0 0 0 0 0 0 0 0 0 0\n",
        pid, name, state, parent, ticks, start);
  }
  struct Given {
    std::string name = "python";
    char state = 'S';
    int64_t parent = 1, ticks = 0, start = 5, run_ns = 0, wait_ns = 0, voluntary = 0;
    std::string command = std::string("python\0train.py\0", 16), waits_in = "futex_wait_queue";
  };
  void process(int64_t pid, const Given& g) const {
    const std::string folder = fmt::format("proc/{}/", pid), task = fmt::format("task/{}/", pid);
    const std::string status = fmt::format(
        "Name:\t{}\nUid:\t0\t0\t0\t0\nVmRSS:\t    2048 kB\nNSpid:\t{}\t7\n"
        "voluntary_ctxt_switches:\t{}\nnonvoluntary_ctxt_switches:\t3\n",
        g.name, pid, g.voluntary);
    for (const std::string& place : {folder, folder + task}) {
      write(place + "stat", stat(pid, g.name, g.state, g.parent, g.ticks, g.start));
      write(place + "status", status);
      write(place + "schedstat", fmt::format("{} {} 10\n", g.run_ns, g.wait_ns));
      write(place + "wchan", g.waits_in);
    }
    write(folder + "cmdline", g.command);
    write(folder + "cgroup", "0::/job\n");
    write(folder + "io", "rchar: 1\nread_bytes: 4096\nwrite_bytes: 0\n");
    write(folder + "environ", std::string("A=1\0CUDA_INJECTION64_PATH=/x.so\0", 32));
    write(folder + "maps", "7f00-7f01 r-xp 0 00:00 1 /usr/lib/libcuda.so.1\n");
  }
  std::filesystem::path root;
};

}  // namespace saturate::observe::testing
