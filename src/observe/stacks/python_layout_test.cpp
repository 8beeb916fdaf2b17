// SPDX-License-Identifier: Apache-2.0
#include "observe/stacks/python_layout.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "observe/stacks/python_process.h"

namespace saturate::observe {
namespace {

using Table = std::array<uint64_t, kOffsetTableBytes / 8>;

// What the headers of CPython 3.14.10 and 3.15.2 make of their table, as built to run without the
// interpreter's lock.
Table table_of(int minor, uint64_t without_lock = 1) {
  Table t{};
  if (minor == 14) {
    t = {0,    51251952, 1,    365624, 784,  808, 249976, 7280, 7272, 7344,  7360, 7408,
         7712, 7696,     7704, 16,     7808, 0,   7832,   7824, 8024, 17300, 832,  0,
         8,    16,       72,   152,    160,  232, 32,     88,   8,    0,     56,   80,
         78,   64,       72,   240,    128,  136, 144,    152,  84,   68,    112,  120,
         232,  224,      32,   24,     432,  40,  104,    184,  56,   48,    32,   56,
         40,   32,       216,  40,     56,   48,  64,     48,   56,   40,    32,   48,
         32,   40,       56,   32,     48,   80,  48,     32,   56};
  } else {
    t = {0,    51315440, 1,    409296, 912,  936, 250328, 7272, 7264, 7336,  7352, 7400,
         7592, 7576,     7584, 16,     7736, 0,   7760,   7752, 7952, 17252, 888,  0,
         8,    16,       72,   80,     88,   96,  176,    184,  256,  32,    36,   40,
         136,  288,      0,    88,     8,    0,   56,     80,   78,   64,    72,   240,
         128,  136,      144,  152,    84,   68,  112,    120,  232,  224,   32,   24,
         440,  40,       104,  184,    48,   304, 968,    904,  56,   48,    32,   56,
         40,   32,       216,  40,     56,   48,  64,     48,   56,   40,    32,   48,
         32,   40,       56,   32,     48,   80,  48,     32,   56};
  }
  std::memcpy(t.data(), "xdebugpy", 8);
  t[2] = without_lock;
  return t;
}

// The structures of an interpreter, in this process's own memory.
struct Made {
  explicit Made(const PythonLayout& layout) : l(layout) {
    put(runtime, l.interpreters, address(interpreter));
    put(interpreter, l.threads, address(thread));
    put(interpreter, l.lock_pointer, address(lock));
    put(thread, l.thread_frame, address(frame));
    put(thread, l.native_id, static_cast<uint64_t>(getpid()));
    put(frame, l.frame_code, address(code) | 1);  // a marked reference
    put(code, l.code_type, address(type));
    put(code, l.file, address(file));
    put(code, l.function, address(function));
    put(code, l.table, address(lines));
    text(file, "made.py");
    text(function, "f");
    // A line for each two bytes of instructions: 11, 12, 13, 14.
    const std::string rows("\xE8\x02\xE8\x02\xE8\x02\xE8\x02", 8);
    put(lines, l.bytes_size, rows.size());
    std::memcpy(lines.data() + l.bytes_data, rows.data(), rows.size());
    const int32_t first = 10;
    std::memcpy(code.data() + l.first_line, &first, sizeof first);
    put(code, l.copies, address(array));
    put(array, 0, 3);
    put(array, 8, address(code) + l.bytecode);
    put(array, 16, address(copies));
    put(array, 24, address(copies) + 64);
  }
  using Block = std::array<char, 32768>;
  static uint64_t address(const Block& b) { return reinterpret_cast<uint64_t>(b.data()); }
  static void put(Block& b, uint32_t at, uint64_t value) {
    std::memcpy(b.data() + at, &value, sizeof value);
  }
  void text(Block& b, const std::string& characters) {
    put(b, l.text_length, characters.size());
    const uint32_t one_byte = 1, kind = one_byte | 1 << 3 | 1 << 4;  // compact, ASCII
    const uint32_t state = kind << (l.without_lock ? 8 : 2) | 1;     // interned
    std::memcpy(b.data() + l.text_state, &state, sizeof state);
    std::memcpy(b.data() + l.text_ascii, characters.data(), characters.size());
  }
  // At the instruction that `at` points to, of the copy with that number.
  void run(int32_t copy, uint64_t at) {
    put(frame, l.frame_at, at);
    std::memcpy(frame.data() + l.frame_copy, &copy, sizeof copy);
  }
  std::string top() {
    PythonProcess process(getpid(), l, address(runtime), address(type));
    std::vector<PythonThread> threads;
    if (!process.read_threads(threads) || threads.size() != 1) return "no thread";
    std::vector<PythonPlace*> stack;
    process.read_stack(threads[0], stack);
    if (stack.size() != 1) return "no frame";
    return stack[0]->function + " in " + stack[0]->file + ":" + std::to_string(stack[0]->at.line) +
           (threads[0].has_lock ? " with the lock" : "");
  }
  PythonLayout l;
  Block runtime{}, interpreter{}, lock{}, thread{}, frame{}, code{}, type{}, file{}, function{},
      lines{}, array{}, copies{};
};

TEST(PythonLayout, ThreadsRunCopiesOfTheirInstructions) {
  for (const int minor : {14, 15}) {
    const auto layout = python_layout(table_of(minor));
    ASSERT_TRUE(layout.has_value()) << minor;
    const auto made = std::make_unique<Made>(*layout);
    made->run(0, Made::address(made->code) + layout->bytecode + 2);
    EXPECT_EQ(made->top(), "f in made.py:12") << minor;
    made->run(1, Made::address(made->copies) + 4);
    EXPECT_EQ(made->top(), "f in made.py:13") << minor;
    made->run(2, Made::address(made->copies) + 64 + 6);
    EXPECT_EQ(made->top(), "f in made.py:14") << minor;
    // An array that was freed, and one that is torn: the function stays, its line is not known.
    Made::put(made->code, layout->copies, 4096);
    EXPECT_EQ(made->top(), "f in made.py:0") << minor;
    Made::put(made->code, layout->copies, UINT64_MAX - 8);
    EXPECT_EQ(made->top(), "f in made.py:0") << minor;
  }
}

// A build that can run without the lock has one for modules that cannot.
TEST(PythonLayout, ALockThatIsOffHasNoHolder) {
  for (const int minor : {14, 15}) {
    const auto layout = python_layout(table_of(minor));
    ASSERT_TRUE(layout.has_value()) << minor;
    const auto made = std::make_unique<Made>(*layout);
    made->run(0, Made::address(made->code) + layout->bytecode);
    Made::put(made->lock, layout->lock_taken, 1);
    Made::put(made->lock, layout->lock_holder, Made::address(made->thread));
    EXPECT_EQ(made->top(), "f in made.py:11") << minor;
    const int32_t on = 1;
    std::memcpy(made->lock.data() + layout->lock_enabled, &on, sizeof on);
    EXPECT_EQ(made->top(), "f in made.py:11 with the lock") << minor;
  }
}

TEST(PythonLayout, OfTablesThatAreNoneOrOfLaterVersions) {
  Table t = table_of(14);
  ASSERT_TRUE(python_layout(t).has_value());
  t[1] = uint64_t{3} << 24 | 16 << 16;
  EXPECT_FALSE(python_layout(t).has_value());
  t = table_of(15);
  t[39 + 3] = 1 << 20;  // a frame of a megabyte
  EXPECT_FALSE(python_layout(t).has_value());
  t = table_of(15);
  t[0] = 0;
  EXPECT_FALSE(python_layout(t).has_value());
  // Builds with the lock have one copy of instructions, whatever stands there.
  EXPECT_EQ(python_layout(table_of(14, 0))->frame_copy, 0u);
}

}  // namespace
}  // namespace saturate::observe
