// SPDX-License-Identifier: Apache-2.0
#include "observe/staging/ring.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <cstring>
#include <thread>

namespace saturate::observe::staging {

Ring::Ring(Device& device, int threads) : device_(device) {
  for (Block& b : blocks_) {
    b.memory = static_cast<char*>(device_.pinned(kBlock));
    b.event = device_.make_event();
    if (b.memory == nullptr || b.event == nullptr) return;
  }
  ready_ = true;
  sigset_t all, before;  // these threads must take no signal of the program's
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  for (int i = 1; i < threads; ++i) std::thread([this] { work(); }).detach();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

// False when there is nothing to fill just now.
bool Ring::fill_piece() {
  size_t piece = next_piece_;
  do {
    if (piece >= std::min(pieces_.load(), open_ * kPieces)) return false;
  } while (!next_piece_.compare_exchange_weak(piece, piece + 1));
  Block& block = blocks_[piece / kPieces % kBlocks];
  const size_t at = piece * kPiece;
  std::memcpy(block.memory + piece % kPieces * kPiece, from_ + at, std::min(kPiece, bytes_ - at));
  ++block.filled;
  return true;
}

void Ring::work() {
  for (uint32_t seen = 0;;) {
    begun_.wait(seen);
    seen = begun_;
    ++at_work_;
    while (next_piece_ < pieces_)
      if (!fill_piece()) std::this_thread::yield();
    --at_work_;
  }
}

int Ring::copy(void* to, const void* from, size_t bytes, void* stream) {
  while (at_work_ > 0) std::this_thread::yield();  // one that came late to the copy before
  from_ = static_cast<const char*>(from);
  bytes_ = bytes;
  next_piece_ = open_ = 0;
  const size_t blocks = (bytes + kBlock - 1) / kBlock;
  pieces_ = (bytes + kPiece - 1) / kPiece;
  ++begun_;
  begun_.notify_all();
  int error = 0;
  const auto keep_first = [&](int e) { error = error != 0 ? error : e; };
  for (size_t b = 0; b < blocks; ++b) {
    for (; open_ < std::min(blocks, b + kAhead); ++open_) {
      Block& next = blocks_[open_ % kBlocks];
      if (next.used) keep_first(device_.wait(next.event));
      next.filled = 0;
    }
    Block& block = blocks_[b % kBlocks];
    const size_t at = b * kBlock, size = std::min(kBlock, bytes - at);
    while (block.filled < (size + kPiece - 1) / kPiece)
      if (!fill_piece()) std::this_thread::yield();
    keep_first(device_.copy(static_cast<char*>(to) + at, block.memory, size, stream));
    keep_first(device_.record(block.event, stream));
    block.used = true;
  }
  pieces_ = 0;
  return error;
}

}  // namespace saturate::observe::staging
