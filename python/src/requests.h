// SPDX-License-Identifier: Apache-2.0
// What Python asked a model for, and what has come of it. Threads of the model write and never touch
// Python; threads of Python read, without the interpreter's lock while they wait.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "serve/generated_text.h"
#include "serve/generation_engine.h"
#include "serve/log_probabilities.h"
#include "serve/translation_engine.h"

namespace saturate::python {

/// Numbers of requests of which something has come, and a descriptor that an event loop can watch. It
/// is made by std::make_shared, so that a thread of a model that drops the last pointer to it drops no
/// object of Python, for which it would wait.
class Mailbox : public std::enable_shared_from_this<Mailbox> {
 public:
  Mailbox();  // Errors: io, when the process may open no more files
  ~Mailbox();
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;

  int descriptor() const noexcept { return descriptor_; }  // readable while a number is there
  int64_t new_number();                                    // from any thread, as the next two
  void post(int64_t number);
  std::vector<int64_t> take();

 private:
  const int descriptor_;
  std::mutex mutex_;
  std::vector<int64_t> posted_;
  int64_t numbers_ = 0;
};

// The next of a text that is being generated.
struct Piece {
  size_t text;  // its number in the request
  std::string shown;
};

// A text that is being, or was, generated.
struct Generated {
  serve::GeneratedText stream;
  int64_t limit;  // tokens
  std::string text = {};
  std::vector<int32_t> ids = {};
  std::string ending = {};                      // stop, length
  std::vector<serve::ScoredToken> scores = {};  // of a text that is not continued but scored
};

/// One request. It begins when its job is submitted, and ends with finished().
class Request {
 public:
  explicit Request(std::shared_ptr<Mailbox> mailbox);  // may be null
  // `keep_pieces`: they are wanted as they come. The texts are in the order of the job's prompts.
  void expect(std::vector<Generated> texts, bool keep_pieces);

  // From the model's threads.
  bool cancelled() const noexcept { return cancelled_; }
  void translated(serve::TranslationJob::Lines lines);
  bool token(size_t text, int32_t id);  // false: the text needs no more
  void scored(size_t text, std::span<const int32_t> ids, std::vector<serve::ScoredToken> scores);
  void generated();
  void failed(const std::string& why);

  // From any thread. wait(): until the end, or with `any_piece` until a piece came; false: neither came
  // within so many seconds.
  bool wait(double seconds, bool any_piece);
  bool finished() const;
  std::string error() const;  // "" without one
  std::vector<Piece> take_pieces();
  void cancel() noexcept { cancelled_ = true; }
  int64_t number() const noexcept { return number_; }  // in the mailbox

  // After finished() without an error; nothing writes them any more.
  const serve::TranslationJob::Lines& lines() const noexcept { return lines_; }
  const std::vector<Generated>& texts() const noexcept { return texts_; }

 private:
  void show(size_t text, std::string piece);
  void end();
  void notify();

  const std::shared_ptr<Mailbox> mailbox_;
  const int64_t number_;
  std::atomic<bool> cancelled_{false};
  serve::TranslationJob::Lines lines_;  // by the model's threads until the end, as the next
  std::vector<Generated> texts_;
  bool keep_pieces_ = false;

  mutable std::mutex mutex_;  // of everything below
  std::condition_variable came_;
  std::vector<Piece> pieces_;
  std::string error_;
  bool finished_ = false;
};

}  // namespace saturate::python
