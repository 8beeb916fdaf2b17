// SPDX-License-Identifier: Apache-2.0
#include "data/byte_source.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <initializer_list>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"

namespace saturate::data {
namespace {

constexpr size_t kChunk = size_t{1} << 17;
constexpr std::string_view kGzipMark = "\x1F\x8B", kZstdMark = "\x28\xB5\x2F\xFD";

// A file descriptor whose first bytes can be read without taking them.
class PlainSource : public ByteSource {
 public:
  PlainSource(int fd, bool owned, std::stop_token stop = {})
      : fd_(fd), owned_(owned), stop_(std::move(stop)) {}
  ~PlainSource() override {
    if (owned_) ::close(fd_);
  }
  PlainSource(const PlainSource&) = delete;
  PlainSource& operator=(const PlainSource&) = delete;

  size_t read(char* dst, size_t bytes) override {
    if (!head_.empty()) {
      const size_t n = std::min(bytes, head_.size());
      std::memcpy(dst, head_.data(), n);
      head_.erase(0, n);
      return n;
    }
    return read_fd(dst, bytes);
  }

  // The first bytes, as many as it takes to decide which of `marks` (each at most 4 bytes) they are,
  // if any. No more is waited for: a short line that is typed must not wait for the next.
  const std::string& peek(std::initializer_list<std::string_view> marks) {
    const auto undecided = [&](std::string_view mark) {
      return head_.size() < mark.size() && mark.starts_with(head_);
    };
    while (std::ranges::any_of(marks, undecided)) {
      char bytes[4];
      const size_t n = read_fd(bytes, 4 - head_.size());
      if (n == 0) break;
      head_.append(bytes, n);
    }
    return head_;
  }

 private:
  size_t read_fd(char* dst, size_t bytes) {
    for (;;) {
      if (stop_.stop_possible() && !wait()) return 0;
      const ssize_t n = ::read(fd_, dst, bytes);
      if (n >= 0) return static_cast<size_t>(n);
      if (errno != EINTR && errno != EAGAIN)
        throw StreamFailure(fmt::format("cannot read: {}", std::strerror(errno)));
    }
  }

  // Until there is something to read or the end; false when asked to stop.
  bool wait() const {
    constexpr int kPollMs = 50;
    pollfd poll_fd{fd_, POLLIN, 0};
    while (!stop_.stop_requested()) {
      if (::poll(&poll_fd, 1, kPollMs) != 0) return true;  // what is wrong, read() reports
    }
    return false;
  }

  int fd_;
  bool owned_;
  std::stop_token stop_;
  std::string head_;
};

class GzipSource : public ByteSource {
 public:
  explicit GzipSource(std::unique_ptr<ByteSource> raw) : raw_(std::move(raw)), input_(kChunk) {
    if (inflateInit2(&z_, 15 + 16) != Z_OK) throw StreamFailure("cannot start zlib: out of memory");
  }
  ~GzipSource() override { inflateEnd(&z_); }
  GzipSource(const GzipSource&) = delete;
  GzipSource& operator=(const GzipSource&) = delete;

  size_t read(char* dst, size_t bytes) override {
    z_.next_out = reinterpret_cast<Bytef*>(dst);
    z_.avail_out = static_cast<uInt>(std::min<size_t>(bytes, 1u << 30));
    const uInt room = z_.avail_out;
    while (z_.avail_out == room) {
      if (z_.avail_in == 0) {
        z_.next_in = reinterpret_cast<Bytef*>(input_.data());
        z_.avail_in = static_cast<uInt>(raw_->read(input_.data(), input_.size()));
        if (z_.avail_in == 0) {
          if (member_done_) return 0;
          throw StreamFailure("the gzip stream is truncated; copy or compress the file again");
        }
      }
      if (member_done_) inflateReset(&z_);
      const int rc = inflate(&z_, Z_NO_FLUSH);
      if (rc != Z_OK && rc != Z_STREAM_END)
        throw StreamFailure(
            fmt::format("the gzip stream is corrupt ({}); copy or compress the file again",
                        z_.msg ? z_.msg : "invalid data"));
      member_done_ = rc == Z_STREAM_END;
    }
    return room - z_.avail_out;
  }

 private:
  std::unique_ptr<ByteSource> raw_;
  std::vector<char> input_;
  z_stream z_{};
  bool member_done_ = false;
};

class ZstdSource : public ByteSource {
 public:
  explicit ZstdSource(std::unique_ptr<ByteSource> raw)
      : raw_(std::move(raw)), input_(kChunk), z_(ZSTD_createDCtx(), &ZSTD_freeDCtx) {
    if (!z_) throw StreamFailure("cannot start zstd: out of memory");
  }

  size_t read(char* dst, size_t bytes) override {
    ZSTD_outBuffer out{dst, bytes, 0};
    while (out.pos == 0) {
      if (in_.pos == in_.size && !flushing_) {
        in_ = {input_.data(), raw_->read(input_.data(), input_.size()), 0};
        if (in_.size == 0) {
          if (frame_done_) return 0;
          throw StreamFailure("the zstd stream is truncated; copy or compress the file again");
        }
      }
      const size_t rc = ZSTD_decompressStream(z_.get(), &out, &in_);
      if (ZSTD_isError(rc))
        throw StreamFailure(
            fmt::format("the zstd stream is corrupt ({}); copy or compress the file again",
                        ZSTD_getErrorName(rc)));
      frame_done_ = rc == 0;
      flushing_ = rc != 0 && out.pos == out.size;  // the decoder may hold more output
    }
    return out.pos;
  }

 private:
  std::unique_ptr<ByteSource> raw_;
  std::vector<char> input_;
  std::unique_ptr<ZSTD_DCtx, size_t (*)(ZSTD_DCtx*)> z_;
  ZSTD_inBuffer in_{nullptr, 0, 0};
  bool frame_done_ = false, flushing_ = false;
};

std::unique_ptr<PlainSource> open_plain(const std::string& path, std::stop_token stop) {
  if (path == "-") return std::make_unique<PlainSource>(STDIN_FILENO, false, std::move(stop));
  // A named pipe opens when somebody writes to it: with a way to stop, that is waited for in
  // wait().
  const int more = stop.stop_possible() ? O_NONBLOCK : 0;
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | more);
  if (fd < 0)
    throw Error(
        Errc::io, "corpus",
        fmt::format("{}: {}; check the path and its permissions", path, std::strerror(errno)));
  auto source = std::make_unique<PlainSource>(fd, true, std::move(stop));
  struct stat info {};
  if (::fstat(fd, &info) == 0 && S_ISDIR(info.st_mode))
    throw Error(Errc::io, "corpus", path + ": is a directory; name a text file inside it");
  return source;
}

}  // namespace

std::string display_name(const std::string& path) {
  return path == "-" ? "<standard input>" : path;
}

std::unique_ptr<ByteSource> open_byte_source(const std::string& path, std::stop_token stop) {
  auto plain = open_plain(path, std::move(stop));
  std::string head;
  try {
    head = plain->peek({kGzipMark, kZstdMark});
    if (head.starts_with(kGzipMark)) return std::make_unique<GzipSource>(std::move(plain));
    if (head.starts_with(kZstdMark)) return std::make_unique<ZstdSource>(std::move(plain));
  } catch (const StreamFailure& e) {
    throw Error(Errc::io, "corpus", display_name(path) + ": " + e.what());
  }
  return plain;
}

}  // namespace saturate::data
