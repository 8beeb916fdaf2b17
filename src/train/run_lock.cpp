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
  path_ = (std::filesystem::path(run_folder) / "run.lock").string();
  // A holder that ends removes the file: what was opened before and locked after that is none.
  // On a file system without stable numbers of files it is never in place.
  constexpr int kMostTries = 100;
  for (int tries = 0; tries < kMostTries && !(fd_ >= 0 && in_place()); ++tries) {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
    std::error_code failed;
    made_folder_ |= std::filesystem::create_directories(run_folder, failed);
    if (failed) fail(failed.value());
    fd_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (fd_ < 0 && errno == ENOENT && tries + 1 < kMostTries) continue;  // the folder went with it
    if (fd_ < 0) fail(errno);
    if (::flock(fd_, LOCK_EX | LOCK_NB) == 0) continue;
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
  if (fd_ < 0) return;
  // While it is still held, so that it is nobody else's.
  std::error_code failed;
  const bool mine = in_place() && std::filesystem::remove(path_, failed);
  ::close(fd_);
  if (mine && made_folder_)
    std::filesystem::remove(std::filesystem::path(path_).parent_path(), failed);
}

RunLock::RunLock(RunLock&& o) noexcept
    : path_(std::move(o.path_)), fd_(std::exchange(o.fd_, -1)), made_folder_(o.made_folder_) {}

bool RunLock::in_place() const noexcept { return is_open_at(fd_, path_); }

}  // namespace saturate::train
