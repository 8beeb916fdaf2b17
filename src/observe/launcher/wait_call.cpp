// SPDX-License-Identifier: Apache-2.0
#include "observe/launcher/wait_call.h"

#include <sys/syscall.h>

#include <algorithm>
#include <charconv>
#include <utility>

namespace saturate::observe {
namespace {

using Row = std::pair<int64_t, CallKind>;

// Calls that arm64 lacks are in braces of their own.
constexpr Row kCalls[] = {
    {SYS_read, CallKind::read_fd},
    {SYS_pread64, CallKind::read_fd},
    {SYS_readv, CallKind::read_fd},
    {SYS_preadv, CallKind::read_fd},
    {SYS_preadv2, CallKind::read_fd},
    {SYS_getdents64, CallKind::read_fd},
    {SYS_readahead, CallKind::read_fd},
    {SYS_fadvise64, CallKind::read_fd},
    {SYS_write, CallKind::write_fd},
    {SYS_pwrite64, CallKind::write_fd},
    {SYS_writev, CallKind::write_fd},
    {SYS_pwritev, CallKind::write_fd},
    {SYS_pwritev2, CallKind::write_fd},
    {SYS_fsync, CallKind::write_fd},
    {SYS_fdatasync, CallKind::write_fd},
    {SYS_sync_file_range, CallKind::write_fd},
    {SYS_syncfs, CallKind::write_fd},
    {SYS_ftruncate, CallKind::write_fd},
    {SYS_fallocate, CallKind::write_fd},
    {SYS_close, CallKind::write_fd},  // a share of the network writes what is left
    {SYS_sendfile, CallKind::write_fd},
    {SYS_sync, CallKind::sync},
    {SYS_msync, CallKind::sync},
    {SYS_openat, CallKind::path},
    {SYS_newfstatat, CallKind::path},
    {SYS_statx, CallKind::path},
    {SYS_recvfrom, CallKind::socket},
    {SYS_recvmsg, CallKind::socket},
    {SYS_recvmmsg, CallKind::socket},
    {SYS_sendto, CallKind::socket},
    {SYS_sendmsg, CallKind::socket},
    {SYS_sendmmsg, CallKind::socket},
    {SYS_connect, CallKind::socket},
    {SYS_accept, CallKind::socket},
    {SYS_accept4, CallKind::socket},
    {SYS_io_getevents, CallKind::async_io},
    {SYS_io_uring_enter, CallKind::async_io},
    {SYS_ppoll, CallKind::poll},
    {SYS_pselect6, CallKind::select},
    {SYS_epoll_pwait, CallKind::epoll},
    {SYS_epoll_pwait2, CallKind::epoll},
    {SYS_futex, CallKind::futex},
    {SYS_nanosleep, CallKind::sleep},
    {SYS_clock_nanosleep, CallKind::sleep},
    {SYS_wait4, CallKind::child},
    {SYS_waitid, CallKind::child},
#ifdef SYS_open
    {SYS_open, CallKind::path},
    {SYS_stat, CallKind::path},
    {SYS_lstat, CallKind::path},
    {SYS_poll, CallKind::poll},
    {SYS_select, CallKind::select},
    {SYS_epoll_wait, CallKind::epoll},
#endif
};

bool path_is_first(int64_t number) {
#ifdef SYS_open
  return number == SYS_open || number == SYS_stat || number == SYS_lstat;
#else
  return number < 0;
#endif
}

}  // namespace

std::optional<WaitCall> parse_wait_call(std::string_view text) {
  WaitCall call;
  const char *at = text.data(), *end = at + text.size();
  const auto number = std::from_chars(at, end, call.number);
  if (number.ec != std::errc{}) return {};
  if (call.number < 0) {
    call.kind = CallKind::fault;
    return call;
  }
  at = number.ptr;
  for (uint64_t& arg : call.args) {
    if (end - at < 4 || at[0] != ' ' || at[1] != '0' || at[2] != 'x') return {};
    const auto read = std::from_chars(at + 3, end, arg, 16);
    if (read.ec != std::errc{}) return {};
    at = read.ptr;
  }
  const auto row = std::find_if(std::begin(kCalls), std::end(kCalls),
                                [&](const Row& r) { return r.first == call.number; });
  if (row != std::end(kCalls)) call.kind = row->second;
  if (call.kind == CallKind::path) call.path_at = call.args[path_is_first(call.number) ? 0 : 1];
  // Waits for nothing but the time.
  if ((call.kind == CallKind::poll && call.args[1] == 0) ||
      (call.kind == CallKind::select && call.args[0] == 0))
    call.kind = CallKind::sleep;
  return call;
}

CallKind call_kind_of_wchan(std::string_view f) {
  const auto has = [&](std::string_view part) { return f.find(part) != std::string_view::npos; };
  if (has("futex")) return CallKind::futex;
  if (has("nanosleep")) return CallKind::sleep;
  if (has("poll") || has("select")) return CallKind::poll;
  if (has("sk_wait") || has("tcp") || has("inet") || has("skb_wait")) return CallKind::socket;
  if (has("do_wait")) return CallKind::child;
  if (has("balance_dirty") || has("jbd2") || has("fsync") || has("writeback") || has("log_wait") ||
      has("xlog"))
    return CallKind::write_fd;
  if (has("folio") || has("page") || has("io_schedule") || has("nfs") || has("fuse") ||
      has("filemap"))
    return CallKind::read_fd;
  return CallKind::other;
}

}  // namespace saturate::observe
