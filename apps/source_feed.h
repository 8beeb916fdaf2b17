// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <stop_token>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "data/text_reader.h"

namespace saturate::apps {

// blank: a blank line takes the place of a line that is no text, so that lines keep their places;
// the first few are warned of.
enum class OnBadLine { fail, blank };

/// Reads and encodes lines in a thread of its own, while the device works on those before. From a
/// file it gives as many as it may hold, and further ones while half of these are not yet done, so
/// that what is translated together, in the order of the lines, is a function of the text alone; from a terminal or a pipe what has come, as soon as no more is coming.
class SourceFeed {
 public:
  using Ids = std::vector<int32_t>;
  using Encode = std::function<Ids(std::string_view line, int64_t number)>;  // number from 1

  // `path` may be "-". At most `most` lines are ahead of those that are done.
  SourceFeed(std::string path, int64_t most, Encode encode, OnBadLine on_bad = OnBadLine::fail);

  // Lines that are ready to be taken now.
  int64_t ready();

  // Moves the next lines into `out`, of which `done` in all have been translated and written.
  // `idle`: there is nothing to do without new lines, so this waits for some. False when the text
  // has ended and nothing is left. Errors: those of data::TextReader and `encode`, once idle, so
  // that the lines before the bad one have been done.
  bool take(int64_t done, bool idle, std::vector<Ids>& out);
  int64_t bad_lines() const noexcept { return bad_lines_; }

 private:
  void read(const std::stop_token& stop);
  bool next(data::TextReader& reader, std::string_view& line);
  bool full() const { return ended_ || read_ - done_ >= most_; }

  const std::string path_;
  const int64_t most_;
  const Encode encode_;
  const OnBadLine on_bad_;
  const bool is_file_;
  std::atomic<int64_t> bad_lines_{0};
  std::mutex mutex_;  // of everything below
  std::condition_variable_any came_, room_;
  std::vector<Ids> lines_;
  int64_t read_ = 0, given_ = 0, done_ = 0;
  bool ended_ = false;
  std::exception_ptr error_;
  std::jthread thread_;  // the last: it uses the others, and stops before they go
};

}  // namespace saturate::apps
