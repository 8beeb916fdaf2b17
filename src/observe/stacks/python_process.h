// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "observe/stacks/line_table.h"
#include "observe/stacks/python_layout.h"
#include "observe/stacks/remote_memory.h"

namespace saturate::observe {

// Where a frame of Python is.
struct PythonPlace {
  std::string function, file;  // the function with its class from 3.11 on
  SourcePlace at;
  std::optional<std::string> source;  // what stands there, once it was read
};

// A thread that the interpreter knows.
struct PythonThread {
  pid_t thread = 0;    // the kernel's number
  uint64_t frame = 0;  // address of the innermost frame; 0: it runs no Python
  uint64_t state = 0;  // address of what the interpreter knows of it; 0: the frame is all there is
  bool has_lock = false;  // the interpreter's
};

// Reads the stacks of a process that runs CPython 3.9 to 3.15, from outside and while it runs: no
// stop, no signal, no code of ours in it. A frame that is torn by a change ends the stack there; a stack
// that does not end where the thread's last one did is read again.
// The same user may do that for its own child processes; see RemoteMemory.
class PythonProcess {
 public:
  // Null where the process has no Python, or none that is set up by now; with the reason in
  // `problem` where it has one that cannot be read.
  static std::unique_ptr<PythonProcess> attach(pid_t pid, std::string& problem);

  // Of a process whose structures are known; attach() finds them.
  PythonProcess(pid_t pid, PythonLayout layout, uint64_t runtime, uint64_t code_type)
      : memory_(pid), pid_(pid), layout_(layout), runtime_(runtime), code_type_(code_type) {}

  // Those there are now; false when the interpreter cannot be read any more: the process has ended,
  // or runs another program. Cost: two system calls and one a thread, 1 us each.
  bool read_threads(std::vector<PythonThread>& threads);
  // The innermost frame first, at most kMostFrames. Cost: four system calls, before 3.11 one more for each frame that was not in
  // the thread's last stack; up to kMostReads times as many for a stack that is torn. The places stay valid until the next call.
  void read_stack(const PythonThread& thread, std::vector<PythonPlace*>& stack);
  // Whether `address` lies in the lock's own memory: who sleeps on it waits for the interpreter.
  bool is_of_lock(uint64_t address) const;

  static constexpr size_t kMostFrames = RemoteMemory::kMostParts, kMostThreads = 1024;
  int minor() const { return layout_.minor; }
  // Of the last read that failed.
  int error() const { return memory_.error(); }

 private:
  struct Code {
    uint64_t keys[4] =
        {};  // pointers to its texts and table, and its first line: a code object may
             // be freed and another lie there
    std::string function, file, table;
    int first_line = 0;
    std::unordered_map<int, std::unique_ptr<PythonPlace>> places;  // by instruction
  };
  pid_t native_thread(const std::vector<char>& bytes) const;
  uint64_t current_frame(const PythonThread& thread) const;
  void read_frames(uint64_t frame, const std::vector<uint64_t>& before);
  void read_copies();
  PythonPlace* place(uint64_t code, const char* head, uint64_t at, uint64_t bytecode);
  bool read_text(uint64_t object, std::string& text) const;
  bool read_bytes(uint64_t object, std::string& bytes) const;

  RemoteMemory memory_;
  pid_t pid_;
  PythonLayout layout_;
  uint64_t runtime_, code_type_;
  std::vector<uint64_t> locks_;
  std::unordered_map<uint64_t, std::unique_ptr<Code>> codes_;  // by address
  size_t places_ = 0;
  // Of the stack that is read, by frame: its address, that of its code and where it is in that, and which copy of the
  // instructions it runs.
  struct Frame {
    uint64_t address, code, at;
    int32_t copy;
  };
  std::vector<Frame> frames_, longest_;
  // Of stacks read before: the addresses of one that was whole, and how often which was the outermost, of late more than long
  // ago. A torn one ends anywhere, so that the most frequent is where the thread's stacks begin.
  struct Last {
    std::vector<uint64_t> frames;
    std::map<uint64_t, int> outermost;
    uint64_t likely_outermost() const;  // 0: not known
    void count(uint64_t address);
  };
  std::unordered_map<uint64_t, Last> last_;  // by thread's state
  std::vector<uint64_t> codes_at_, bytecode_;
  std::vector<char> heads_;
};

}  // namespace saturate::observe
