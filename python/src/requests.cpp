// SPDX-License-Identifier: Apache-2.0
#include "requests.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace saturate::python {

namespace {

int open_descriptor() {
  const int descriptor = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (descriptor >= 0) return descriptor;
  throw Error(Errc::io, "load",
              std::string("eventfd: ") + std::strerror(errno) +
                  "; raise the limit of open files (ulimit -n)");
}

}  // namespace

Mailbox::Mailbox() : descriptor_(open_descriptor()) {}
Mailbox::~Mailbox() { ::close(descriptor_); }

int64_t Mailbox::new_number() {
  const std::lock_guard lock(mutex_);
  return numbers_++;
}

void Mailbox::post(int64_t number) {
  {
    const std::lock_guard lock(mutex_);
    posted_.push_back(number);
    if (posted_.size() > 1) return;  // the descriptor is readable already
  }
  static_cast<void>(!::eventfd_write(descriptor_, 1));  // fails only when its count is full
}

std::vector<int64_t> Mailbox::take() {
  const std::lock_guard lock(mutex_);
  eventfd_t count = 0;
  static_cast<void>(!::eventfd_read(descriptor_, &count));  // without a count there is none to take
  return std::exchange(posted_, {});
}

Request::Request(std::shared_ptr<Mailbox> mailbox)
    : mailbox_(std::move(mailbox)), number_(mailbox_ ? mailbox_->new_number() : 0) {}

void Request::expect(std::vector<Generated> texts, bool keep_pieces) {
  texts_ = std::move(texts);
  keep_pieces_ = keep_pieces;
}

void Request::notify() {
  came_.notify_all();
  if (mailbox_) mailbox_->post(number_);
}

void Request::end() {
  {
    const std::lock_guard lock(mutex_);
    finished_ = true;
  }
  notify();
}

void Request::translated(serve::TranslationJob::Lines lines) {
  lines_ = std::move(lines);
  end();
}

void Request::show(size_t text, std::string piece) {
  if (piece.empty()) return;
  texts_[text].text += piece;
  if (!keep_pieces_) return;
  {
    const std::lock_guard lock(mutex_);
    pieces_.push_back({text, std::move(piece)});
  }
  notify();
}

bool Request::token(size_t text, int32_t id) {
  Generated& g = texts_[text];
  g.ids.push_back(id);
  show(text, g.stream.add(id));
  if (!g.stream.stopped()) return true;
  g.ending = "stop";
  return false;
}

void Request::scored(size_t text, std::span<const int32_t> ids,
                     std::vector<serve::ScoredToken> scores) {
  texts_[text].ids.assign(ids.begin(), ids.end());
  texts_[text].scores = std::move(scores);
}

void Request::generated() {
  for (size_t i = 0; i < texts_.size(); ++i) {
    Generated& g = texts_[i];
    if (!g.ending.empty()) continue;
    show(i, g.stream.finish());
    g.ending = std::ssize(g.ids) < g.limit || g.stream.stopped() ? "stop" : "length";
  }
  end();
}

void Request::failed(const std::string& why) {
  {
    const std::lock_guard lock(mutex_);
    error_ = why.empty() ? "it failed" : why;
  }
  end();
}

bool Request::wait(double seconds, bool any_piece) {
  std::unique_lock lock(mutex_);
  return came_.wait_for(lock, std::chrono::duration<double>(seconds),
                        [&] { return finished_ || (any_piece && !pieces_.empty()); });
}

bool Request::finished() const {
  const std::lock_guard lock(mutex_);
  return finished_;
}

std::string Request::error() const {
  const std::lock_guard lock(mutex_);
  return error_;
}

std::vector<Piece> Request::take_pieces() {
  const std::lock_guard lock(mutex_);
  return std::exchange(pieces_, {});
}

}  // namespace saturate::python
