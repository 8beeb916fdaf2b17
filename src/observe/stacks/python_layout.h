// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <optional>
#include <span>

namespace saturate::observe {

// Where CPython keeps what a stack is read from: offsets in bytes into its structures. From 3.13 on
// the interpreter carries a table of them (_Py_DebugOffsets, at the start of _PyRuntime); those of
// older versions were printed with offsetof from their own headers, for 64-bit machines, where they
// are the same on all and in all patch releases.
struct PythonLayout {
  int minor = 0;                  // of 3.x
  bool without_lock = false;      // a free-threaded build
  uint32_t interpreters = 0;      // _PyRuntime: pointer to the first interpreter
  uint32_t runtime_lock = 0;      // _PyRuntime: the interpreter lock itself; 0: see next
  uint32_t lock_pointer = 0;      // interpreter: pointer to its lock
  uint32_t lock_holder = 0;       // lock: pointer to the thread that took it last
  uint32_t lock_taken = 0;        // lock: int
  uint32_t lock_enabled = 0;      // lock: int, whether it is used; of a free-threaded build
  uint32_t next_interpreter = 0;  // interpreter
  uint32_t threads = 0;           // interpreter: pointer to the youngest thread
  uint32_t next_thread = 0;       // thread state
  uint32_t thread_frame = 0;      // thread state: pointer to the frame, or to what has that
  uint32_t frame_in_c_frame = 0;  // there; meant only where `c_frames`
  bool c_frames = false;          // 3.11, 3.12
  uint32_t native_id = 0;         // thread state: the kernel's number; 0: not kept
  uint32_t pthread = 0;           // thread state: pthread_t
  uint32_t thread_size = 0;       // of a thread state, up to the last of these
  uint32_t frame_code = 0, frame_caller = 0, frame_at = 0, frame_owner = 0, frame_size = 0;
  uint32_t code_type = 0;                                      // objects: pointer to their type
  uint32_t file = 0, function = 0, first_line = 0, table = 0;  // code object
  uint32_t bytecode = 0;  // code object; 0: frames count instructions themselves
  // Free-threaded builds from 3.14 on give each thread a copy of the instructions: in the frame which
  // of them it runs (0: those of the code object), in the code object where they are. 0: none.
  uint32_t frame_copy = 0, copies = 0;
  uint32_t code_size = 0;                       // of a code object, up to the last of these
  uint32_t bytes_size = 16, bytes_data = 32;    // bytes objects
  uint32_t text_length = 16, text_state = 32;   // str objects
  uint32_t text_ascii = 48, text_compact = 72;  // and where their characters begin
};

// Of 3.9 to 3.12; empty for others.
std::optional<PythonLayout> python_layout(int minor);

// Bytes of _PyRuntime that hold the table, as far as it is read.
constexpr size_t kOffsetTableBytes = 93 * 8;
// Of 3.13 to 3.15 by their table; empty when it is none or of a later version.
std::optional<PythonLayout> python_layout(std::span<const uint64_t> table);

}  // namespace saturate::observe
