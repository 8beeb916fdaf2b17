// SPDX-License-Identifier: Apache-2.0
#include "observe/read/input.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace saturate::observe {
namespace {

// Gzip, or what cannot be read twice.
class FileInput : public Input {
 public:
  FileInput(const std::string& path, int fd) : Input(path), file_(gzdopen(fd, "rb")) {
    if (file_ == nullptr) {
      ::close(fd);
      throw Error(Errc::out_of_memory, "doctor", path + ": no memory for reading it");
    }
    gzbuffer(file_, 1u << 18);
  }
  ~FileInput() override { gzclose_r(file_); }
  FileInput(const FileInput&) = delete;
  FileInput& operator=(const FileInput&) = delete;

  size_t read(char* dst, size_t bytes) override {
    const int n = gzread(file_, dst, static_cast<unsigned>(std::min<size_t>(bytes, 1u << 30)));
    int code = Z_OK;
    const char* what = gzerror(file_, &code);
    // A cut gzip file is reported with the last bytes, or after them.
    if (n < 0 || code == Z_BUF_ERROR || code == Z_DATA_ERROR) {
      const std::string_view reported(what);  // "<fd:3>: invalid distance"
      if (const size_t end = reported.find(">: ");
          reported.starts_with('<') && end != reported.npos)
        what += end + 3;
      const std::string reason = code == Z_ERRNO ? std::strerror(errno)
                                 : code == Z_BUF_ERROR
                                     ? "the gzip stream is truncated"
                                     : fmt::format("the gzip stream is corrupt ({})", what);
      throw Error(Errc::io, "doctor",
                  fmt::format("{}: after byte {} (decompressed): {}; copy or record the file again",
                              name(), offset_ + std::max(n, 0), reason));
    }
    offset_ += n;
    return static_cast<size_t>(n);
  }

 private:
  gzFile file_;
  int64_t offset_ = 0;
};

class PlainFileInput : public Input {
 public:
  PlainFileInput(const std::string& path, int fd) : Input(path), fd_(fd) {}
  ~PlainFileInput() override { ::close(fd_); }
  PlainFileInput(const PlainFileInput&) = delete;
  PlainFileInput& operator=(const PlainFileInput&) = delete;

  size_t read(char* dst, size_t bytes) override {
    for (;;) {
      const ssize_t n = ::read(fd_, dst, std::min<size_t>(bytes, 1u << 30));
      if (n >= 0) {
        offset_ += n;
        return static_cast<size_t>(n);
      }
      if (errno != EINTR)
        throw Error(Errc::io, "doctor",
                    fmt::format("{}: after byte {}: {}; copy or record the file again", name(),
                                offset_, std::strerror(errno)));
    }
  }

 private:
  int fd_;
  int64_t offset_ = 0;
};

class MemoryInput : public Input {
 public:
  MemoryInput(const char* bytes, size_t size, std::string name)
      : Input(std::move(name)), at_(bytes), left_(size) {}
  size_t read(char* dst, size_t bytes) override {
    const size_t n = std::min(bytes, left_);
    if (n > 0) std::memcpy(dst, at_, n);
    at_ += n;
    left_ -= n;
    return n;
  }

 private:
  const char* at_;
  size_t left_;
};

}  // namespace

std::unique_ptr<Input> open_input(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0)
    throw Error(
        Errc::io, "doctor",
        fmt::format("{}: {}; check the path and its permissions", path, std::strerror(errno)));
  struct stat info {};
  if (::fstat(fd, &info) == 0 && S_ISDIR(info.st_mode)) {
    ::close(fd);
    throw Error(Errc::io, "doctor", path + ": is a directory; name a trace inside it");
  }
  unsigned char magic[2] = {0, 0};
  const bool seekable = ::pread(fd, magic, 2, 0) == 2;
  if (seekable && !(magic[0] == 0x1F && magic[1] == 0x8B))
    return std::make_unique<PlainFileInput>(path, fd);
  return std::make_unique<FileInput>(path, fd);
}

std::unique_ptr<Input> memory_input(const void* bytes, size_t size, std::string name) {
  return std::make_unique<MemoryInput>(static_cast<const char*>(bytes), size, std::move(name));
}

}  // namespace saturate::observe
