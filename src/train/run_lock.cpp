// SPDX-License-Identifier: Apache-2.0
#include "train/run_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/durable_file.h"
#include "base/error.h"

namespace saturate::train {

RunLock::RunLock(const std::string& run_folder) {
  const auto fail = [&run_folder](int error_number) {
    throw Error(Errc::io, "run",
                fmt::format("{}: {}; choose a folder that you can write to", run_folder,
                            std::strerror(error_number)));
  };
  std::error_code failed;
  std::filesystem::create_directories(run_folder, failed);
  if (failed) fail(failed.value());
  path_ = (std::filesystem::path(run_folder) / "run.lock").string();
  fd_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd_ < 0) fail(errno);
  if (::flock(fd_, LOCK_EX | LOCK_NB) != 0) {
    const int error_number = errno;
    std::array<char, 200> holder{};
    const ssize_t n = ::pread(fd_, holder.data(), holder.size() - 1, 0);
    ::close(std::exchange(fd_, -1));
    if (error_number != EWOULDBLOCK) fail(error_number);
    throw Error(Errc::invalid_argument, "run",
                fmt::format("{}: in use by {}; wait for it, stop it, or give another folder",
                            run_folder, n > 0 ? holder.data() : "another process"));
  }
  std::array<char, 64> host{};
  ::gethostname(host.data(), host.size() - 1);
  const std::string mine = fmt::format("process {} on {}", ::getpid(), host.data());
  // What is written serves the message only; the lock holds without it.
  if (::ftruncate(fd_, 0) == 0 && ::pwrite(fd_, mine.data(), mine.size(), 0) < 0) return;
}

RunLock::~RunLock() {
  if (fd_ >= 0) ::close(fd_);
}

RunLock::RunLock(RunLock&& o) noexcept : path_(std::move(o.path_)), fd_(std::exchange(o.fd_, -1)) {}

bool RunLock::in_place() const noexcept { return is_open_at(fd_, path_); }

}  // namespace saturate::train
