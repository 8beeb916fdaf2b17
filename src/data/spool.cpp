// SPDX-License-Identifier: Apache-2.0
#include "data/spool.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "base/durable_file.h"
#include "base/error.h"

namespace saturate::data {
namespace {

constexpr size_t kReadBytes = size_t{1} << 17;
constexpr int kLookEveryMs = 100;  // at the interrupt, and for progress

class Input {
 public:
  explicit Input(const SpoolItem& item)
      : name_(item.from == "-" ? "standard input" : item.from), file_(item.to) {
    if (item.from == "-") {
      fd_ = STDIN_FILENO;
      return;
    }
    // Without O_NONBLOCK opening a FIFO waits for its writer and no signal would be noticed.
    fd_ = ::open(item.from.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd_ < 0) fail("cannot be opened");
  }
  ~Input() {
    if (fd_ > STDIN_FILENO) ::close(fd_);
  }
  Input(const Input&) = delete;
  Input& operator=(const Input&) = delete;

  // Only once there is something: read() returns the same for a FIFO that no writer has opened and for its end,
  // poll() can.
  size_t copy(std::vector<char>& buffer) {
    const ssize_t n = ::read(fd_, buffer.data(), buffer.size());
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) return 0;
    if (n < 0) fail("cannot be read");
    if (n == 0) {
      done_ = true;
      return 0;
    }
    file_.write(buffer.data(), static_cast<size_t>(n));
    return static_cast<size_t>(n);
  }

  void commit() {
    if (file_.bytes_written() == 0) {
      throw Error(Errc::invalid_argument, "data",
                  name_ + " is empty; give text with <, a pipe, or name a file");
    }
    file_.commit();
  }

  int fd() const { return fd_; }
  bool done() const { return done_; }

 private:
  [[noreturn]] void fail(const char* what) const {
    throw Error(
        Errc::io, "corpus",
        fmt::format("{} {}: {}; check that it is still there", name_, what, std::strerror(errno)));
  }

  std::string name_;
  DurableFile file_;
  int fd_ = -1;
  bool done_ = false;
};

}  // namespace

bool is_read_once(const std::string& path) {
  if (path == "-") return true;
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return false;
  return S_ISFIFO(info.st_mode) || S_ISCHR(info.st_mode) || S_ISSOCK(info.st_mode);
}

void spool(const std::vector<SpoolItem>& items, const Interrupt& interrupt,
           const std::function<void(int64_t)>& progress) {
  std::vector<std::unique_ptr<Input>> inputs;
  for (const SpoolItem& item : items) inputs.push_back(std::make_unique<Input>(item));
  std::vector<char> buffer(kReadBytes);
  int64_t bytes = 0;
  for (;;) {
    interrupt.check();
    std::vector<pollfd> waiting;
    std::vector<Input*> whose;
    for (const auto& input : inputs) {
      if (input->done()) continue;
      waiting.push_back({.fd = input->fd(), .events = POLLIN, .revents = 0});
      whose.push_back(input.get());
    }
    if (waiting.empty()) break;
    const int ready = ::poll(waiting.data(), waiting.size(), kLookEveryMs);
    if (ready < 0 && errno != EINTR) {
      throw Error(Errc::io, "corpus",
                  fmt::format("cannot wait for input: {}", std::strerror(errno)));
    }
    for (size_t i = 0; ready > 0 && i < waiting.size(); ++i) {
      if (waiting[i].revents != 0) bytes += static_cast<int64_t>(whose[i]->copy(buffer));
    }
    if (progress) progress(bytes);
  }
  for (const auto& input : inputs) input->commit();
}

}  // namespace saturate::data
