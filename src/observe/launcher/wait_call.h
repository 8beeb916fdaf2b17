// SPDX-License-Identifier: Apache-2.0
// The system call that a thread waits in, from /proc/PID/task/TID/syscall, and what such a call waits
// for as far as its number says. Source: Linux Documentation/filesystems/proc.rst, syscalls(2).
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace saturate::observe {

enum class CallKind : uint8_t {
  fault,     // in no call: a page of a mapped file or of memory is fetched
  read_fd,   // of the descriptor in args[0]
  write_fd,  // to it; also waits until it is on the disk
  path,      // of the path in memory at `path_at`
  socket,    // of the descriptor in args[0]: receive, send, connect, accept
  sync,      // of all files
  async_io,  // for input and output that was queued before
  poll,      // args: array of pollfd, its length
  select,    // args: length, three sets of bits
  epoll,     // args: descriptor
  futex,     // args: address, operation, value
  sleep,
  child,  // for a child process
  other,
};

struct WaitCall {
  int64_t number = -1;
  std::array<uint64_t, 6> args{};
  CallKind kind = CallKind::other;
  uint64_t path_at = 0;
};
// Empty for a thread that runs, or a text of another form.
std::optional<WaitCall> parse_wait_call(std::string_view text);

// The same from the kernel function that the thread sleeps in (/proc/PID/task/TID/wchan), where the
// call is not to be had: no arguments, and `other` where the name says nothing.
CallKind call_kind_of_wchan(std::string_view function);

}  // namespace saturate::observe
