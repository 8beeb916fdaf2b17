// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "observe/stacks/instruction_sampler.h"
#include "observe/stacks/native_code.h"
#include "observe/stacks/python_process.h"
#include "observe/stacks/source_lines.h"
#include "observe/system/processes.h"
#include "observe/trace/trace.h"

namespace saturate::observe {

// Which line of Python each thread of a process tree is in, what it waits for there, and who holds
// the interpreter's lock while it waits for that: read from outside (PythonProcess), so a program
// that hangs or dies loses nothing. Needs no privilege over one's own child processes.
//
// Where the kernel allows it (InstructionSampler), the function of native code that a thread runs is
// the innermost frame, with a library or program as its file and no line; the interpreter's own
// functions are left out. Threads of processes without Python have that one frame alone, or, while
// they are in the kernel, the system call's name in "[kernel]". Not for several threads.
class StackSampler {
 public:
  // `clock`: the time on the capture's clock.
  StackSampler(pid_t root, std::function<int64_t()> clock);
  ~StackSampler();

  // One sample of every thread that runs Python, and of the first threads of other processes.
  void sample();

  // What was sampled since the last call, added to `trace`.
  void take(Trace& trace);

  // For the reader of the report: which processes could not be read, and why.
  std::vector<std::string> notes() const;

 private:
  struct Thread {
    int file = -1;          // its `syscall` in /proc, open; -1: cannot be opened
    uint64_t frame = 0;     // at the last sample, with what it waited in: while both stay the
    std::string wait_line;  // stack does
    int64_t seen = -1;      // the number of the last sample
    HostSample run;         // samples so far that are all alike; count 0: none
    std::unique_ptr<InstructionSampler> instructions;  // null: not allowed, or enough have one
  };
  struct Process {
    std::unique_ptr<PythonProcess> python;
    std::string program, problem, folder;
    int tries = 0;
    int64_t next_try = 0;  // sample number
    std::map<pid_t, Thread> threads;
    std::unique_ptr<NativeCode> code;
    bool native = false;  // without Python
    std::vector<pid_t> native_threads;
  };
  void look_around();
  void try_attach(pid_t pid, Process& process);
  void sample_process(pid_t pid, Process& process);
  void sample_native(pid_t pid, Process& process);
  HostSample look(pid_t pid, Process& process, const PythonThread& found, Thread& thread);
  void open_files(pid_t pid, const Process& process, pid_t id, Thread& thread);
  const NativeCode::Place* native_place(pid_t pid, Process& process, Thread& thread);
  uint32_t node_of(Process& process, const std::vector<PythonPlace*>& stack);
  uint32_t node_of(const NativeCode::Place& place, uint32_t caller);
  void add(Thread& thread, const HostSample& sample);
  void end_run(Thread& thread);
  void forget(Thread& thread);
  void forget_before(Process& process, int64_t number);

  pid_t root_;
  std::function<int64_t()> clock_;
  ProcessReader reader_;
  SourceLines sources_;
  std::map<pid_t, Process> processes_;
  std::set<std::string> problems_;
  Trace pending_;
  std::vector<PythonThread> found_;
  std::vector<PythonPlace*> stack_;
  int64_t samples_ = 0;
  bool read_any_ = false;
  size_t with_instructions_ = 0;  // threads
  int refused_ = 0;               // errno of the call that was not allowed
};

}  // namespace saturate::observe
