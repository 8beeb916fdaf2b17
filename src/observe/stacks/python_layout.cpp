// SPDX-License-Identifier: Apache-2.0
#include "observe/stacks/python_layout.h"

#include <algorithm>
#include <cstring>
#include <iterator>

namespace saturate::observe {
namespace {

constexpr uint32_t kPointer = 8;

void finish(PythonLayout& l) {
  l.thread_size = std::max({l.next_thread, l.thread_frame, l.native_id, l.pthread}) + kPointer;
  l.frame_size =
      std::max({l.frame_code, l.frame_caller, l.frame_at, l.frame_owner, l.frame_copy}) + kPointer;
  l.code_size =
      std::max({l.code_type, l.file, l.function, l.first_line, l.table, l.copies}) + kPointer;
}

// Where the parts of the table begin, in words: each version has new entries in the middle.
struct Parts {
  int minor;
  size_t lock, thread, thread_ids, frame, code, object, bytes;
};
constexpr Parts kParts[] = {
    {13, 14, 19, 24, 28, 34, 44, 64},
    {14, 15, 22, 27, 31, 39, 50, 74},
    {15, 15, 22, 30, 39, 47, 58, 86},
};

}  // namespace

std::optional<PythonLayout> python_layout(int minor) {
  PythonLayout l;
  l.minor = minor;
  l.code_type = 8;
  l.lock_holder = 8;
  l.lock_taken = 16;
  l.next_thread = 8;
  if (minor == 9 || minor == 10) {
    l.interpreters = 32;
    l.runtime_lock = 352;
    l.threads = 8;
    l.thread_frame = 24;
    l.pthread = 176;
    l.frame_caller = 24;
    l.frame_code = 32;
    l.frame_at = minor == 9 ? 104 : 96;
    l.file = 104;
    l.function = 112;
    l.first_line = 40;
    l.table = 120;
  } else if (minor == 11 || minor == 12) {
    const bool old = minor == 11;
    l.interpreters = 40;
    l.runtime_lock = old ? 360 : 0;
    l.lock_pointer = old ? 0 : 384;
    l.threads = old ? 16 : 72;
    l.c_frames = true;
    l.thread_frame = 56;
    l.frame_in_c_frame = old ? 8 : 0;
    l.native_id = old ? 160 : 144;
    l.pthread = old ? 152 : 136;
    l.frame_code = old ? 32 : 0;
    l.frame_caller = old ? 48 : 8;
    l.frame_at = 56;
    l.frame_owner = old ? 69 : 70;
    l.file = 112;
    l.function = 128;  // the qualified name
    l.first_line = old ? 72 : 68;
    l.table = 136;
    l.bytecode = old ? 184 : 192;
    if (!old) l.text_ascii = 40, l.text_compact = 56;
  } else {
    return std::nullopt;
  }
  finish(l);
  return l;
}

std::optional<PythonLayout> python_layout(std::span<const uint64_t> table) {
  if (table.size_bytes() < kOffsetTableBytes || std::memcmp(table.data(), "xdebugpy", 8) != 0)
    return std::nullopt;
  PythonLayout l;
  l.minor = static_cast<int>(table[1] >> 16 & 255);
  const auto* parts = std::find_if(std::begin(kParts), std::end(kParts),
                                   [&](const Parts& p) { return p.minor == l.minor; });
  if (table[1] >> 24 != 3 || parts == std::end(kParts)) return std::nullopt;
  l.without_lock = table[2] != 0;
  const auto at = [&](size_t i) { return static_cast<uint32_t>(table[i]); };
  const auto [minor, lock, thread, thread_ids, frame, code, object, bytes] = *parts;
  l.interpreters = at(5);
  l.next_interpreter = at(8);
  l.threads = at(9);
  l.lock_pointer = at(lock);
  l.lock_enabled = at(lock + 2);  // the only one that counts from the lock
  l.lock_taken = at(lock + 3) - at(lock + 1);
  l.lock_holder = at(lock + 4) - at(lock + 1);
  l.next_thread = at(thread + 2);
  l.thread_frame = at(thread + 4);
  l.pthread = at(thread_ids);
  l.native_id = at(thread_ids + 1);
  l.frame_caller = at(frame + 1);
  l.frame_code = at(frame + 2);
  l.frame_at = at(frame + 3);
  l.frame_owner = at(frame + 5);
  l.file = at(code + 1);
  l.function = at(code + 3);
  l.table = at(code + 4);
  l.first_line = at(code + 5);
  l.bytecode = at(code + 9);
  if (l.without_lock && minor >= 14) {
    l.frame_copy = at(frame + 7);
    l.copies = at(code + 10);
  }
  l.code_type = at(object + 1);
  l.bytes_size = at(bytes + 1);
  l.bytes_data = at(bytes + 2);
  l.text_state = at(bytes + 4);
  l.text_length = at(bytes + 5);
  l.text_ascii = at(bytes + 6);
  l.text_compact = l.text_ascii + 16;  // the length and the place of its UTF-8
  finish(l);
  constexpr uint32_t kMostBytes = 4096;  // a table with more is none
  if (std::max({l.thread_size, l.frame_size, l.code_size, l.text_ascii}) > kMostBytes ||
      std::max({l.lock_taken, l.lock_holder, l.lock_enabled}) > 200)
    return std::nullopt;
  return l;
}

}  // namespace saturate::observe
