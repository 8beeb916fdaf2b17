// SPDX-License-Identifier: Apache-2.0
#include "data/sampled_source.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "base/philox.h"

namespace saturate::data {
namespace {

// Long enough to make a seek worth it, short enough that a sample has many places.
constexpr int64_t kBlockBytes = int64_t{1} << 15;
constexpr int64_t kLongestBlock = int64_t{1} << 21;  // where lines are long; see kMaxLineBytes

// One block in each of `blocks` stretches of equal length: of it the lines that begin inside.
class BlockSource : public ByteSource {
 public:
  BlockSource(int fd, int64_t size, int64_t bytes, uint64_t seed)
      : fd_(fd), size_(size), blocks_(std::max<int64_t>(1, bytes / kBlockBytes)), seed_(seed) {}
  ~BlockSource() override { ::close(fd_); }
  BlockSource(const BlockSource&) = delete;
  BlockSource& operator=(const BlockSource&) = delete;

  size_t read(char* dst, size_t bytes) override {
    while (given_ == lines_.size()) {
      if (block_ == blocks_) return 0;
      take_block(block_++);
    }
    const size_t n = std::min(bytes, lines_.size() - given_);
    std::memcpy(dst, lines_.data() + given_, n);
    given_ += n;
    return n;
  }

 private:
  void take_block(int64_t block) {
    const int64_t stretch = size_ / blocks_;
    const Random4 r = philox4x32(seed_, static_cast<uint64_t>(block), 7);
    const int64_t room = std::max<int64_t>(1, stretch - kBlockBytes);
    const uint64_t place =
        (static_cast<uint64_t>(r.x[0]) << 32 | r.x[1]) % static_cast<uint64_t>(room);
    const int64_t at = block * stretch + static_cast<int64_t>(place);
    for (int64_t bytes = kBlockBytes;; bytes *= 4) {
      read_at(at, bytes);
      // The first line began before the block, unless it is the file's first; the last one goes on
      // after it.
      const size_t first = at == 0 ? 0 : lines_.find('\n') + 1;  // npos + 1 is 0: none begins here
      const size_t end = lines_.rfind('\n') + 1;
      const bool more = static_cast<int64_t>(lines_.size()) == bytes && bytes < kLongestBlock;
      if ((at > 0 && first == 0) || end <= first) {
        if (more) continue;  // a line longer than the block
        lines_.clear();
      } else {
        lines_.resize(end);
      }
      given_ = std::min(first, lines_.size());
      return;
    }
  }

  void read_at(int64_t at, int64_t bytes) {
    lines_.resize(static_cast<size_t>(bytes));
    size_t have = 0;
    while (have < lines_.size()) {
      const ssize_t n =
          ::pread(fd_, lines_.data() + have, lines_.size() - have, at + static_cast<int64_t>(have));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) throw StreamFailure(fmt::format("cannot read: {}", std::strerror(errno)));
      if (n == 0) break;
      have += static_cast<size_t>(n);
    }
    lines_.resize(have);
  }

  const int fd_;
  const int64_t size_, blocks_;
  const uint64_t seed_;
  int64_t block_ = 0;
  std::string lines_;
  size_t given_ = 0;
};

// The first bytes of another source, up to the end of a line.
class PrefixSource : public ByteSource {
 public:
  PrefixSource(std::unique_ptr<ByteSource> from, int64_t bytes)
      : from_(std::move(from)), left_(bytes) {}
  size_t read(char* dst, size_t bytes) override {
    if (ended_) return 0;
    const size_t n = from_->read(dst, bytes);
    left_ -= static_cast<int64_t>(n);
    if (left_ > 0) return n;
    const auto* feed = static_cast<const char*>(::memrchr(dst, '\n', n));
    if (feed == nullptr) return n;
    ended_ = true;
    return static_cast<size_t>(feed - dst) + 1;
  }

 private:
  std::unique_ptr<ByteSource> from_;
  int64_t left_;
  bool ended_ = false;
};

bool is_compressed(int fd) {
  char head[4] = {};
  const ssize_t n = ::pread(fd, head, sizeof head, 0);
  return (n >= 2 && std::memcmp(head, "\x1F\x8B", 2) == 0) ||
         (n == 4 && std::memcmp(head, "\x28\xB5\x2F\xFD", 4) == 0);
}

}  // namespace

std::unique_ptr<ByteSource> open_sampled_source(const std::string& path, int64_t bytes,
                                                uint64_t seed) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  struct stat info {};
  if (fd >= 0 && ::fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && info.st_size > bytes &&
      !is_compressed(fd))
    return std::make_unique<BlockSource>(fd, info.st_size, bytes, seed);
  if (fd >= 0) ::close(fd);
  return std::make_unique<PrefixSource>(open_byte_source(path), bytes);
}

}  // namespace saturate::data
