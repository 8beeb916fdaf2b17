// SPDX-License-Identifier: Apache-2.0
#include "base/durable_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/error.h"

namespace saturate {
namespace {

std::string parent_of(const std::string& path) {
  const std::string parent = std::filesystem::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

void sync_path(const std::string& path, int flags) {
  const int fd = ::open(path.c_str(), flags | O_CLOEXEC);
  if (fd < 0) throw Error(Errc::io, "sync", fmt::format("{}: {}", path, std::strerror(errno)));
  const int failed = ::fsync(fd) == 0 ? 0 : errno;
  ::close(fd);
  // Some network file systems cannot sync folders and say so with EINVAL; there is no other way
  // then.
  if (failed != 0 && failed != EINVAL) {
    throw Error(Errc::io, "sync", fmt::format("{}: {}", path, std::strerror(failed)));
  }
}

}  // namespace

DurableFile::DurableFile(std::string path, uint64_t bytes)
    : path_(std::move(path)), expected_(bytes) {
  struct stat is {};
  if (::stat(path_.c_str(), &is) == 0 && !S_ISREG(is.st_mode) && !S_ISDIR(is.st_mode)) {
    in_place_ = true;
    fd_ = ::open(path_.c_str(), O_WRONLY | O_CLOEXEC);
    if (fd_ < 0) fail("cannot open", errno);
    return;
  }
  const std::string temporary = path_ + ".tmp";
  fd_ = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd_ < 0) fail("cannot create", errno);
  if (bytes == 0) return;
  // Reserving is a courtesy: file systems that cannot do it answer EOPNOTSUPP and the like.
  if (::fallocate(fd_, 0, 0, static_cast<off_t>(bytes)) != 0 &&
      (errno == ENOSPC || errno == EFBIG)) {
    const int error_number = errno;
    ::close(fd_);
    ::unlink(temporary.c_str());
    fail("cannot reserve space for", error_number);
  }
}

DurableFile::DurableFile(std::string path, Join)
    : path_(std::move(path)), in_place_(true), joined_(true) {
  fd_ = ::open(path_.c_str(), O_WRONLY | O_CLOEXEC);
  if (fd_ < 0) fail("cannot open", errno);
}

DurableFile::~DurableFile() {
  if (fd_ < 0) return;
  ::close(fd_);
  if (!in_place_) ::unlink((path_ + ".tmp").c_str());
}

void DurableFile::write(const void* data, size_t bytes) {
  put(data, bytes, [this](const char* at, size_t n, size_t) { return ::write(fd_, at, n); });
}

void DurableFile::write_at(uint64_t place, const void* data, size_t bytes) {
  put(data, bytes, [this, place](const char* at, size_t n, size_t done) {
    return ::pwrite(fd_, at, n, static_cast<off_t>(place + done));
  });
}

template <class Call>
void DurableFile::put(const void* data, size_t bytes, const Call& call) {
  for (size_t done = 0; done < bytes;) {
    const ssize_t n =
        call(static_cast<const char*>(data) + done, std::min(bytes - done, size_t{1} << 30), done);
    if (n < 0) {
      if (errno == EINTR) continue;
      fail("cannot write", errno);
    }
    done += static_cast<size_t>(n);
    written_ += static_cast<uint64_t>(n);
  }
}

void DurableFile::commit(Rest rest) {
  if (in_place_) {
    if (joined_ && ::fsync(fd_) != 0) fail("cannot sync", errno);
    if (::close(std::exchange(fd_, -1)) != 0) fail("cannot close", errno);
    return;
  }
  const uint64_t size = rest == Rest::cut ? written_ : std::max(written_, expected_);
  if (written_ < expected_ && ::ftruncate(fd_, static_cast<off_t>(size)) != 0) {
    fail("cannot set the size of", errno);
  }
  if (::fsync(fd_) != 0) fail("cannot sync", errno);
  if (::rename((path_ + ".tmp").c_str(), path_.c_str()) != 0) fail("cannot rename to", errno);
  const int fd = std::exchange(fd_, -1);
  if (::close(fd) != 0) fail("cannot close", errno);
  sync_folder(parent_of(path_));
}

void DurableFile::fail(const char* action, int error_number) const {
  std::string message = fmt::format("{} {}: {}", action, path_, std::strerror(error_number));
  if (error_number == ENOENT) message += "; make the folder first or choose another";
  if (error_number == EACCES || error_number == EROFS)
    message += "; choose a folder where this user may write";
  if (error_number == ENOSPC || error_number == EDQUOT || error_number == EFBIG) {
    message += fmt::format(
        " ({} bytes needed, {} written, {} free); nothing under that name was changed; {}",
        std::max(expected_, written_), written_, free_disk_bytes(parent_of(path_)),
        error_number == EFBIG
            ? "raise the limit of a file's size (ulimit -f) or choose another file system"
            : "free some space or choose another folder");
  }
  throw Error(Errc::io, "write", message);
}

void write_durable_file(const std::string& path, std::string_view content) {
  DurableFile file(path, content.size());
  file.write(content.data(), content.size());
  file.commit();
}

void sync_folder(const std::string& folder) { sync_path(folder, O_RDONLY | O_DIRECTORY); }
void sync_file(const std::string& path) { sync_path(path, O_RDONLY); }

bool is_open_at(int fd, const std::string& path) noexcept {
  struct stat held {
  }, there{};
  return ::fstat(fd, &held) == 0 && ::stat(path.c_str(), &there) == 0 &&
         held.st_ino == there.st_ino && held.st_dev == there.st_dev;
}

uint64_t free_disk_bytes(const std::string& path) noexcept {
  struct statvfs info {};
  if (::statvfs(path.c_str(), &info) != 0) return 0;
  return static_cast<uint64_t>(info.f_bavail) * info.f_frsize;
}

}  // namespace saturate
