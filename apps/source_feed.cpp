// SPDX-License-Identifier: Apache-2.0
#include "apps/source_feed.h"

#include <sys/stat.h>
#include <unistd.h>

#include <chrono>

#include "base/log.h"

namespace saturate::apps {
namespace {

// A pipe is quiet when no line comes for so long. Longer than a program takes from one line to the
// next, shorter than a person notices.
constexpr std::chrono::milliseconds kQuiet{5};
// A line waits no longer for others that trickle in.
constexpr std::chrono::milliseconds kLongestWait{100};

bool is_regular_file(const std::string& path) {
  struct stat info {};
  const int failed = path == "-" ? fstat(STDIN_FILENO, &info) : stat(path.c_str(), &info);
  return failed == 0 && S_ISREG(info.st_mode);
}

}  // namespace

SourceFeed::SourceFeed(std::string path, int64_t most, Encode encode, OnBadLine on_bad)
    : path_(std::move(path)),
      most_(most),
      encode_(std::move(encode)),
      on_bad_(on_bad),
      is_file_(is_regular_file(path_)),
      thread_([this](const std::stop_token& stop) { read(stop); }) {}

bool SourceFeed::next(data::TextReader& reader, std::string_view& line) {
  constexpr int64_t kNamed = 5;
  try {
    return reader.next(line);
  } catch (const data::BadLine& e) {
    if (on_bad_ == OnBadLine::fail) throw;
    if (bad_lines_++ < kNamed) log_warning(e.what());
    line = {};
    return true;
  }
}

void SourceFeed::read(const std::stop_token& stop) {
  std::exception_ptr error;
  try {
    data::TextReader reader(path_, data::kMaxLineBytes, data::EmptyText::allowed, stop);
    for (std::string_view line; !stop.stop_requested() && next(reader, line);) {
      Ids ids = encode_(line, reader.line_number());
      std::unique_lock lock(mutex_);
      if (!room_.wait(lock, stop, [this] { return read_ - done_ < most_; })) break;
      lines_.push_back(std::move(ids));
      ++read_;
      if (lines_.size() == 1 || full()) came_.notify_one();
    }
  } catch (...) {
    error = std::current_exception();
  }
  const std::lock_guard lock(mutex_);
  ended_ = true;
  error_ = error;
  came_.notify_one();
}

int64_t SourceFeed::ready() {
  const std::lock_guard lock(mutex_);
  return std::ssize(lines_);
}

bool SourceFeed::take(int64_t done, bool idle, std::vector<Ids>& out) {
  out.clear();
  std::unique_lock lock(mutex_);
  done_ = done;
  room_.notify_one();
  if (is_file_) {
    // More are read while so many are left that the queue of a translator does not run dry.
    if (given_ - done_ < most_ / 2) came_.wait(lock, [this] { return full(); });
  } else if (idle) {
    came_.wait(lock, [this] { return ended_ || !lines_.empty(); });
    const auto latest = std::chrono::steady_clock::now() + kLongestWait;
    for (int64_t before = -1; before != read_ && std::chrono::steady_clock::now() < latest;) {
      before = read_;
      if (came_.wait_for(lock, kQuiet, [this] { return full(); })) break;
    }
  }
  out.swap(lines_);
  given_ += std::ssize(out);
  if (out.empty() && ended_ && idle && error_) std::rethrow_exception(error_);
  return !out.empty() || !ended_;
}

}  // namespace saturate::apps
